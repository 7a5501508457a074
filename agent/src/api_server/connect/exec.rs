//! The program of `exec` in a kubeconfig, which gives credentials: started without a terminal, with a bound in time and
//! in size, and never left running.
//!
//! Its contract is staging/src/k8s.io/client-go/pkg/apis/clientauthentication/v1/types.go.
//!
//! Invariant: nobody is shown what it printed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderValue;
use jiff::Timestamp;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Handle;

use super::credentials::{Secret, bearer};
use super::kubeconfig::or_empty;
use super::tls::ClientCertificate;
use super::worker::{Late, Worker};
use crate::sys::clock;

/// To end, with all that it prints. Others ask a server of theirs in a second or two.
const LONGEST: Duration = Duration::from_secs(10);

/// To be gone once it was killed.
const KILLED: Duration = Duration::from_secs(1);

/// Bytes that it may print. A certificate with its key has some kilobytes.
const MOST: u64 = 1 << 20;

/// Credentials are to be had anew so long before they end, and are used for so long at least: a program that gives
/// credentials that have ended is not run all the time.
const EARLY: Duration = Duration::from_secs(60);
const LEAST: Duration = Duration::from_secs(5);

const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

const KIND: &str = "ExecCredential";

/// As a kubeconfig has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecFields {
    #[serde(default, deserialize_with = "or_empty")]
    command: String,
    #[serde(default, deserialize_with = "or_empty")]
    args: Vec<String>,
    #[serde(default, deserialize_with = "or_empty")]
    env: Vec<Variable>,
    #[serde(default, deserialize_with = "or_empty")]
    api_version: String,
    #[serde(default, deserialize_with = "or_empty")]
    interactive_mode: String,
    #[serde(default, deserialize_with = "or_empty")]
    provide_cluster_info: bool,
}

impl ExecFields {
    fn api_version(&self) -> Result<&'static str, String> {
        let mut versions = VERSIONS.into_iter();
        let known = versions.find(|it| *it == self.api_version);
        known.ok_or_else(|| {
            let ([new, old], found) = (VERSIONS, &self.api_version);
            format!("exec.apiVersion: is not known: {found:?}; right would be {new} or {old}")
        })
    }

    /// The agent has no terminal.
    fn check_interactive_mode(&self) -> Result<(), String> {
        let why = match self.interactive_mode.as_str() {
            "" | "Never" | "IfAvailable" => return Ok(()),
            "Always" => "Always needs a terminal".to_owned(),
            other => format!("is not known: {other}"),
        };
        Err(format!(
            "exec.interactiveMode: {why}; right would be Never or IfAvailable"
        ))
    }
}

#[derive(Clone, PartialEq, Deserialize)]
struct Variable {
    #[serde(default, deserialize_with = "or_empty")]
    name: String,
    #[serde(default, deserialize_with = "or_empty")]
    value: Secret,
}

/// Of the cluster that the credentials are for.
#[derive(PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClusterInfo {
    pub(super) server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls_server_name: Option<String>,
    pub(super) insecure_skip_tls_verify: bool,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<Value>,
}

/// A program, and for whom it is run.
#[derive(PartialEq)]
pub(super) struct Exec {
    command: PathBuf,
    args: Vec<String>,
    env: Vec<Variable>,
    api_version: &'static str,
    cluster: ClusterInfo,
    /// It wants to know of the cluster.
    asks_for_cluster: bool,
}

/// What a program gave: a token, a certificate, or both. Each was found usable.
pub(super) struct Given {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<ClientCertificate>,
    /// `None`: they do not end.
    pub(super) ends: Option<Ends>,
}

/// When credentials end. Both are boottime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// From then on the program is to be run for others.
    pub(super) renew: Duration,
    /// From then on the API server refuses them.
    pub(super) end: Duration,
}

impl Given {
    pub(super) fn has_ended(&self) -> bool {
        self.ends.is_some_and(|it| clock::boottime() >= it.end)
    }
}

impl Exec {
    /// `directory`: that of the kubeconfig. A name without `/` is looked for in `PATH`.
    pub(super) fn new(
        of: &ExecFields,
        cluster: ClusterInfo,
        directory: &Path,
    ) -> Result<Self, String> {
        if of.command.is_empty() {
            return Err("exec.command: is missing; right would be a program".to_owned());
        }
        let api_version = of.api_version()?;
        of.check_interactive_mode()?;
        Ok(Self {
            command: match of.command.contains('/') {
                true => directory.join(&of.command),
                false => PathBuf::from(&of.command),
            },
            args: of.args.clone(),
            env: of.env.clone(),
            api_version,
            cluster,
            asks_for_cluster: of.provide_cluster_info,
        })
    }

    /// What it is told. `authority`: PEM of who vouches for the server.
    pub(super) fn info(&self, authority: Option<&[u8]>) -> String {
        let mut spec = json!({"interactive": false});
        if self.asks_for_cluster {
            spec["cluster"] = json!(self.cluster);
            if let Some(pem) = authority {
                spec["cluster"]["certificate-authority-data"] = BASE64_STANDARD.encode(pem).into();
            }
        }
        json!({"kind": KIND, "apiVersion": self.api_version, "spec": spec}).to_string()
    }

    /// Runs it. `programs` starts it.
    pub(super) async fn run(&self, info: &str, programs: &Worker) -> Result<Given, String> {
        let given = match self.printed(info, programs).await {
            Ok(printed) => parse(&printed, self.api_version),
            Err(why) => Err(why),
        };
        given.map_err(|why| format!("the program of `exec` gives no credentials: {why}"))
    }

    async fn printed(&self, info: &str, programs: &Worker) -> Result<Vec<u8>, String> {
        let mut command = self.command(info);
        // Where its output is awaited.
        let runtime = Handle::current();
        let starting = move || {
            let _entered = runtime.enter();
            Program::start(&mut command)
        };
        // Its file may be on a slow disk.
        let started = programs.run(LONGEST, starting).await;
        let started = started.map_err(|Late| late())?;
        let name = self.command.display();
        let mut program = started.map_err(|it| format!("{name} does not start: {it}"))?;
        let printed = tokio::time::timeout(LONGEST, program.printed()).await;
        program.end().await;
        printed.unwrap_or_else(|_late| Err(late()))
    }

    fn command(&self, info: &str) -> Command {
        let mut command = Command::new(&self.command);
        let env = self.env.iter();
        let env = env.filter(|it| !it.name.is_empty() && !it.name.contains(['=', '\0']));
        command
            .args(&self.args)
            .envs(env.map(|it| (&it.name, it.value.reveal())))
            .env("KUBERNETES_EXEC_INFO", info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // What it starts is killed with it.
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

fn late() -> String {
    format!("it has not ended within {} s", LONGEST.as_secs())
}

/// One that runs; killed when it is dropped.
struct Program {
    child: Child,
    stdout: Option<ChildStdout>,
}

impl Program {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.spawn()?;
        let stdout = child.stdout.take();
        Ok(Self { child, stdout })
    }

    async fn printed(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        if let Some(stdout) = self.stdout.take() {
            // One byte more than allowed tells that there is more.
            let mut bounded = stdout.take(MOST + 1);
            let read = bounded.read_to_end(&mut bytes).await;
            read.map_err(|it| format!("read what it prints: {it}"))?;
        }
        if bytes.len() as u64 > MOST {
            return Err(format!("it prints more than {MOST} bytes"));
        }
        let ended = self.child.wait().await;
        let ended = ended.map_err(|it| format!("wait for it: {it}"))?;
        match ended.success() {
            true => Ok(bytes),
            false => Err(format!("it ended with {ended}")),
        }
    }

    /// It is gone, if it can be.
    async fn end(mut self) {
        self.kill();
        // One that the kernel cannot end now is gone later.
        tokio::time::timeout(KILLED, self.child.wait()).await.ok();
    }

    /// With all that it has started.
    fn kill(&self) {
        // `None`: it has ended, and its number may be another's.
        let pid = self.child.id().and_then(|it| i32::try_from(it).ok());
        if let Some(pid) = pid {
            // It may have ended in between.
            killpg(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default, deserialize_with = "or_empty")]
    api_version: String,
    #[serde(default, deserialize_with = "or_empty")]
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    #[serde(default, deserialize_with = "or_empty")]
    token: Secret,
    #[serde(default, deserialize_with = "or_empty")]
    client_certificate_data: Secret,
    #[serde(default, deserialize_with = "or_empty")]
    client_key_data: Secret,
}

/// JSON, or YAML as client-go takes it too.
fn parse(printed: &[u8], api_version: &str) -> Result<Given, String> {
    let parsed: Option<ExecCredential> = serde_json::from_slice(printed)
        .ok()
        .or_else(|| serde_yaml_ng::from_slice(printed).ok());
    let Some(credential) = parsed.filter(|it| it.kind == KIND) else {
        return Err(format!("what it prints is no {KIND}"));
    };
    if credential.api_version != api_version {
        return Err(format!("its {KIND} is not one of {api_version}"));
    }
    let status = credential.status;
    status
        .ok_or_else(|| format!("its {KIND} has no status"))?
        .given()
}

impl Status {
    fn given(self) -> Result<Given, String> {
        let ends = self.ends()?;
        let given = |it: Secret| Some(it).filter(|it| !it.reveal().is_empty());
        let bytes = |it: Secret| given(it).map(|it| it.reveal().as_bytes().to_vec());
        let token = given(self.token);
        let authorization = token.map(|it| bearer("token", &it)).transpose()?;
        let certificate = match (
            bytes(self.client_certificate_data),
            bytes(self.client_key_data),
        ) {
            (Some(certificate), Some(key)) => {
                let client = ClientCertificate {
                    fields: ["clientCertificateData", "clientKeyData"],
                    certificate,
                    key,
                };
                client.check()?;
                Some(client)
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err("it gives clientCertificateData without clientKeyData".to_owned());
            }
            (None, Some(_)) => {
                return Err("it gives clientKeyData without clientCertificateData".to_owned());
            }
        };
        if authorization.is_none() && certificate.is_none() {
            return Err("it gives neither a token nor a certificate".to_owned());
        }
        Ok(Given {
            authorization,
            certificate,
            ends,
        })
    }

    /// `None`: they do not end.
    fn ends(&self) -> Result<Option<Ends>, String> {
        let Some(text) = &self.expiration_timestamp else {
            return Ok(None);
        };
        let end = text
            .parse::<Timestamp>()
            .map_err(|_not_shown| "its expirationTimestamp is no time of RFC 3339".to_owned())?;
        Ok(Some(ends(end, clock::wall(), clock::boottime())))
    }
}

/// Credentials that end at `end`.
fn ends(end: Timestamp, wall: Duration, boottime: Duration) -> Ends {
    let end = Duration::try_from(end.duration_since(Timestamp::UNIX_EPOCH));
    // Those that ended before 1970 have ended.
    let left = end.unwrap_or_default().saturating_sub(wall).max(LEAST);
    Ends {
        renew: boottime + left.saturating_sub(EARLY).max(LEAST),
        end: boottime + left,
    }
}

#[cfg(test)]
mod tests;
