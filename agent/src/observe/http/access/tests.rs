#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the tests make the files that the endpoint reads"
)]

use std::fs;

use hyper::header::HeaderValue;

use super::*;
use crate::observe::http::tests::tls::certificate;
use crate::sys::scratch::Scratch;

/// Files with a certificate, its key and the token `right`.
fn files(scratch: &Scratch) -> AccessFiles {
    let (certificate, key) = certificate();
    AccessFiles {
        tls: Some(TlsFiles {
            certificate: scratch.write("tls.crt", certificate),
            key: scratch.write("tls.key", key),
        }),
        bearer_token: Some(scratch.write("token", "right\n")),
    }
}

fn admits(access: &Access, authorization: &'static str) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static(authorization));
    access.admits(&headers)
}

#[test]
fn who_has_the_token_is_admitted_and_nobody_else() {
    let scratch = Scratch::new("token");
    let access = Access::new(files(&scratch)).unwrap();
    for (authorization, expected) in [
        ("Bearer right", true),
        ("bearer right", true),
        ("BEARER   right ", true),
        ("Bearer wrong", false),
        ("Bearer righ", false),
        ("Bearer rightt", false),
        ("Bearer ", false),
        ("Bearer", false),
        ("right", false),
        ("Basic right", false),
        ("", false),
    ] {
        assert_eq!(
            admits(&access, authorization),
            expected,
            "{authorization:?}"
        );
    }
    assert!(!access.admits(&HeaderMap::new()));
    let open = Access::new(AccessFiles::default()).unwrap();
    assert!(open.admits(&HeaderMap::new()));
    assert!(open.tls().is_none());
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_field() {
    let (other_certificate, other_key) = certificate();
    for (name, contents, expected) in [
        ("tls.crt", None, "metrics.tls.certificateFile: /"),
        ("tls.key", None, "metrics.tls.keyFile: /"),
        ("token", None, "metrics.bearerTokenFile: /"),
        (
            "tls.crt",
            Some(""),
            "has no certificate; right would be PEM",
        ),
        (
            "tls.crt",
            Some(other_key.as_str()),
            "has no certificate; right would be PEM",
        ),
        (
            "tls.crt",
            Some("-----BEGIN CERTIFICATE-----\n"),
            "is not in PEM: ",
        ),
        ("tls.key", Some("secret"), "metrics.tls.keyFile: "),
        (
            "tls.key",
            Some(other_certificate.as_str()),
            "has no private key; right would be PEM",
        ),
        (
            "tls.key",
            Some(other_key.as_str()),
            "tls.key cannot be used with ",
        ),
        (
            "token",
            Some(" \n"),
            "has no token; right would be one word",
        ),
        (
            "token",
            Some("two words"),
            "has no token; right would be one word",
        ),
        (
            "token",
            Some("t\u{f6}ken"),
            "has no token; right would be one word",
        ),
    ] {
        let scratch = Scratch::new("faults");
        let files = files(&scratch);
        fs::remove_file(scratch.path(name)).unwrap();
        if let Some(contents) = contents {
            scratch.write(name, contents);
        }
        let error = Access::new(files).map(|_| ()).unwrap_err();
        let message = chain(&error);
        assert!(message.contains(expected), "{name} {contents:?}: {message}");
    }
}

/// Whoever mends one is not sent back for the next.
#[test]
fn what_is_wrong_with_several_files_is_told_of_each() {
    let fields = |name: &str, contents: &str| {
        let scratch = Scratch::new("several");
        let files = files(&scratch);
        scratch.write("token", "");
        match contents {
            "" => fs::remove_file(scratch.path(name)).unwrap(),
            contents => drop(scratch.write(name, contents)),
        }
        let told = faults(&files);
        told.iter().map(AccessError::field).collect::<Vec<_>>()
    };
    assert_eq!(fields("tls.crt", "x"), [CERTIFICATE, TOKEN]);
    assert_eq!(fields("tls.crt", ""), [CERTIFICATE, TOKEN]);
    assert_eq!(fields("tls.key", "x"), [KEY, TOKEN]);
    let (_, other_key) = certificate();
    assert_eq!(fields("tls.key", &other_key), [KEY, TOKEN]);
    let scratch = Scratch::new("several");
    let files = files(&scratch);
    for name in ["tls.crt", "tls.key"] {
        scratch.write(name, "x");
    }
    let told = faults(&files);
    let fields: Vec<&str> = told.iter().map(AccessError::field).collect();
    assert_eq!(fields, [CERTIFICATE, KEY]);
}

#[test]
fn a_directory_or_a_huge_file_is_no_certificate() {
    let scratch = Scratch::new("kinds");
    let files = files(&scratch);
    let certificate = scratch.write("tls.crt", vec![b'x'; 2 << 20]);
    let error = Access::new(files.clone()).map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("is larger than 1 MiB"),
        "{error}"
    );
    fs::remove_file(&certificate).unwrap();
    fs::create_dir(&certificate).unwrap();
    let error = Access::new(files).map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("is not a regular file"),
        "{error}"
    );
}

#[test]
fn rotated_files_are_taken_over_when_they_fit() {
    let scratch = Scratch::new("rotation");
    let access = Access::new(files(&scratch)).unwrap();
    let first = access.tls().unwrap();
    access.reread();
    assert!(
        Arc::ptr_eq(&first, &access.tls().unwrap()),
        "nothing changed"
    );

    let (certificate, key) = certificate();
    scratch.write("tls.crt", certificate);
    scratch.write("token", "newer");
    access.reread();
    assert!(
        Arc::ptr_eq(&first, &access.tls().unwrap()),
        "the key is still the old one"
    );
    assert!(admits(&access, "Bearer right"));
    let told = access.last_fault.lock().unwrap().clone().unwrap();
    assert!(told.contains("tls.key cannot be used with "), "{told}");

    scratch.write("tls.key", key);
    access.reread();
    assert!(!Arc::ptr_eq(&first, &access.tls().unwrap()));
    assert!(admits(&access, "Bearer newer") && !admits(&access, "Bearer right"));
    assert_eq!(*access.last_fault.lock().unwrap(), None);

    fs::remove_file(scratch.path("token")).unwrap();
    access.reread();
    assert!(
        admits(&access, "Bearer newer"),
        "without a file the last token stays"
    );
    assert!(!access.admits(&HeaderMap::new()));
}
