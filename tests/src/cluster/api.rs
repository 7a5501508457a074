//! Ways into the network namespace of the cluster, from outside of it. They can be cut.

use std::fs::{self, File};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use super::{NAME, cluster, text};
use crate::agent::Agent;

/// A way to one address in the namespace. It ends when it is dropped.
#[derive(Debug)]
pub struct Way {
    pub address: SocketAddr,
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
}

/// The way to the API server, and the file that leads there.
#[derive(Debug)]
pub struct ApiWay {
    kubeconfig: PathBuf,
    way: Way,
}

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Way {
    /// `from`: where it begins; port 0: any.
    pub fn new(from: &str, to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(from).with_context(|| format!("listen on {from}"))?;
        let address = listener.local_addr()?;
        let state = Arc::<State>::default();
        let of_way = Arc::clone(&state);
        let namespace = File::open(format!("/run/netns/{NAME}"))?;
        // What this thread connects to is in the namespace; what it listens on stays where it is.
        let listener = thread::spawn(move || {
            if let Err(error) = setns(namespace, CloneFlags::CLONE_NEWNET) {
                eprintln!("enter the network namespace: {error}");
                return;
            }
            for stream in listener.incoming() {
                if of_way.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(from) = stream else { continue };
                if of_way.is_cut.load(Ordering::Relaxed) {
                    continue;
                }
                // One that is refused there is closed here.
                if let Ok(to) = TcpStream::connect(to) {
                    of_way.carry(from, to).ok();
                }
            }
        });
        Ok(Self {
            address,
            state,
            listener: Some(listener),
        })
    }

    /// Nobody gets through any more.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Relaxed);
        self.state.close();
    }

    pub fn mend(&self) {
        self.state.is_cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        self.state.close();
        // For the listener to notice; its port is free then.
        TcpStream::connect(self.address).ok();
        if let Some(listener) = self.listener.take() {
            listener.join().ok();
        }
    }
}

impl ApiWay {
    /// `name`: of the file that leads the agent this way.
    pub fn new(name: &str) -> Result<Self> {
        Self::of("agent", name)
    }

    /// The same with the credentials of another file of the cluster.
    pub fn of(user: &str, name: &str) -> Result<Self> {
        let config = fs::read_to_string(cluster()?.join(format!("{user}.kubeconfig")))?;
        let mut config: Value = serde_json::from_str(&config)?;
        let server = text(&config, "/clusters/0/cluster/server")?.to_owned();
        let to: SocketAddr = server
            .strip_prefix("https://")
            .and_then(|it| it.parse().ok())
            .with_context(|| format!("no address: {server}"))?;
        let way = Way::new("127.0.0.1:0", to)?;
        let found = config.pointer_mut("/clusters/0/cluster");
        let found = found.context("it has a cluster")?;
        found["server"] = json!(format!("https://{}", way.address));
        found["tls-server-name"] = json!(to.ip().to_string());
        let file = format!("ballast-{name}-{}", way.address.port());
        let kubeconfig = std::env::temp_dir().join(file);
        fs::write(&kubeconfig, config.to_string())?;
        Ok(Self { kubeconfig, way })
    }

    /// By a token in a file, and nothing else that the file had.
    pub fn take_token_from(&self, file: &Path) -> Result<()> {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&self.kubeconfig)?)?;
        let user = config.pointer_mut("/users/0/user");
        *user.context("it has a user")? = json!({"tokenFile": file});
        fs::write(&self.kubeconfig, config.to_string())?;
        Ok(())
    }

    /// The agent asks this way.
    pub fn lead(&self, agent: &mut Agent) {
        self.lead_from("apiserver", agent);
    }

    /// The agent asks `source` for pods, and tells of them this way.
    pub fn lead_from(&self, source: &str, agent: &mut Agent) {
        agent.sections.push_str(&format!(
            "pods: {{source: {source}}}\nkubernetes: {{nodeName: {NAME}, kubeconfigFile: {}}}\n",
            self.kubeconfig.display()
        ));
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.way.address
    }

    /// Nobody gets through any more.
    pub fn cut(&self) {
        self.way.cut();
    }

    pub fn mend(&self) {
        self.way.mend();
    }
}

impl Drop for ApiWay {
    fn drop(&mut self) {
        fs::remove_file(&self.kubeconfig).ok();
    }
}

impl State {
    fn carry(&self, from: TcpStream, to: TcpStream) -> io::Result<()> {
        self.open().extend([from.try_clone()?, to.try_clone()?]);
        for (mut source, mut sink) in [
            (from.try_clone()?, to.try_clone()?),
            (to.try_clone()?, from.try_clone()?),
        ] {
            thread::spawn(move || {
                io::copy(&mut source, &mut sink).ok();
                sink.shutdown(Shutdown::Both).ok();
            });
        }
        Ok(())
    }

    fn close(&self) {
        for stream in self.open().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
