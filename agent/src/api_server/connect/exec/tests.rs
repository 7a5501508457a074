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
    assert_eq!(given.authorization.unwrap(), "Bearer t");
    assert!(given.certificate.is_none() && given.ends.is_none());
    let made = rcgen::generate_simple_self_signed(["agent".to_owned()]).unwrap();
    let pem = |label: &str, der: &[u8]| {
        let base64 = BASE64_STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
    };
    let certificate = pem("CERTIFICATE", made.cert.der());
    let key = pem("PRIVATE KEY", &made.signing_key.serialize_der());
    let both = json!({
        "clientCertificateData": certificate, "clientKeyData": key, "token": null,
        "expirationTimestamp": "2100-01-02T03:04:05+06:00",
    });
    let given = parse(credential(both).as_bytes(), V1).unwrap();
    assert!(given.ends.is_some() && !given.has_ended());
    let client = given.certificate.unwrap();
    assert_eq!(client.certificate, certificate.into_bytes());
    assert_eq!(client.key, key.into_bytes());
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
            credential(json!({"token": "a secret"})),
            "token: has no token; right would be one word of visible ASCII characters",
        ),
        (
            credential(json!({"clientCertificateData": "secret", "clientKeyData": "secret"})),
            "clientCertificateData: has no certificate; right would be PEM with BEGIN CERTIFICATE",
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
    for (end, renew, right) in [
        (1_700_003_600, 3540, 3600),
        (1_700_000_066, 6, 66),
        (1_700_000_065, 5, 65),
        (1_700_000_030, 5, 30),
        (1_700_000_000, 5, 5),
        (0, 5, 5),
        (-1, 5, 5),
    ] {
        let end = Timestamp::from_second(end).unwrap();
        let right = Ends {
            renew: boottime + Duration::from_secs(renew),
            end: boottime + Duration::from_secs(right),
        };
        assert_eq!(ends(end, wall, boottime), right, "{end}");
    }
}

#[test]
fn another_program_or_another_cluster_is_another() {
    let of = |fields: Value| exec(fields);
    assert!(of(json!({})) == of(json!({})));
    for other in [
        json!({"command": "y"}),
        json!({"args": ["a"]}),
        json!({"env": [{"name": "N", "value": "v"}]}),
        json!({"provideClusterInfo": true}),
    ] {
        assert!(of(json!({})) != of(other.clone()), "{other}");
    }
    let mut elsewhere = of(json!({}));
    elsewhere.cluster.server = Some("https://b".to_owned());
    assert!(of(json!({})) != elsewhere);
}
