#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

fn exec(fields: Value) -> Exec {
    let mut all = json!({"command": "x", "apiVersion": V1});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let fields: ExecFields = serde_json::from_value(all).unwrap();
    let cluster = ClusterInfo {
        server: Some("https://a".to_owned()),
        tls_server_name: None,
        insecure_skip_tls_verify: false,
        certificate_authority_data: None,
        proxy_url: None,
        config: Some(json!({"audience": "a"})),
    };
    Exec::new(&fields, cluster, Path::new("/etc/agent")).unwrap()
}

#[test]
fn a_command_with_a_slash_is_beside_the_kubeconfig() {
    for (command, right) in [
        ("aws", "aws"),
        ("./login", "/etc/agent/./login"),
        ("bin/login", "/etc/agent/bin/login"),
        ("/bin/login", "/bin/login"),
    ] {
        assert_eq!(exec(json!({"command": command})).command, Path::new(right));
    }
}

#[test]
fn a_program_is_told_of_the_cluster_if_it_wants_to_know() {
    let told = |of: &Exec| serde_json::from_str::<Value>(&of.info(Some(b"PEM"))).unwrap();
    let right = json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false}});
    assert_eq!(told(&exec(json!({}))), right);
    let cluster = json!({
        "server": "https://a", "insecure-skip-tls-verify": false,
        "certificate-authority-data": "UEVN", "config": {"audience": "a"},
    });
    let found = told(&exec(json!({"provideClusterInfo": true})));
    assert_eq!(found["spec"]["cluster"], cluster);
}

fn credential(status: Value) -> String {
    json!({"apiVersion": V1, "kind": "ExecCredential", "status": status}).to_string()
}

#[test]
fn what_it_prints_is_a_token_or_a_certificate() {
    let given = parse(credential(json!({"token": "t"})).as_bytes(), V1).unwrap();
    assert_eq!(given.token.unwrap().reveal(), "t");
    assert!(given.certificate.is_none() && given.until.is_none());
    let both = json!({
        "clientCertificateData": "C", "clientKeyData": "K", "token": null,
        "expirationTimestamp": "2100-01-02T03:04:05+06:00",
    });
    let given = parse(credential(both).as_bytes(), V1).unwrap();
    let client = given.certificate.unwrap();
    assert_eq!((&*client.certificate, &*client.key), (&b"C"[..], &b"K"[..]));
    assert!(given.until.is_some());
    let yaml = format!("kind: ExecCredential\napiVersion: {V1}\nstatus:\n  token: t\n");
    assert!(parse(yaml.as_bytes(), V1).is_ok());
}

#[test]
fn what_is_no_credential_says_why_and_not_what() {
    for (printed, right) in [
        ("secret".to_owned(), "what it prints is no ExecCredential"),
        (String::new(), "what it prints is no ExecCredential"),
        (
            "{\"token\": \"secret\"}".to_owned(),
            "what it prints is no ExecCredential",
        ),
        (
            credential(json!({"token": "secret"})).replace("/v1", "/v1beta1"),
            "its ExecCredential is not one of client.authentication.k8s.io/v1",
        ),
        (credential(json!(null)), "its ExecCredential has no status"),
        (
            credential(json!({"token": ["secret"]})),
            "what it prints is no ExecCredential",
        ),
        (
            credential(json!({})),
            "it gives neither a token nor a certificate",
        ),
        (
            credential(json!({"clientKeyData": "secret"})),
            "it gives clientKeyData without clientCertificateData",
        ),
        (
            credential(json!({"clientCertificateData": "secret", "token": "secret"})),
            "it gives clientCertificateData without clientKeyData",
        ),
        (
            credential(json!({"token": "secret", "expirationTimestamp": "secret"})),
            "its expirationTimestamp is no time of RFC 3339",
        ),
    ] {
        assert_eq!(
            parse(printed.as_bytes(), V1).err().unwrap(),
            right,
            "{printed}"
        );
    }
}

#[test]
fn credentials_are_had_anew_before_they_end_and_not_all_the_time() {
    let (wall, boottime) = (Duration::from_secs(1_700_000_000), Duration::from_secs(100));
    for (end, right) in [
        (1_700_003_600, 100 + 3540),
        (1_700_000_066, 100 + 6),
        (1_700_000_065, 100 + 5),
        (1_700_000_000, 100 + 5),
        (0, 100 + 5),
        (-1, 100 + 5),
    ] {
        let end = Timestamp::from_second(end).unwrap();
        assert_eq!(
            until(end, wall, boottime),
            Duration::from_secs(right),
            "{end}"
        );
    }
}
