//! The agent's way to an API server of the test: whom it believes, who it says it is, and what is on the way.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, Result, ensure};
use ballast::api_server::{
    ApiServer, FindKubelet, KubeletServer, Patience, Settings, Told, fault, probe,
};
use ballast::model::api_server::{ApiServerStatus, PodsFrom};
use ballast::model::check::Voucher;
use ballast::model::kube_event::{Outcome, WriteKind};
use ballast_tests::api_server::{FakeApiServer, Manner};
use ballast_tests::scratch;
use ballast_tests::tls::{Authority, Front, base64, pem};
use ballast_tests::wait::until;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use serde_json::{Value, json};

use super::api_server::write;

const EXEC_V1: &str = "client.authentication.k8s.io/v1";

/// The files of a client of an API server.
struct Scratch(scratch::Scratch);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        Ok(Self(scratch::Scratch::new(&format!("connect-{name}"))?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// A kubeconfig of one context.
    fn write(&self, cluster: Value, user: Value) -> Result<()> {
        let kubeconfig = json!({
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        Ok(fs::write(self.path("kubeconfig"), kubeconfig.to_string())?)
    }

    fn settings(&self) -> Settings {
        Settings {
            node: "node1".to_owned(),
            kubeconfig_file: Some(self.path("kubeconfig")),
            events: false,
            pods_from: PodsFrom::ApiServer,
        }
    }

    fn settings_of_kubelet(&self) -> Settings {
        Settings {
            pods_from: PodsFrom::Kubelet,
            ..self.settings()
        }
    }

    /// What the files say is wrong, without a question to anybody.
    fn fault(&self) -> Result<String> {
        Ok(fault(&self.settings())?
            .map(|it| it.why)
            .unwrap_or_default())
    }

    fn watch(&self) -> Result<Watching> {
        self.watch_with(Patience::default())
    }

    fn watch_with(&self, patience: Patience) -> Result<Watching> {
        let kubelet: FindKubelet = Arc::new(|| Err("there is none".to_owned()));
        self.ask_with(self.settings(), patience, kubelet)
    }

    fn ask(&self, settings: Settings, kubelet: FindKubelet) -> Result<Watching> {
        self.ask_with(settings, Patience::default(), kubelet)
    }

    fn ask_with(
        &self,
        settings: Settings,
        patience: Patience,
        kubelet: FindKubelet,
    ) -> Result<Watching> {
        let (sender, told) = mpsc::channel();
        let sink = move |told| sender.send(told).unwrap_or_default();
        Ok(Watching {
            server: ApiServer::start_with(settings, patience, kubelet, sink)?,
            told,
            states: Vec::new(),
            n_outcomes: 0,
            n_written: 0,
        })
    }
}

/// An agent's watch, and all that it told of the API server.
struct Watching {
    server: ApiServer,
    told: Receiver<Told>,
    states: Vec<ApiServerStatus>,
    /// Events of which it was told what became of them, and those that the API server has taken.
    n_outcomes: usize,
    n_written: usize,
}

impl Watching {
    fn look(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::State(state) => self.states.push(state),
                Told::Written(outcome) => {
                    self.n_outcomes += 1;
                    self.n_written += usize::from(outcome == Outcome::Written);
                }
                _ => {}
            }
        }
    }

    /// Another one, as often as it takes until the API server takes it.
    fn write_event(&mut self) -> Result<()> {
        let n = self.n_written;
        let id = u64::try_from(n)?;
        let namespace = format!("of-{n}");
        until("it is written", || {
            let n_outcomes = self.n_outcomes;
            self.server
                .write(write(WriteKind::Create, &namespace, id, 1));
            until("it is answered", || {
                self.look();
                ensure!(self.n_outcomes > n_outcomes, "{:?}", self.states);
                Ok(())
            })?;
            ensure!(self.n_written > n, "{:?}", self.states);
            Ok(())
        })
    }

    fn wait_followed(&mut self) -> Result<()> {
        until("it is followed", || {
            self.look();
            let last = self.states.last();
            let is_followed = last.is_some_and(ApiServerStatus::is_followed);
            ensure!(is_followed, "{:?}", self.states);
            Ok(())
        })
    }

    fn wait_fault(&mut self, what: &str) -> Result<()> {
        until(what, || {
            let faults = self.faults();
            ensure!(faults.iter().any(|it| it.contains(what)), "{faults:?}");
            Ok(())
        })
    }

    /// But for that of watches that a test itself has cut.
    fn faults(&mut self) -> Vec<&str> {
        self.look();
        let faults = self.states.iter().filter_map(|it| it.fault.as_deref());
        let is_of_cuts = |it: &str| it.starts_with("watch pods: it ends at once each time, ");
        faults.filter(|it| !is_of_cuts(it)).collect()
    }
}

/// An API server with TLS, and who vouches for it.
struct Secured {
    server: FakeApiServer,
    front: Front,
    authority: Authority,
}

impl Secured {
    fn start() -> Result<Self> {
        let server = FakeApiServer::start(Manner::StreamsLists)?;
        let authority = Authority::new()?;
        let front = Front::start(server.address, authority.vouch("127.0.0.1")?, None)?;
        Ok(Self {
            server,
            front,
            authority,
        })
    }

    /// Of a kubeconfig.
    fn cluster(&self) -> Value {
        let authority = base64(&self.authority.pem());
        json!({"server": self.front.url(), "certificate-authority-data": authority})
    }
}

#[test]
fn the_server_is_who_its_certificate_says() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let (right, wrong) = (Authority::new()?, Authority::new()?);
    let front = Front::start(server.address, right.vouch("127.0.0.1")?, None)?;
    let other = Front::start(server.address, right.vouch("api.example")?, None)?;
    let scratch = Scratch::new("tls")?;
    fs::write(scratch.path("ca.crt"), right.pem())?;
    let (right, wrong) = (base64(&right.pem()), base64(&wrong.pem()));
    for (cluster, is_believed) in [
        (
            json!({"server": front.url(), "certificate-authority-data": right}),
            true,
        ),
        (
            json!({"server": front.url(), "certificate-authority": "ca.crt"}),
            true,
        ),
        (
            json!({"server": front.url(), "certificate-authority-data": wrong}),
            false,
        ),
        (
            json!({"server": front.url(), "insecure-skip-tls-verify": true}),
            true,
        ),
        (
            json!({"server": other.url(), "certificate-authority": "ca.crt"}),
            false,
        ),
        (
            json!({
                "server": other.url(), "certificate-authority": "ca.crt",
                "tls-server-name": "api.example",
            }),
            true,
        ),
        (
            json!({
                "server": front.url(), "certificate-authority": "ca.crt",
                "tls-server-name": "api.example",
            }),
            false,
        ),
    ] {
        let asked = server.questions().len();
        scratch.write(cluster.clone(), json!({"token": "t"}))?;
        let mut watching = scratch.watch()?;
        match is_believed {
            true => watching.wait_followed(),
            false => watching.wait_fault("invalid peer certificate"),
        }
        .with_context(|| cluster.to_string())?;
        let is_asked = server.questions().len() > asked;
        ensure!(
            is_asked == is_believed,
            "who is not believed hears no token"
        );
    }
    Ok(())
}

/// One that serves here; `certificates`: what is known to be in its files.
fn kubelet(front: &Front, certificates: Option<&str>) -> FindKubelet {
    let address = front.address;
    let certificates = certificates.map(|it| it.as_bytes().to_vec());
    Arc::new(move || {
        Ok(KubeletServer {
            address,
            certificates: certificates
                .clone()
                .ok_or("its files are not known".to_owned()),
        })
    })
}

#[test]
fn a_kubelet_is_known_by_its_file_or_by_the_cluster() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let (cluster, itself, stranger) = (Authority::new()?, Authority::new()?, Authority::new()?);
    let front = |of: &Authority, name: &str| -> Result<(Front, String)> {
        let certificate = of.vouch(name)?;
        let file = pem("CERTIFICATE", &certificate.0) + &pem("PRIVATE KEY", &certificate.1);
        Ok((Front::start(server.address, certificate, None)?, file))
    };
    // As kubelet signs one itself: its name is that of the host.
    let (own, own_file) = front(&itself, "host-of-node1")?;
    let (of_node, _) = front(&cluster, "node1")?;
    let (of_loopback, _) = front(&cluster, "127.0.0.1")?;
    let (of_another, another_file) = front(&cluster, "node2")?;
    let (strange, _) = front(&stranger, "node1")?;
    let scratch = Scratch::new("kubelet")?;
    let known = json!({
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": base64(&cluster.pem()),
    });
    let any = json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
    for (what, front, file, of, voucher) in [
        (
            "in its file",
            &own,
            Some(&own_file),
            &known,
            Some(Voucher::File),
        ),
        (
            "with no authority",
            &own,
            Some(&own_file),
            &any,
            Some(Voucher::File),
        ),
        (
            "of the node",
            &of_node,
            None,
            &known,
            Some(Voucher::Authority),
        ),
        (
            "of the node, with another file",
            &of_node,
            Some(&own_file),
            &known,
            Some(Voucher::Authority),
        ),
        (
            "of every loopback address",
            &of_loopback,
            None,
            &known,
            None,
        ),
        ("of another node", &of_another, None, &known, None),
        (
            "in the file of another",
            &own,
            Some(&another_file),
            &known,
            None,
        ),
        ("of nobody", &own, None, &known, None),
        ("of somebody else", &strange, None, &known, None),
        (
            "whatever is taken of the API server",
            &of_node,
            None,
            &any,
            None,
        ),
    ] {
        let asked = server.questions().len();
        scratch.write(of.clone(), json!({"token": "t"}))?;
        let find = || kubelet(front, file.map(String::as_str));
        let facts = probe(&scratch.settings_of_kubelet(), find())?;
        ensure!(facts.voucher == voucher, "{what}: {facts:?}");
        let mut watching = scratch.ask(scratch.settings_of_kubelet(), find())?;
        match voucher {
            Some(_) => watching.wait_followed(),
            None => {
                let why = if file.is_some() {
                    "by its certificate: it is in none of kubelet's files; "
                } else {
                    "by its certificate: its files are not known; "
                };
                watching.wait_fault(why)
            }
        }
        .context(what)?;
        let is_asked = server.questions().len() > asked;
        ensure!(
            is_asked == voucher.is_some(),
            "{what}: who is not believed hears no token"
        );
    }
    Ok(())
}

/// It would answer by the rights of the agent, since it takes nobody for somebody else.
#[test]
fn a_kubelet_is_not_asked_in_the_name_of_another() -> Result<()> {
    let server = Secured::start()?;
    let scratch = Scratch::new("kubelet-as")?;
    scratch.write(server.cluster(), json!({"token": "t", "as": "jane"}))?;
    let mut watching = scratch.ask(scratch.settings_of_kubelet(), kubelet(&server.front, None))?;
    watching.wait_fault("as: kubelet takes nobody for somebody else")?;
    ensure!(server.server.questions().is_empty(), "it was asked");
    Ok(())
}

#[test]
fn a_client_is_known_by_its_certificate() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let authority = Authority::new()?;
    let of_server = authority.vouch("127.0.0.1")?;
    let front = Front::start(server.address, of_server, Some(&authority))?;
    let (certificate, key) = authority.vouch_pem("agent")?;
    let (_, other_key) = authority.vouch_pem("agent")?;
    let (stranger, strangers_key) = Authority::new()?.vouch_pem("agent")?;
    let scratch = Scratch::new("client")?;
    fs::write(scratch.path("client.crt"), &certificate)?;
    fs::write(scratch.path("client.key"), &key)?;
    let credential = json!({
        "apiVersion": EXEC_V1, "kind": "ExecCredential",
        "status": {"clientCertificateData": certificate, "clientKeyData": key},
    });
    fs::write(scratch.path("credential"), credential.to_string())?;
    let program = program(&format!("cat {}", scratch.path("credential").display()));
    let cluster = json!({
        "server": front.url(), "certificate-authority-data": base64(&authority.pem()),
    });
    for (user, fault) in [
        (
            json!({"client-certificate": "client.crt", "client-key": "client.key"}),
            "",
        ),
        (
            json!({
                "client-certificate-data": base64(&certificate),
                "client-key-data": base64(&key),
            }),
            "",
        ),
        (program, ""),
        (json!({}), "watch pods: "),
        (
            json!({
                "client-certificate-data": base64(&stranger),
                "client-key-data": base64(&strangers_key),
            }),
            "watch pods: ",
        ),
        (
            json!({
                "client-certificate": "client.crt", "client-key-data": base64(&other_key),
            }),
            "client-key-data: cannot be used with client-certificate: ",
        ),
    ] {
        let asked = server.questions().len();
        scratch.write(cluster.clone(), user)?;
        let mut watching = scratch.watch()?;
        match fault {
            "" => watching.wait_followed()?,
            fault => {
                watching.wait_fault(fault)?;
                ensure!(server.questions().len() == asked, "nobody asks");
            }
        }
    }
    Ok(())
}

/// Takes every client that has a certificate, and keeps the certificates.
#[derive(Debug, Default)]
struct AllClients(Mutex<Vec<CertificateDer<'static>>>);

impl ClientCertVerifier for AllClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(certificate.clone().into_owned());
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::ring::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// One of X.509 v1 and its key, as `openssl x509 -req` makes it for who asks for no extension. rcgen makes none.
fn of_version_1() -> Result<(CertificateDer<'static>, Vec<u8>)> {
    let key = KeyPair::generate()?;
    // ecdsa-with-SHA256
    let algorithm = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let algorithm = der(0x30, &[&algorithm]);
    let time = |text: &str| der(0x17, &[text.as_bytes()]);
    let validity = der(0x30, &[&time("200101000000Z"), &time("490101000000Z")]);
    let (number, nobody) = (der(0x02, &[&[1]]), der(0x30, &[]));
    let public_key = key.subject_public_key_info();
    let parts = [
        &number,
        &algorithm,
        &nobody,
        &validity,
        &nobody,
        &public_key,
    ];
    let certificate = der(0x30, &parts.map(Vec::as_slice));
    let signature = der(0x03, &[&[0], &key.sign(&certificate)?]);
    let signed = der(0x30, &[&certificate, &algorithm, &signature]);
    Ok((CertificateDer::from(signed), key.serialize_der()))
}

/// A value of ASN.1 with its length.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let digits = length.iter().copied().skip_while(|it| *it == 0);
    let mut all = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length @ ..128) => all.push(length),
        _ => {
            all.push(0x80 | u8::try_from(digits.clone().count()).unwrap_or_default());
            all.extend(digits);
        }
    }
    all.extend(content);
    all
}

/// The server reads that of the client, and nobody that of a server that may be anybody.
#[test]
fn certificates_of_x509_v1_are_used() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let clients = Arc::new(AllClients::default());
    let front = Front::start_for(server.address, of_version_1()?, Some(clients.clone()))?;
    let (certificate, key) = of_version_1()?;
    let scratch = Scratch::new("v1")?;
    let cluster = json!({"server": front.url(), "insecure-skip-tls-verify": true});
    let user = json!({
        "client-certificate-data": base64(&pem("CERTIFICATE", &certificate)),
        "client-key-data": base64(&pem("PRIVATE KEY", &key)),
    });
    scratch.write(cluster, user)?;
    scratch.watch()?.wait_followed()?;
    let seen = clients.0.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(seen.contains(&certificate), "{seen:?}");
    Ok(())
}

/// A program of a shell that gives credentials.
fn program(script: &str) -> Value {
    json!({"exec": {
        "apiVersion": EXEC_V1, "interactiveMode": "Never",
        "command": "/bin/sh", "args": ["-c", script],
    }})
}

/// A script that gives a token, which the shell completes.
fn gives(token: &str, more: &str) -> String {
    format!(
        "echo \"{{'apiVersion': '{EXEC_V1}', 'kind': 'ExecCredential', 'status': {{'token': '{token}'{more}}}}}\""
    )
}

/// A script that is counted in a file, and gives the token `run-N` the N-th time.
fn counted(count: &Path, more: &str) -> String {
    let file = count.display();
    let token = format!("run-$(wc -l < {file})");
    counting(count) + &gives(&token, more)
}

fn counting(count: &Path) -> String {
    format!("echo >> {}; ", count.display())
}

fn n_runs(count: &Path) -> Result<usize> {
    Ok(fs::read_to_string(count)?.lines().count())
}

#[test]
fn each_question_says_who_asks() -> Result<()> {
    let secured = Secured::start()?;
    let server = &secured.server;
    let scratch = Scratch::new("asks")?;
    fs::write(scratch.path("token"), "of-a-file\n")?;
    let script = scratch.path("login");
    fs::write(&script, format!("#!/bin/sh\n{}\n", gives("of-$1-$WHO", "")))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let login = json!({"exec": {
        "apiVersion": EXEC_V1, "command": "./login", "args": ["a"],
        "env": [{"name": "WHO", "value": "jane"}],
    }});
    let told =
        |part: &str| format!("case $KUBERNETES_EXEC_INFO in *{part}*) ;; *) exit 1;; esac; ");
    let script = [told("127.0.0.1"), told("audience"), gives("told", "")].concat();
    let mut asks = program(&script);
    asks["exec"]["provideClusterInfo"] = json!(true);
    let token = |token: &str| vec![format!("Bearer {token}")];
    for (user, right) in [
        (json!({}), Vec::new()),
        (json!({"token": "of-a-test"}), token("of-a-test")),
        (json!({"tokenFile": "token"}), token("of-a-file")),
        (
            json!({"tokenFile": "token", "token": "t"}),
            token("of-a-file"),
        ),
        (json!({"tokenFile": "none", "token": "t"}), token("t")),
        (
            json!({"username": "jane", "password": "p"}),
            vec!["Basic amFuZTpw".to_owned()],
        ),
        (login, token("of-a-jane")),
        (asks, token("told")),
    ] {
        let mut cluster = secured.cluster();
        cluster["extensions"] = json!([{
            "name": "client.authentication.k8s.io/exec", "extension": {"audience": 7},
        }]);
        scratch.write(cluster, user.clone())?;
        scratch.watch()?.wait_followed()?;
        let said = server.headers("authorization").pop();
        ensure!(said.as_ref() == Some(&right), "{user}: {said:?}");
    }
    let user = json!({"token": "t", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"]});
    scratch.write(secured.cluster(), user)?;
    scratch.watch()?.wait_followed()?;
    for (name, right) in [
        ("impersonate-user", &["jane"][..]),
        ("impersonate-uid", &["7"]),
        ("impersonate-group", &["a", "b"]),
    ] {
        let said = server.headers(name).pop().unwrap_or_default();
        ensure!(said == right, "{name}: {said:?}");
    }
    Ok(())
}

/// Nobody on the way may read them, so no program is run for them, and no file read.
#[test]
fn credentials_are_not_sent_without_tls() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let scratch = Scratch::new("cleartext")?;
    let ran = scratch.path("ran");
    let script = format!("touch {}; {}", ran.display(), gives("of-a-program", ""));
    for user in [
        json!({"token": "t"}),
        json!({"tokenFile": "none"}),
        json!({"username": "jane", "password": "p"}),
        json!({"client-certificate": "none", "client-key": "none"}),
        program(&script),
    ] {
        let cluster = json!({"server": format!("http://{}", server.address)});
        scratch.write(cluster, user.clone())?;
        scratch.watch()?.wait_followed()?;
        let said = server.headers("authorization").pop();
        ensure!(said == Some(Vec::new()), "{user}: {said:?}");
    }
    ensure!(!ran.exists(), "it was run");
    Ok(())
}

/// Cuts one watch after the other until one begins with the token.
fn wait_token(server: &FakeApiServer, token: &str) -> Result<()> {
    until(token, || {
        if server.n_watches() > 0 {
            server.cut();
        }
        let said = server.headers("authorization");
        ensure!(said.contains(&vec![format!("Bearer {token}")]), "{said:?}");
        Ok(())
    })
}

#[test]
fn a_token_that_is_replaced_is_used_without_a_fault() -> Result<()> {
    let secured = Secured::start()?;
    let scratch = Scratch::new("rotated")?;
    fs::write(scratch.path("token"), "old")?;
    scratch.write(secured.cluster(), json!({"tokenFile": "token"}))?;
    let mut watching = scratch.watch()?;
    watching.wait_followed()?;
    fs::write(scratch.path("next"), "new")?;
    fs::rename(scratch.path("next"), scratch.path("token"))?;
    wait_token(&secured.server, "new")?;
    ensure!(watching.faults().is_empty(), "{:?}", watching.states);
    Ok(())
}

/// Once before a token ends, and not all the time where it has ended already.
#[test]
fn a_program_is_run_anew_before_its_credentials_end() -> Result<()> {
    let secured = Secured::start()?;
    let scratch = Scratch::new("expires")?;
    let count = scratch.path("runs");
    let more = ", 'expirationTimestamp': '2020-01-02T03:04:05Z'";
    scratch.write(secured.cluster(), program(&counted(&count, more)))?;
    let mut watching = scratch.watch()?;
    watching.wait_followed()?;
    wait_token(&secured.server, "run-2")?;
    ensure!(watching.faults().is_empty(), "{:?}", watching.states);
    let n_runs = n_runs(&count)?;
    let n_asked = secured.server.questions().len();
    ensure!(n_asked > n_runs, "{n_runs} runs, {n_asked} watches");
    Ok(())
}

/// What writes Events has a connection of its own, and what it gives serves that too.
#[test]
fn a_program_is_run_once_for_all_connections() -> Result<()> {
    let secured = Secured::start()?;
    let server = &secured.server;
    let scratch = Scratch::new("once")?;
    let count = scratch.path("runs");
    scratch.write(secured.cluster(), program(&counted(&count, "")))?;
    server.behave(Manner::Forbids);
    let mut watching = scratch.watch_with(Patience {
        last_pause: Duration::from_secs(1),
        ..Patience::default()
    })?;
    until("it was refused", || {
        let n = server.questions().len();
        ensure!(n >= 4, "{n}");
        Ok(())
    })?;
    server.behave(Manner::StreamsLists);
    watching.wait_followed()?;
    watching.write_event()?;
    ensure!(n_runs(&count)? == 1, "{} runs", n_runs(&count)?);
    // Another program is another.
    scratch.write(secured.cluster(), program(&gives("another", "")))?;
    let n_faults = watching.faults().len();
    server.behave(Manner::Forbids);
    server.cut();
    until("it is refused", || {
        let n = watching.faults().len();
        ensure!(n > n_faults, "{n}");
        Ok(())
    })?;
    server.behave(Manner::StreamsLists);
    wait_token(server, "another")
}

#[test]
fn credentials_that_are_refused_are_had_anew_once() -> Result<()> {
    let secured = Secured::start()?;
    let server = &secured.server;
    let scratch = Scratch::new("refused")?;
    let count = scratch.path("runs");
    scratch.write(secured.cluster(), program(&counted(&count, "")))?;
    server.take_only("Bearer run-2");
    let mut watching = scratch.watch()?;
    watching.wait_fault("HTTP status 401")?;
    watching.wait_followed()?;
    watching.write_event()?;
    ensure!(n_runs(&count)? == 2, "{} runs", n_runs(&count)?);
    // Who writes Events notices it, too, and what is watched goes on with the same.
    server.take_only("Bearer run-3");
    watching.write_event()?;
    ensure!(n_runs(&count)? == 3, "{} runs", n_runs(&count)?);
    server.cut();
    until("the watch has it", || {
        let said = server.headers("authorization").into_iter();
        let mut asked = server.questions().into_iter().zip(said);
        let of_watch = asked
            .any(|(question, said)| question.contains("watch=true") && said == ["Bearer run-3"]);
        ensure!(of_watch, "{:?}", server.headers("authorization"));
        Ok(())
    })?;
    ensure!(n_runs(&count)? == 3, "{} runs", n_runs(&count)?);
    Ok(())
}

/// They are to be had anew a minute before they end.
#[test]
fn a_program_that_fails_while_what_it_gave_is_good_is_no_fault() -> Result<()> {
    let secured = Secured::start()?;
    let scratch = Scratch::new("good")?;
    let count = scratch.path("runs");
    let more = ", 'expirationTimestamp': '$(date -u -d +64seconds +%Y-%m-%dT%H:%M:%SZ)'";
    let once = format!("test $(wc -l < {}) = 1 || exit 1; ", count.display());
    let (counting, giving) = (counting(&count), gives("run-1", more));
    let script = [counting, once, giving].concat();
    scratch.write(secured.cluster(), program(&script))?;
    let mut watching = scratch.watch()?;
    watching.wait_followed()?;
    let server = &secured.server;
    let cut = || {
        if server.n_watches() > 0 {
            server.cut();
        }
        server.questions().len()
    };
    until("it is run again", || {
        cut();
        ensure!(n_runs(&count)? > 1, "{} runs", n_runs(&count)?);
        Ok(())
    })?;
    let n_asked = cut();
    until("it is asked again", || {
        let n = cut();
        ensure!(n > n_asked, "{n}");
        Ok(())
    })?;
    ensure!(watching.faults().is_empty(), "{:?}", watching.states);
    let mut said = server.headers("authorization").into_iter();
    ensure!(said.all(|it| it == ["Bearer run-1"]), "{said:?}");
    Ok(())
}

/// What writes Events has a connection of its own.
#[test]
fn a_program_is_run_anew_for_what_is_written_too() -> Result<()> {
    let secured = Secured::start()?;
    let server = &secured.server;
    let scratch = Scratch::new("writes")?;
    let more = ", 'expirationTimestamp': '2020-01-02T03:04:05Z'";
    scratch.write(secured.cluster(), program(&gives("run-$$", more)))?;
    let mut watching = scratch.watch()?;
    watching.wait_followed()?;
    until("another token writes", || {
        watching.write_event()?;
        let said = server.headers("authorization").into_iter();
        let asked = server.questions().into_iter().zip(said);
        let of_writes = asked.filter(|(question, _)| question.contains("/events"));
        let tokens: BTreeSet<Vec<String>> = of_writes.map(|(_, token)| token).collect();
        ensure!(tokens.len() > 1, "{tokens:?}");
        Ok(())
    })
}

/// And nobody is shown what it printed.
#[test]
fn a_program_that_fails_says_how() -> Result<()> {
    let secured = Secured::start()?;
    let scratch = Scratch::new("fails")?;
    for (user, why) in [
        (
            program("echo secret; echo secret >&2; exit 3"),
            "it ended with exit status: 3",
        ),
        (program("echo secret; kill -9 $$"), "signal: 9"),
        (
            program("echo secret"),
            "what it prints is no ExecCredential",
        ),
        (program("read secret"), "it ended with exit status: 1"),
        (
            program("while :; do echo secret; done"),
            "it prints more than 1048576 bytes",
        ),
        (
            json!({"exec": {"apiVersion": EXEC_V1, "command": "/none/secret"}}),
            "does not start: No such file",
        ),
    ] {
        scratch.write(secured.cluster(), user)?;
        let mut watching = scratch.watch()?;
        watching.wait_fault(why)?;
        let file = scratch.path("kubeconfig");
        let right = format!(
            "{}: the program of `exec` gives no credentials: ",
            file.display()
        );
        for fault in watching.faults() {
            ensure!(fault.starts_with(&right), "{fault}");
            let shown = fault.replace("/none/secret", "");
            ensure!(!shown.contains("secret"), "{fault}");
        }
    }
    let asked = secured.server.questions();
    ensure!(asked.is_empty(), "{asked:?}");
    Ok(())
}

/// One that hangs, with what it started; and one whom nobody waits for any more.
#[test]
fn no_program_is_left_running() -> Result<()> {
    let secured = Secured::start()?;
    let scratch = Scratch::new("hangs")?;
    let pids = scratch.path("pids");
    let script = format!(
        "sleep 1000 & echo $! $$ > {0}.new; mv {0}.new {0}; wait",
        pids.display()
    );
    scratch.write(secured.cluster(), program(&script))?;
    for is_waited_for in [true, false] {
        let _ = fs::remove_file(&pids);
        let mut watching = scratch.watch()?;
        let started = until("it runs", || Ok(fs::read_to_string(&pids)?))?;
        ensure!(started.split_whitespace().all(runs), "{started}");
        if is_waited_for {
            watching.wait_fault("gives no credentials: it has not ended within")?;
        } else {
            drop(watching);
        }
        until("it is gone", || {
            ensure!(!started.split_whitespace().any(runs), "{started}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A process that has ended may wait for its parent to hear of it.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, it)| it);
    state.is_some_and(|it| !it.starts_with(['Z', 'X']))
}

/// A proxy that leads wherever it is asked for to one address, and keeps what it was asked for.
struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                // One that goes away is nothing to tell.
                thread::spawn(move || tunnel(client, to, &kept).ok());
            }
        });
        Ok(Self { address, asked })
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tunnel(mut client: TcpStream, to: SocketAddr, kept: &Mutex<Vec<String>>) -> io::Result<()> {
    // The client says nothing more until it is answered.
    let lines = BufReader::new(client.try_clone()?).lines();
    let asked: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|it| !it.is_empty())
        .collect();
    kept.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(asked.join("\n"));
    let mut server = TcpStream::connect(to)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut back_from, mut back_to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut back_from, &mut back_to));
    io::copy(&mut client, &mut server).map(|_| ())
}

/// Nobody but the proxy knows where the server of that name is.
#[test]
fn a_server_is_reached_through_its_proxy() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let authority = Authority::new()?;
    let front = Front::start(server.address, authority.vouch("api.invalid")?, None)?;
    let scratch = Scratch::new("proxy")?;
    for (url, to, connect) in [
        (
            "http://api.invalid",
            server.address,
            "CONNECT api.invalid:80 ",
        ),
        (
            "https://api.invalid",
            front.address,
            "CONNECT api.invalid:443 ",
        ),
        (
            "https://api.invalid:6443",
            front.address,
            "CONNECT api.invalid:6443 ",
        ),
    ] {
        let proxy = Proxy::start(to)?;
        let cluster = json!({
            "server": url, "certificate-authority-data": base64(&authority.pem()),
            "proxy-url": format!("http://agent:p%40ss@{}", proxy.address),
        });
        scratch.write(cluster, json!({"token": "t"}))?;
        scratch.watch()?.wait_followed()?;
        let asked = proxy.asked().concat();
        ensure!(asked.starts_with(connect), "{asked}");
        // agent:p@ss
        let authorization = "Proxy-Authorization: Basic YWdlbnQ6cEBzcw==";
        ensure!(asked.contains(authorization), "{asked}");
        ensure!(!asked.contains("Bearer"), "{asked}");
    }
    Ok(())
}

#[test]
fn a_server_can_be_below_a_path() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    server.move_below("/k8s/clusters/c-1");
    let scratch = Scratch::new("below")?;
    let url = format!("http://{}/k8s/clusters/c-1/", server.address);
    scratch.write(json!({"server": url}), json!({"token": "t"}))?;
    let mut watching = scratch.watch()?;
    watching.wait_followed()?;
    let told = watching.states.pop().and_then(|it| it.server);
    ensure!(
        told.as_deref() == Some(url.trim_end_matches('/')),
        "{told:?}"
    );
    Ok(())
}

#[test]
fn files_that_lead_nowhere_are_a_fault_before_anybody_is_asked() -> Result<()> {
    let scratch = Scratch::new("nowhere")?;
    let file = scratch.path("kubeconfig");
    let fault = |right: &str| {
        let fault = scratch.fault()?;
        let right = format!("{}: {right}", file.display());
        ensure!(fault.starts_with(&right), "{fault}, not {right}");
        ensure!(!fault.contains("secret"), "{fault}");
        anyhow::Ok(())
    };
    fault("No such file")?;
    for (text, right) in [
        ("", "current-context: is missing"),
        ("users: [secret", "it is no kubeconfig"),
        (
            "current-context: foo",
            "current-context: names no context: foo",
        ),
    ] {
        fs::write(&file, text)?;
        fault(right)?;
    }
    let server = json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
    let believing = |field: &str, whom: &str| json!({"server": "https://127.0.0.1:1", field: whom});
    let with = |name: &str, value: Value| {
        let mut cluster = server.clone();
        cluster[name] = value;
        cluster
    };
    for (cluster, user, right) in [
        (json!({}), json!({}), "server: is missing"),
        (
            believing("certificate-authority", "none"),
            json!({}),
            "certificate-authority: ",
        ),
        (
            believing("certificate-authority-data", &base64("secret")),
            json!({}),
            "certificate-authority-data: has no certificate",
        ),
        (
            with("proxy-url", json!("socks5://u:secret@p")),
            json!({}),
            "proxy-url: is a proxy of socks5",
        ),
        (
            with("tls-server-name", json!("a b")),
            json!({}),
            "tls-server-name: is no name: a b",
        ),
        (
            server.clone(),
            json!({"token": "a secret"}),
            "token: has no token",
        ),
        (server.clone(), json!({"tokenFile": "none"}), "tokenFile: "),
        (
            server.clone(),
            json!({"client-certificate-data": base64("secret"), "client-key-data": base64("secret")}),
            "client-certificate-data: has no certificate",
        ),
        (
            server.clone(),
            json!({"auth-provider": {"name": "gcp"}}),
            "auth-provider: ",
        ),
    ] {
        scratch.write(cluster, user)?;
        fault(right)?;
    }
    // A program is run when its credentials are needed.
    let ran = scratch.path("ran");
    scratch.write(server, program(&format!("touch {}", ran.display())))?;
    let found = scratch.fault()?;
    ensure!(found.is_empty() && !ran.exists(), "{found}");
    Ok(())
}
