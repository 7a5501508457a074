//! A kubeconfig file, as far as it says how the API server of its current context is reached. In: its text, and the
//! directory that relative paths are relative to. Out: [`Access`].
//!
//! Its fields are those of client-go (staging/src/k8s.io/client-go/tools/clientcmd/api/v1/types.go), and null is empty,
//! as Go writes it.
//!
//! Invariant: nothing is read here, and no error shows a value but names and the URL of the server.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use hyper::http::uri::Scheme;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_yaml_ng::Value;

use super::credentials::{Impersonated, Secret};
use super::exec::{ClusterInfo, Exec, ExecFields};
use super::tls::{Pem, Place};
use super::{Access, Identity};

/// Extension of a cluster that is handed to the program of `exec`.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    #[serde(default, deserialize_with = "or_empty")]
    clusters: Vec<Named<Cluster>>,
    #[serde(default, deserialize_with = "or_empty")]
    contexts: Vec<Named<Context>>,
    #[serde(default, deserialize_with = "or_empty")]
    users: Vec<Named<User>>,
    #[serde(default, deserialize_with = "or_empty")]
    current_context: String,
}

#[derive(Deserialize)]
struct Named<T> {
    #[serde(default, deserialize_with = "or_empty")]
    name: String,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    what: Option<T>,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default, deserialize_with = "or_empty")]
    cluster: String,
    #[serde(default, deserialize_with = "or_empty")]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default, deserialize_with = "or_empty")]
    insecure_skip_tls_verify: bool,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<Secret>,
    proxy_url: Option<String>,
    #[serde(default, deserialize_with = "or_empty")]
    extensions: Vec<Extension>,
}

#[derive(Deserialize)]
struct Extension {
    #[serde(default, deserialize_with = "or_empty")]
    name: String,
    #[serde(default)]
    extension: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<String>,
    password: Option<Secret>,
    client_certificate: Option<String>,
    client_certificate_data: Option<Secret>,
    client_key: Option<String>,
    client_key_data: Option<Secret>,
    exec: Option<ExecFields>,
    auth_provider: Option<IgnoredAny>,
    #[serde(rename = "as")]
    impersonated: Option<String>,
    as_uid: Option<String>,
    #[serde(default, deserialize_with = "or_empty")]
    as_groups: Vec<String>,
    #[serde(default, deserialize_with = "or_empty")]
    as_user_extra: BTreeMap<String, Vec<String>>,
}

pub(super) fn or_empty<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What its current context says. `directory`: that of the file.
pub(super) fn access(text: &str, directory: &Path) -> Result<Access, String> {
    let kubeconfig = parse(text)?;
    let context = current_context(&kubeconfig)?;
    let cluster = cluster(&kubeconfig, context)?;
    let users = kubeconfig.users.iter();
    let mut users = users.filter(|it| it.name == context.user);
    // Who is not there is anonymous, as client-go has it.
    let user = users.next().and_then(|it| it.what.as_ref());
    let nobody = User::default();
    cluster.access(user.unwrap_or(&nobody), directory)
}

fn parse(text: &str) -> Result<Kubeconfig, String> {
    serde_yaml_ng::from_str(text).map_err(|it| match it.location() {
        // What it says shows what stands there, which may be a token.
        Some(at) => format!(
            "it is no kubeconfig: line {}, column {}",
            at.line(),
            at.column()
        ),
        None => "it is no kubeconfig".to_owned(),
    })
}

fn current_context(of: &Kubeconfig) -> Result<&Context, String> {
    let name = &of.current_context;
    if name.is_empty() {
        return Err("current-context: is missing; right would be the name of a context".to_owned());
    }
    let named = of.contexts.iter().find(|it| it.name == *name);
    let context = named.and_then(|it| it.what.as_ref());
    context.ok_or_else(|| format!("current-context: names no context: {name}"))
}

fn cluster<'a>(of: &'a Kubeconfig, context: &Context) -> Result<&'a Cluster, String> {
    let at = format!("contexts.{}.cluster", of.current_context);
    let name = &context.cluster;
    if name.is_empty() {
        return Err(format!(
            "{at}: is missing; right would be the name of a cluster"
        ));
    }
    let named = of.clusters.iter().find(|it| it.name == *name);
    let cluster = named.and_then(|it| it.what.as_ref());
    cluster.ok_or_else(|| format!("{at}: names no cluster: {name}"))
}

impl Cluster {
    fn access(&self, user: &User, directory: &Path) -> Result<Access, String> {
        let authority = pem(
            ["certificate-authority", "certificate-authority-data"],
            self.certificate_authority.as_ref(),
            self.certificate_authority_data.as_ref(),
            directory,
        )?;
        if self.insecure_skip_tls_verify && authority.is_some() {
            return Err(
                "insecure-skip-tls-verify: cannot be used with certificate-authority; right would be one of them"
                    .to_owned(),
            );
        }
        let server = self.server()?;
        let (certificate, identity, unsent) = match server.scheme() == Some(&Scheme::HTTPS) {
            true => {
                let certificate = user.certificate(directory)?;
                let identity = user.identity(self, certificate.is_some(), directory)?;
                (certificate, identity, None)
            }
            // Everybody on the way could read them. client-go ignores them too
            // (staging/src/k8s.io/client-go/tools/clientcmd/client_config.go, `IsConfigTransportTLS`).
            false => (None, Identity::Anonymous, user.credentials()),
        };
        Ok(Access {
            server,
            authority,
            is_insecure: self.insecure_skip_tls_verify,
            server_name: given(self.tls_server_name.as_ref()).cloned(),
            proxy: given(self.proxy_url.as_ref()).cloned(),
            hears_environment: true,
            certificate,
            identity,
            unsent,
            impersonated: user.impersonated().headers()?,
            kubelet: None,
        })
    }

    fn server(&self) -> Result<Uri, String> {
        let right = "right would be https://HOST:PORT";
        let Some(text) = given(self.server.as_ref()) else {
            return Err(format!("server: is missing; {right}"));
        };
        // It is shown wherever the server is, and may not have a password in it.
        if text.contains('@') {
            return Err(format!("server: has a user in it; {right}"));
        }
        let uri = text.parse::<Uri>().ok();
        let is_url = |it: &Uri| {
            let has_host = it.host().is_some_and(|it| !it.is_empty());
            has_host && matches!(it.scheme_str(), Some("http" | "https"))
        };
        uri.filter(is_url)
            .ok_or_else(|| format!("server: is no URL: {text}; {right}"))
    }

    fn info(&self) -> Result<ClusterInfo, String> {
        let mut extensions = self.extensions.iter();
        let config = extensions.find(|it| it.name == EXEC_EXTENSION);
        let config = config.map(|it| serde_json::to_value(&it.extension));
        let config = config.transpose().map_err(|_not_shown| {
            format!("extensions: {EXEC_EXTENSION} is nothing that JSON can have")
        })?;
        Ok(ClusterInfo {
            server: self.server.clone(),
            tls_server_name: given(self.tls_server_name.as_ref()).cloned(),
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
            certificate_authority_data: None,
            proxy_url: given(self.proxy_url.as_ref()).cloned(),
            config,
        })
    }
}

impl User {
    fn certificate(&self, directory: &Path) -> Result<Option<(Pem, Pem)>, String> {
        let certificate = pem(
            ["client-certificate", "client-certificate-data"],
            self.client_certificate.as_ref(),
            self.client_certificate_data.as_ref(),
            directory,
        )?;
        let key = pem(
            ["client-key", "client-key-data"],
            self.client_key.as_ref(),
            self.client_key_data.as_ref(),
            directory,
        )?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err("client-key: is missing; right would be that of client-certificate".to_owned())
            }
            (None, Some(_)) => {
                Err("client-certificate: is missing; right would be that of client-key".to_owned())
            }
        }
    }

    /// The first field that has credentials.
    fn credentials(&self) -> Option<&'static str> {
        let text = |it: &Option<String>| given(it.as_ref()).is_some();
        let secret = |it: &Option<Secret>| given_secret(it.as_ref()).is_some();
        let all = [
            ("token", secret(&self.token)),
            ("tokenFile", text(&self.token_file)),
            ("username", text(&self.username)),
            ("password", secret(&self.password)),
            ("client-certificate", text(&self.client_certificate)),
            (
                "client-certificate-data",
                secret(&self.client_certificate_data),
            ),
            ("exec", self.exec.is_some()),
            ("auth-provider", self.auth_provider.is_some()),
        ];
        let mut there = all.into_iter().filter(|(_, is_there)| *is_there);
        there.next().map(|(field, _)| field)
    }

    /// With a token or a certificate no program is run, as client-go has it
    /// (staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go, `UpdateTransportConfig`).
    fn identity(
        &self,
        of: &Cluster,
        has_certificate: bool,
        directory: &Path,
    ) -> Result<Identity, String> {
        if self.auth_provider.is_some() {
            return Err(
                "auth-provider: Kubernetes has removed it in 1.26; right would be `exec`"
                    .to_owned(),
            );
        }
        let token = given_secret(self.token.as_ref());
        let token_file = given(self.token_file.as_ref());
        let user = given(self.username.as_ref());
        let password = given_secret(self.password.as_ref());
        let is_basic = user.is_some() || password.is_some();
        if is_basic && (token.is_some() || token_file.is_some()) {
            return Err(
                "username: cannot be used with token or tokenFile; right would be one of them"
                    .to_owned(),
            );
        }
        Ok(match (token_file, token, &self.exec) {
            _ if is_basic => Identity::Basic {
                user: user.cloned().unwrap_or_default(),
                password: password.cloned().unwrap_or_default(),
            },
            (Some(path), token, _) => Identity::TokenFile {
                path: directory.join(path),
                otherwise: token.cloned(),
            },
            (None, Some(token), _) => Identity::Token(token.clone()),
            (None, None, Some(exec)) if !has_certificate => {
                Identity::Exec(Exec::new(exec, of.info()?, directory)?)
            }
            (None, None, _) => Identity::Anonymous,
        })
    }

    fn impersonated(&self) -> Impersonated {
        Impersonated {
            user: given(self.impersonated.as_ref()).cloned(),
            uid: given(self.as_uid.as_ref()).cloned(),
            groups: self.as_groups.clone(),
            extra: self.as_user_extra.clone(),
        }
    }
}

/// What stands in the file itself wins.
fn pem(
    [of_file, of_data]: [&'static str; 2],
    file: Option<&String>,
    data: Option<&Secret>,
    directory: &Path,
) -> Result<Option<Pem>, String> {
    let pem = |field, place| Ok(Some(Pem { field, place }));
    if let Some(data) = given_secret(data) {
        // Some break its lines.
        let base64: String = data.reveal().split_ascii_whitespace().collect();
        let decoded = BASE64_STANDARD.decode(base64);
        let bytes = decoded.map_err(|_not_shown| format!("{of_data}: is not in base64"))?;
        return pem(of_data, Place::Here(bytes));
    }
    match given(file) {
        Some(path) => pem(of_file, Place::File(directory.join(path))),
        None => Ok(None),
    }
}

fn given(text: Option<&String>) -> Option<&String> {
    text.filter(|it| !it.is_empty())
}

fn given_secret(text: Option<&Secret>) -> Option<&Secret> {
    text.filter(|it| !it.reveal().is_empty())
}

#[cfg(test)]
mod tests;
