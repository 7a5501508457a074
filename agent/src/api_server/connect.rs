//! How the API server is reached: by a kubeconfig file, or by the service account of the agent's own pod. Files are
//! read anew for each connection, and after each failure there is another: tokens and certificates change under the
//! same names.
//!
//! `kubeconfig` and `service_account` say who asks, and of whom ([`Access`]), `exec` runs the program that gives
//! credentials, which `programs` keeps for all connections, and `transport` takes questions to the server. What may
//! hang is done by a `worker`.
//!
//! Invariants:
//! - No error shows a token, a key, or what a program has printed.
//! - No file is read on the thread that asks the API server, which has other things to do.
//! - No thread is made after the start.

mod credentials;
mod exec;
mod kubeconfig;
mod no_proxy;
mod programs;
mod proxy;
mod service_account;
mod tls;
mod transport;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::Scheme;
use hyper::{HeaderMap, Uri};

use self::credentials::{Authorization, Secret, TokenFile};
use self::exec::{Exec, Given};
use self::programs::{Credentials, Programs};
use self::proxy::Proxy;
pub use self::service_account::TOKEN as SERVICE_ACCOUNT_TOKEN;
use self::tls::{ClientCertificate, OfKubelet, OfServer, Pem, Trust};
pub(super) use self::transport::Transport;
use self::worker::{Late, Worker};
use super::Settings;
use crate::model::check::Voucher;
use crate::sys::{FsError, Root, chain, clock, regular};

/// To read the files. Nobody waits longer for a file system that hangs.
const PREPARE: Duration = Duration::from_secs(10);

/// How long a certificate of a file is used: whoever replaces it does so hours before it ends, and the API server
/// refuses a connection whose certificate has ended.
const REREAD: Duration = Duration::from_secs(600);

/// Pause before the next attempt to replace a connection that still works.
const AGAIN: Duration = Duration::from_secs(60);

/// Bytes. A kubeconfig of many clusters has some hundred kilobytes.
const LARGEST_FILE: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{}: {why}", .path.display())]
    Kubeconfig { path: PathBuf, why: String },
    #[error("the service account of the agent's pod cannot be used: {0}")]
    ServiceAccount(String),
    #[error("kubelet cannot be asked: {0}")]
    Kubelet(String),
    #[error("its files were not read within {} s", PREPARE.as_secs())]
    Late,
}

/// Makes connections. All of them share its threads, and what the program of `exec` gave.
pub(super) struct Connector {
    /// `None`: the service account of the agent's own pod.
    kubeconfig: Option<PathBuf>,
    /// Reads files.
    files: Arc<Worker>,
    programs: Arc<Programs>,
    /// Resolves host names.
    names: Arc<Worker>,
    /// It was logged that credentials are not sent.
    has_warned: AtomicBool,
    /// Who is asked in place of the API server, with the same credentials: the kubelet of this node.
    kubelet: Option<(Node, FindKubelet)>,
}

/// Its name.
type Node = String;

/// How a kubelet is reached, and by what it is known.
pub struct KubeletServer {
    pub address: SocketAddr,
    /// Its files with certificates, in PEM; what else is in them is not used. `Err`: why that is not known.
    pub certificates: Result<Vec<u8>, String>,
}

/// Looks the kubelet of the node up, which may be another one each time. May read files.
pub type FindKubelet = Arc<dyn Fn() -> Result<KubeletServer, String> + Send + Sync>;

/// A way to one API server.
pub(super) struct Connection {
    pub(super) transport: Transport,
    /// URL of the API server.
    pub(super) server: String,
    /// Boottime from which another is to be made. `None`: never.
    renew: Option<Duration>,
    /// What the program of `exec` gave for it.
    given: Option<Arc<Given>>,
    found: tls::Found,
}

impl Connection {
    /// By what the server was known, if it is a kubelet.
    pub(super) fn voucher(&self) -> Option<Voucher> {
        self.found.voucher()
    }

    /// Its credentials have ended.
    fn has_ended(&self) -> bool {
        self.given.as_ref().is_some_and(|it| it.has_ended())
    }
}

/// Who asks, and of whom, with files unread.
struct Access {
    server: Uri,
    /// Who vouches for the server. `None`: whom the system trusts.
    authority: Option<Pem>,
    /// The server needs nobody who vouches for it.
    is_insecure: bool,
    /// The name that the certificate of the server is of, where it is not that of the URL.
    server_name: Option<String>,
    /// URL of the proxy on the way.
    proxy: Option<String>,
    /// The variables of the environment that name a proxy are heard.
    hears_environment: bool,
    /// The client's certificate and key.
    certificate: Option<(Pem, Pem)>,
    identity: Identity,
    /// A field with credentials that are not sent, since the server has no TLS.
    unsent: Option<&'static str>,
    impersonated: Vec<(HeaderName, HeaderValue)>,
    /// The server is the kubelet of this node.
    kubelet: Option<(Node, KubeletServer)>,
}

/// Who asks, beside the client's certificate.
enum Identity {
    Anonymous,
    Basic {
        user: String,
        password: Secret,
    },
    Token(Secret),
    /// The file is read anew all the time.
    TokenFile {
        path: PathBuf,
        /// Where the file cannot be read.
        otherwise: Option<Secret>,
    },
    Exec(Exec),
}

/// All but what a program of `exec` gives.
struct Prepared {
    server: Uri,
    trust: Trust,
    server_name: Option<String>,
    proxy: Option<Proxy>,
    certificate: Option<ClientCertificate>,
    authorization: Authorization,
    headers: HeaderMap,
    /// With what it is told.
    exec: Option<(Exec, String)>,
    unsent: Option<&'static str>,
    renew: Option<Duration>,
    given: Option<Arc<Given>>,
    found: tls::Found,
}

impl Connector {
    pub(super) fn new(settings: &Settings) -> io::Result<Self> {
        Ok(Self {
            kubeconfig: settings.kubeconfig_file.clone(),
            files: Arc::new(Worker::start("api-files")?),
            programs: Arc::new(Programs::new()?),
            names: Arc::new(Worker::start("api-names")?),
            has_warned: AtomicBool::new(false),
            kubelet: None,
        })
    }

    /// Another one, to the kubelet of `node`, with the same threads.
    pub(super) fn to_kubelet(&self, node: &str, find: FindKubelet) -> Self {
        Self {
            kubeconfig: self.kubeconfig.clone(),
            files: Arc::clone(&self.files),
            programs: Arc::clone(&self.programs),
            names: Arc::clone(&self.names),
            has_warned: AtomicBool::new(false),
            kubelet: Some((node.to_owned(), find)),
        }
    }

    /// Reads files, and asks nobody. `Err`: this leads nowhere, whether the API server answers or not.
    pub(super) async fn check(&self) -> Result<(), ConnectError> {
        let prepared = self.prepare().await?;
        // A program that gives credentials is run when they are needed.
        let built = prepared.build(&self.names);
        built.map(|_| ()).map_err(|why| self.error(why))
    }

    /// The kubeconfig file is not there, or one that it names.
    pub(super) async fn lacks_a_file(&self) -> bool {
        let Some(path) = self.kubeconfig.clone() else {
            return false;
        };
        let looked = self.files.run(PREPARE, move || {
            let text = match read_kubeconfig(&path) {
                Ok(text) => text,
                Err(_) => return is_absent(&path),
            };
            let directory = path.parent().unwrap_or(Path::new("/"));
            let access = kubeconfig::access(&text, directory);
            access.is_ok_and(|it| it.files().any(is_absent))
        });
        // One that hangs may answer later.
        looked.await.unwrap_or(true)
    }

    /// Asks nobody but the program of `exec`, if there is one.
    pub(super) async fn connect(&self) -> Result<Connection, ConnectError> {
        let mut prepared = self.prepare().await?;
        self.warn_of(&prepared);
        if let Some((exec, info)) = prepared.exec.take() {
            let credentials = self.programs.credentials(exec, info).await;
            prepared.take(credentials.map_err(|why| self.error(why))?);
        }
        let built = prepared.build(&self.names);
        built.map_err(|why| self.error(why))
    }

    /// Gives `kept`, or another connection if it is time for one. While none can be made, `kept` is used until its
    /// credentials end.
    pub(super) async fn renewed(&self, mut kept: Connection) -> Result<Connection, ConnectError> {
        if kept.renew.is_none_or(|it| clock::boottime() < it) {
            return Ok(kept);
        }
        match self.connect().await {
            Err(error) if !kept.has_ended() => {
                let (error, server) = (chain(&error), &kept.server);
                tracing::warn!(
                    error,
                    server,
                    "a connection cannot be renewed, and is used on"
                );
                kept.renew = Some(clock::boottime() + AGAIN);
                Ok(kept)
            }
            connected => connected,
        }
    }

    /// The API server answered 401: what the program of `exec` gave for it is not used again.
    pub(super) async fn refused(&self, connection: &Connection) {
        if let Some(given) = &connection.given {
            self.programs.forget(given).await;
        }
    }

    /// Logs once that credentials are not sent.
    fn warn_of(&self, prepared: &Prepared) {
        let Some(field) = prepared.unsent else { return };
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let server = prepared.server.to_string();
            tracing::warn!(
                server,
                field,
                "credentials are not sent to an API server without TLS; right would be https"
            );
        }
    }

    async fn prepare(&self) -> Result<Prepared, ConnectError> {
        let (kubeconfig, files) = (self.kubeconfig.clone(), Arc::clone(&self.files));
        let kubelet = self.kubelet.clone();
        let preparing = move || {
            let found = kubelet.map(|(node, find)| Ok((node, find()?)));
            let found: Result<_, String> = found.transpose();
            // Its own fault, not that of the file.
            found.map(|it| prepare(kubeconfig.as_deref(), it, &files))
        };
        match self.files.run(PREPARE, preparing).await {
            Ok(Ok(prepared)) => prepared.map_err(|why| self.error(why)),
            Ok(Err(why)) => Err(ConnectError::Kubelet(why)),
            Err(Late) => Err(ConnectError::Late),
        }
    }

    fn error(&self, why: String) -> ConnectError {
        match self.kubeconfig.clone() {
            Some(path) => ConnectError::Kubeconfig { path, why },
            None => ConnectError::ServiceAccount(why),
        }
    }
}

/// `None`: the service account of the agent's pod. Reads files, on the thread of `files`.
fn prepare(
    kubeconfig: Option<&Path>,
    kubelet: Option<(Node, KubeletServer)>,
    files: &Arc<Worker>,
) -> Result<Prepared, String> {
    let mut access = match kubeconfig {
        Some(path) => {
            let text = read_kubeconfig(path)?;
            let directory = path.parent().unwrap_or(Path::new("/"));
            kubeconfig::access(&text, directory)?
        }
        None => service_account::access(environment)?,
    };
    if let Some((node, server)) = kubelet {
        access.lead_to(node, server)?;
    }
    access.prepare(files)
}

fn read_kubeconfig(path: &Path) -> Result<String, String> {
    let read = Root::host().read_at_most(path, LARGEST_FILE);
    // Whoever shows the error names the file.
    let bytes = read.map_err(|it| match it {
        FsError::Gone { .. } => "No such file or directory".to_owned(),
        FsError::Io { source, .. } => source.to_string(),
    })?;
    String::from_utf8(bytes).map_err(|_not_shown| "it is no kubeconfig: it is not UTF-8".to_owned())
}

/// A file that a kubeconfig or a service account names.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = Root::host().read_at_most(path, LARGEST_FILE);
    read.map_err(|it| chain(&it))
}

/// A link that leads nowhere is none.
fn is_absent(path: &Path) -> bool {
    matches!(
        regular::look(path),
        Ok(regular::Kind::Dangling) | Err(FsError::Gone { .. })
    )
}

/// A variable of the environment; one that is empty is none.
#[expect(
    clippy::disallowed_methods,
    reason = "where Kubernetes tells a pod of its API server, and a system of its proxy"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|it| !it.is_empty())
}

impl Access {
    /// That have to be there.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let certificate = self.certificate.iter().flat_map(|(it, key)| [it, key]);
        let token = match &self.identity {
            Identity::TokenFile { path, .. } => Some(path.as_path()),
            _ => None,
        };
        let named = self.authority.iter().chain(certificate);
        named.filter_map(Pem::file).chain(token)
    }

    /// Has a kubelet asked in place of the API server. It hears of no impersonation: it would answer by the rights of
    /// who asks.
    fn lead_to(&mut self, node: Node, server: KubeletServer) -> Result<(), String> {
        if !self.impersonated.is_empty() {
            return Err(
                "as: kubelet takes nobody for somebody else; right would be credentials of the agent's own".to_owned(),
            );
        }
        if let Some(field) = self.unsent {
            return Err(format!(
                "{field}: is not used, since server has no TLS, and kubelet answers nobody that it does not know; right \
                 would be https"
            ));
        }
        let url = format!("https://{}", server.address);
        self.server = url.parse::<Uri>().map_err(|it| format!("{url}: {it}"))?;
        (self.server_name, self.proxy, self.hears_environment) = (None, None, false);
        self.is_insecure = false;
        self.kubelet = Some((node, server));
        Ok(())
    }

    /// Reads its files. `files` reads those again that are read again.
    fn prepare(mut self, files: &Arc<Worker>) -> Result<Prepared, String> {
        let authority = self.authority.as_ref().map(Pem::read).transpose()?;
        let found = tls::Found::default();
        let trust = self.trust(authority.as_deref(), &found)?;
        let proxy = self.proxy()?;
        let renew = match &self.certificate {
            Some((certificate, _)) if certificate.file().is_some() => {
                Some(clock::boottime() + REREAD)
            }
            _ => None,
        };
        let certificate = self.certificate.as_ref();
        let certificate =
            certificate.map(|(certificate, key)| ClientCertificate::read(certificate, key));
        let (authorization, exec) = self.identity.prepare(authority.as_deref(), files)?;
        Ok(Prepared {
            server: self.server,
            trust,
            server_name: self.server_name,
            proxy,
            certificate: certificate.transpose()?,
            authorization,
            headers: self.impersonated.into_iter().collect(),
            exec,
            unsent: self.unsent,
            renew,
            given: None,
            found,
        })
    }

    /// `found`: told by what a kubelet was known.
    fn trust(&mut self, authority: Option<&[u8]>, found: &tls::Found) -> Result<Trust, String> {
        let is_encrypted = self.server.scheme() == Some(&Scheme::HTTPS);
        if let Some((node, server)) = self.kubelet.take() {
            let authority = authority.zip(self.authority.as_ref());
            let authority = authority.map(|(pem, of)| tls::roots(of.field, pem));
            return Ok(Trust::Kubelet(OfKubelet {
                certificates: server.certificates.map(|it| tls::certificates_in(&it)),
                authority: authority.transpose()?,
                node,
                found: found.clone(),
            }));
        }
        Ok(match (authority, &self.authority) {
            _ if self.is_insecure => Trust::Anybody,
            (Some(pem), Some(of)) => Trust::Given(OfServer {
                roots: tls::roots(of.field, pem)?,
                certificates: tls::certificates_in(pem),
            }),
            _ if is_encrypted => Trust::Roots(tls::roots_of_system()?),
            _ => Trust::Nobody,
        })
    }

    fn proxy(&self) -> Result<Option<Proxy>, String> {
        match &self.proxy {
            Some(url) => Proxy::new("proxy-url", url).map(Some),
            None if self.hears_environment => Proxy::of_environment(&self.server, environment),
            None => Ok(None),
        }
    }
}

impl Identity {
    /// `authority`: PEM of who vouches for the server, which a program of `exec` may want to know.
    fn prepare(
        self,
        authority: Option<&[u8]>,
        files: &Arc<Worker>,
    ) -> Result<(Authorization, Option<(Exec, String)>), String> {
        let authorization = match self {
            Self::Anonymous => Authorization::None,
            Self::Basic { user, password } => {
                Authorization::Fixed(credentials::basic(&user, &password))
            }
            Self::Token(token) => Authorization::Fixed(credentials::bearer("token", &token)?),
            Self::TokenFile { path, otherwise } => {
                let files = Arc::clone(files);
                Authorization::File(TokenFile::new(path, otherwise.as_ref(), files)?)
            }
            Self::Exec(exec) => {
                let info = exec.info(authority);
                return Ok((Authorization::None, Some((exec, info))));
            }
        };
        Ok((authorization, None))
    }
}

impl Prepared {
    /// Uses what the program of `exec` gave. It is only run if the files have no other credentials.
    fn take(&mut self, Credentials { given, renew }: Credentials) {
        if let Some(authorization) = given.authorization.clone() {
            self.authorization = Authorization::Fixed(authorization);
        }
        self.certificate = given.certificate.clone();
        self.renew = renew;
        self.given = Some(given);
    }

    /// `names` resolves host names.
    fn build(self, names: &Arc<Worker>) -> Result<Connection, String> {
        let tls = tls::client_config(self.trust, self.certificate)?;
        let server = self.server.to_string();
        let transport = Transport::new(transport::Way {
            server: self.server,
            tls,
            server_name: self.server_name,
            proxy: self.proxy,
            authorization: self.authorization,
            headers: self.headers,
            names: Arc::clone(names),
        })?;
        Ok(Connection {
            transport,
            server: server.trim_end_matches('/').to_owned(),
            renew: self.renew,
            given: self.given,
            found: self.found,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::exec::Ends;
    use super::*;
    use crate::model::api_server::PodsFrom;
    use crate::sys::scratch::Scratch;

    fn worker() -> Arc<Worker> {
        Arc::new(Worker::start("test").unwrap())
    }

    fn prepared(user: &str) -> Prepared {
        let text = format!(
            "{{current-context: h, contexts: [{{name: h, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: 'https://a', insecure-skip-tls-verify: true}}}}], \
             users: [{{name: u, user: {user}}}]}}"
        );
        let access = kubeconfig::access(&text, Path::new("/none")).unwrap();
        access.prepare(&worker()).unwrap()
    }

    fn given(ends: Option<Ends>) -> Credentials {
        Credentials {
            given: Arc::new(Given {
                authorization: Some(HeaderValue::from_static("Bearer t")),
                certificate: None,
                ends,
            }),
            renew: ends.map(|it| it.renew),
        }
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_told_apart_from_a_fault() {
        let base = Scratch::new("lacks");
        let settings = Settings {
            node: "n".to_owned(),
            kubeconfig_file: Some(base.path("kubeconfig")),
            events: true,
            pods_from: PodsFrom::ApiServer,
        };
        let connector = Connector::new(&settings).unwrap();
        let user = |fields: &str| {
            format!(
                "{{current-context: h, contexts: [{{name: h, context: {{cluster: c, user: u}}}}], \
                 clusters: [{{name: c, cluster: {{server: 'https://a'}}}}], \
                 users: [{{name: u, user: {{{fields}}}}}]}}"
            )
        };
        assert!(connector.lacks_a_file().await);
        for (text, lacks) in [
            ("clusters: 7".to_owned(), false),
            (user("tokenFile: token"), true),
            (
                user("client-certificate: pem, client-key: kubeconfig"),
                true,
            ),
            (
                user("client-certificate: kubeconfig, client-key: kubeconfig"),
                false,
            ),
            (user("token: t"), false),
        ] {
            base.write("kubeconfig", &text);
            assert_eq!(connector.lacks_a_file().await, lacks, "{text}");
        }
    }

    #[tokio::test]
    async fn what_a_program_gives_is_said_by_each_question() {
        let mut prepared =
            prepared("{exec: {command: x, apiVersion: client.authentication.k8s.io/v1}, as: jane}");
        assert!(prepared.exec.is_some());
        prepared.take(given(None));
        let header = prepared.authorization.header().await.unwrap();
        assert_eq!(header, "Bearer t");
        assert_eq!(prepared.headers["impersonate-user"], "jane");
        let connection = prepared.build(&worker()).unwrap();
        assert!(connection.renew.is_none() && !connection.has_ended());
        assert_eq!(connection.server, "https://a");
    }

    #[tokio::test]
    async fn a_connection_is_used_on_until_it_ends_where_there_is_no_other() {
        let connector = Connector::new(&Settings {
            node: "n".to_owned(),
            kubeconfig_file: Some(PathBuf::from("/none/kubeconfig")),
            events: false,
            pods_from: PodsFrom::ApiServer,
        });
        let connector = connector.unwrap();
        let now = clock::boottime();
        let connection = |ends| {
            let mut prepared = prepared("{}");
            prepared.take(given(ends));
            prepared.build(&worker()).unwrap()
        };
        let ends = |renew, end| Some(Ends { renew, end });
        let mut never = connection(None);
        never.renew = Some(now);
        let kept = connector.renewed(never).await.unwrap();
        assert!(kept.renew.unwrap() > now, "not all the time");
        let still_good = connection(ends(now, now + REREAD));
        assert!(connector.renewed(still_good).await.is_ok());
        let over = connection(ends(now, now));
        assert!(connector.renewed(over).await.is_err());
        let new = connection(ends(now + REREAD, now + REREAD));
        let kept = connector.renewed(new).await.unwrap();
        assert_eq!(kept.renew, Some(now + REREAD), "it is not time");
    }

    #[tokio::test]
    async fn what_a_kubeconfig_has_in_it_does_not_end() {
        let connection = prepared("{token: t}").build(&worker()).unwrap();
        assert!(connection.renew.is_none() && !connection.has_ended());
    }
}
