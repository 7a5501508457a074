#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use serde_json::{Value as Json, json};

use super::*;

/// One context with its cluster and its user.
fn file(cluster: &Json, user: &Json) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "none", "user": "none"}},
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    })
}

fn of(cluster: &Json, user: &Json) -> Result<Access, String> {
    access(&file(cluster, user).to_string(), Path::new("/etc/agent"))
}

fn of_user(user: &Json) -> Result<Access, String> {
    of(&json!({"server": "https://a:6443"}), user)
}

fn of_cluster(cluster: &Json) -> Result<Access, String> {
    of(cluster, &json!({}))
}

#[track_caller]
fn check_fault(of: Result<Access, String>, right: &str) {
    let why = of.err().unwrap();
    assert!(why.starts_with(right), "{why}");
    assert!(!why.contains("secret"), "{why}");
}

fn place(of: &Pem) -> String {
    match &of.place {
        Place::Here(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Place::File(path) => path.display().to_string(),
    }
}

#[test]
fn the_current_context_says_who_asks_and_of_whom() {
    let cluster = json!({
        "server": "https://a:6443/below/", "tls-server-name": "b",
        "certificate-authority": "ca.crt", "proxy-url": "http://p", "extensions": null,
    });
    let user = json!({
        "client-certificate": "/abs/c.crt", "client-key": "../c.key", "token": "t",
        "as": "jane", "as-groups": ["g"],
    });
    let access = of(&cluster, &user).unwrap();
    assert_eq!(access.server, "https://a:6443/below/");
    assert_eq!(access.server_name.as_deref(), Some("b"));
    assert_eq!(access.proxy.as_deref(), Some("http://p"));
    assert!(!access.is_insecure);
    assert_eq!(place(&access.authority.unwrap()), "/etc/agent/ca.crt");
    let (certificate, key) = access.certificate.unwrap();
    assert_eq!(place(&certificate), "/abs/c.crt");
    assert_eq!(place(&key), "/etc/agent/../c.key");
    assert!(matches!(access.identity, Identity::Token(it) if it.reveal() == "t"));
    assert_eq!(access.impersonated.len(), 2);
}

/// As kubectl writes it.
#[test]
fn yaml_and_what_is_null_are_read() {
    let text = "
apiVersion: v1
clusters:
- cluster:
    insecure-skip-tls-verify: true
    server: https://a
  name: c
contexts:
- context:
    cluster: c
    user: u
  name: here
- name: empty
current-context: here
kind: Config
users: null
";
    let access = access(text, Path::new("/")).unwrap();
    assert!(access.is_insecure && access.authority.is_none());
    assert!(matches!(access.identity, Identity::Anonymous));
}

#[test]
fn what_stands_in_the_file_wins_over_what_it_names() {
    let cluster = json!({
        "server": "https://a", "certificate-authority": "ca.crt",
        "certificate-authority-data": BASE64_STANDARD.encode("CA"),
    });
    let user = json!({
        "client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ\n", "client-key": "k",
    });
    let access = of(&cluster, &user).unwrap();
    assert_eq!(place(&access.authority.unwrap()), "CA");
    let (certificate, key) = access.certificate.unwrap();
    assert_eq!(
        (place(&certificate), place(&key)),
        ("CERT".to_owned(), "KEY".to_owned())
    );
}

#[test]
fn who_asks_is_told_in_one_way() {
    let identity = |user: Json| of_user(&user).map(|it| it.identity).unwrap();
    assert!(matches!(identity(Json::Null), Identity::Anonymous));
    assert!(matches!(
        identity(json!({"token": "", "username": null})),
        Identity::Anonymous
    ));
    match identity(json!({"token": "t", "tokenFile": "token"})) {
        Identity::TokenFile { path, otherwise } => {
            assert_eq!(path, Path::new("/etc/agent/token"));
            assert_eq!(otherwise.unwrap().reveal(), "t");
        }
        _ => panic!("the file wins"),
    }
    match identity(json!({"username": "jane", "password": "p"})) {
        Identity::Basic { user, password } => {
            assert_eq!((&*user, password.reveal()), ("jane", "p"))
        }
        _ => panic!("basic"),
    }
    let exec = json!({"command": "x", "apiVersion": "client.authentication.k8s.io/v1"});
    assert!(matches!(identity(json!({"exec": exec})), Identity::Exec(_)));
    let both = json!({"exec": exec, "token": "t"});
    assert!(matches!(identity(both), Identity::Token(_)));
    let both = json!({"exec": exec, "client-certificate": "c", "client-key": "k"});
    assert!(matches!(identity(both), Identity::Anonymous));
}

#[test]
fn credentials_are_for_https_alone() {
    let user = json!({
        "token": "t", "client-certificate": "c", "client-key": "k", "as": "jane",
        "exec": {"command": ""},
    });
    let access = of(&json!({"server": "http://a"}), &user).unwrap();
    assert!(matches!(access.identity, Identity::Anonymous));
    assert!(access.certificate.is_none());
    assert_eq!(access.unsent, Some("token"));
    assert_eq!(access.impersonated.len(), 1, "which is no secret");
    assert!(of_user(&json!({"token": "t"})).unwrap().unsent.is_none());
    for (user, right) in [
        (json!({}), None),
        (json!({"token": "", "as": "jane"}), None),
        (json!({"tokenFile": "f"}), Some("tokenFile")),
        (json!({"password": "p"}), Some("password")),
        (
            json!({"client-certificate-data": "c"}),
            Some("client-certificate-data"),
        ),
        (json!({"exec": {}}), Some("exec")),
    ] {
        let access = of(&json!({"server": "http://a"}), &user).unwrap();
        assert_eq!(access.unsent, right, "{user}");
    }
}

#[test]
fn a_kubeconfig_that_leads_nowhere_says_which_field() {
    let good = file(&json!({"server": "https://a"}), &json!({}));
    for (pointer, value, right) in [
        (
            "/current-context",
            json!(null),
            "current-context: is missing",
        ),
        (
            "/current-context",
            json!("foo"),
            "current-context: names no context: foo",
        ),
        (
            "/contexts/1/context",
            json!(null),
            "current-context: names no context: here",
        ),
        (
            "/contexts/1/context/cluster",
            json!(""),
            "contexts.here.cluster: is missing",
        ),
        (
            "/contexts/1/context/cluster",
            json!("d"),
            "contexts.here.cluster: names no cluster: d",
        ),
        (
            "/clusters",
            json!(null),
            "contexts.here.cluster: names no cluster: c",
        ),
        (
            "/clusters/0/cluster",
            json!(null),
            "contexts.here.cluster: names no cluster: c",
        ),
        ("/clusters", json!(7), "it is no kubeconfig"),
    ] {
        let mut file = good.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        let why = access(&file.to_string(), Path::new("/")).err().unwrap();
        assert!(why.starts_with(right), "{pointer}: {why}");
    }
    for server in ["", "a:6443", "/a", "ftp://a", "https://", "https://a b"] {
        let right = if server.is_empty() {
            "server: is missing"
        } else {
            "server: is no URL: "
        };
        check_fault(of_cluster(&json!({"server": server})), right);
    }
    let with_user = json!({"server": "https://u:secret@a"});
    check_fault(of_cluster(&with_user), "server: has a user in it");
    let both = json!({
        "server": "https://a", "insecure-skip-tls-verify": true, "certificate-authority": "ca",
    });
    check_fault(
        of_cluster(&both),
        "insecure-skip-tls-verify: cannot be used with",
    );
    let data = json!({"server": "https://a", "certificate-authority-data": "secret!"});
    check_fault(
        of_cluster(&data),
        "certificate-authority-data: is not in base64",
    );
}

#[test]
fn a_user_that_cannot_be_used_says_which_field() {
    for (user, right) in [
        (json!({"auth-provider": {"name": "gcp"}}), "auth-provider: "),
        (
            json!({"token": "secret", "username": "u"}),
            "username: cannot be used with token",
        ),
        (
            json!({"tokenFile": "f", "password": "secret"}),
            "username: cannot be used with token",
        ),
        (json!({"client-certificate": "c"}), "client-key: is missing"),
        (
            json!({"client-key-data": "c2VjcmV0"}),
            "client-certificate: is missing",
        ),
        (
            json!({"client-certificate-data": "secret!", "client-key": "k"}),
            "client-certificate-data: is not in base64",
        ),
        (json!({"as-uid": "7"}), "as: is missing"),
        (
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}),
            "exec.command: is missing",
        ),
        (
            json!({"exec": {"command": "x"}}),
            "exec.apiVersion: is not known: \"\"",
        ),
        (
            json!({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            "exec.apiVersion: is not known",
        ),
        (
            json!({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Always"}}),
            "exec.interactiveMode: Always needs a terminal",
        ),
        (
            json!({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Now"}}),
            "exec.interactiveMode: is not known: Now",
        ),
    ] {
        check_fault(of_user(&user), right);
    }
}

#[test]
fn what_is_no_yaml_says_where_and_not_what() {
    for text in [
        "secret",
        "users:\n- user: {token: [secret]}",
        "clusters: [secret",
        "a: b: secret",
        "--- {}\n--- {secret: secret}",
    ] {
        check_fault(access(text, Path::new("/")), "it is no kubeconfig");
    }
    let why = access("clusters:\n- name: c\n  cluster: secret", Path::new("/")).err();
    assert_eq!(why.unwrap(), "it is no kubeconfig: line 3, column 12");
}
