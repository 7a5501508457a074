//! Whether what no two agents may use at once is free, looked at without taking any of it: the addresses of a
//! configuration, its directory of pins and its cgroup root. What the agent of this very configuration holds is as it
//! should be: that a second one cannot start is told by the lock of the state directory.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::RunError;
use super::exclusive::STATE_LOCK;
use crate::config::Config;
use crate::observe::http;
use crate::sources::listeners;
use crate::sys::lock::{self, HeldBy};
use crate::sys::unix_socket::{self, ListenError};
use crate::sys::{Root, clock};

/// How long something may still be held by an agent that was just killed.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(250);

/// What is held, and by whom.
struct Found {
    address: Option<SocketAddr>,
    socket: Result<(), ListenError>,
    locks: Vec<LockFound>,
}

/// A lock that somebody holds.
struct LockFound {
    field: &'static str,
    /// What is locked, as people know it.
    name: String,
    /// `None`: it is not seen from here.
    holder: Option<u32>,
}

/// See the module. `cgroup_root`: its directory that is locked; `None`: the mode uses none, or it is not there.
pub(super) fn faults(root: &Root, config: &Config, cgroup_root: Option<&Path>) -> Vec<RunError> {
    faults_within(PATIENCE, root, config, cgroup_root)
}

fn faults_within(
    patience: Duration,
    root: &Root,
    config: &Config,
    cgroup_root: Option<&Path>,
) -> Vec<RunError> {
    let began = clock::boottime();
    loop {
        let agent = lock::held_by(&root.path(config.state_directory.join(STATE_LOCK)));
        let found = Found {
            address: config.metrics.address.filter(|it| http::is_in_use(*it)),
            socket: unix_socket::check_free(&root.path(&config.socket)),
            locks: locks(root, config, cgroup_root),
        };
        let is_late = clock::boottime().saturating_sub(began) > patience;
        // An agent that runs goes on.
        if agent != HeldBy::Nobody || is_late || !found.has_any() {
            return judge(root, agent, found);
        }
        thread::sleep(STEP);
    }
}

/// Those that somebody holds. One that cannot be looked at cannot be taken either, and a start does without.
fn locks(root: &Root, config: &Config, cgroup_root: Option<&Path>) -> Vec<LockFound> {
    let pins = root.path(&config.bpf.pin_directory);
    let cgroup = config.kubelet.cgroup_root_path();
    let all = [
        ("bpf.pinDirectory", pins.display().to_string(), Some(&*pins)),
        ("kubelet.cgroupRoot", cgroup.to_string(), cgroup_root),
    ];
    let held = all
        .into_iter()
        .filter_map(|(field, name, path)| match lock::held_by(path?) {
            HeldBy::Process(holder) => Some(LockFound {
                field,
                name,
                holder,
            }),
            HeldBy::Nobody | HeldBy::Unknown => None,
        });
    held.collect()
}

impl Found {
    fn has_any(&self) -> bool {
        let is_socket_held = matches!(self.socket, Err(ListenError::InUse { .. }));
        self.address.is_some() || is_socket_held || !self.locks.is_empty()
    }
}

/// `agent`: who holds the lock of the state directory.
fn judge(root: &Root, agent: HeldBy, found: Found) -> Vec<RunError> {
    let in_use = |field, what: String, holder: Option<u32>| {
        (!may_be(agent, holder)).then(|| RunError::InUse {
            field,
            what,
            holder: holder.map(|it| listeners::name(root, it)),
        })
    };
    let mut faults = Vec::new();
    faults.extend(found.address.and_then(|address| {
        let agent = match agent {
            HeldBy::Process(agent) => agent,
            HeldBy::Nobody | HeldBy::Unknown => None,
        };
        let holder = listeners::process_at(root, address, agent);
        in_use("metrics.address", address.to_string(), holder)
    }));
    faults.extend(match found.socket {
        Ok(()) => None,
        Err(ListenError::InUse { path, holder }) => {
            in_use("socket", path.display().to_string(), holder)
        }
        // What cannot be looked at is told of the directory, or is somebody's who keeps it to himself.
        Err(ListenError::Io { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::NotADirectory | ErrorKind::PermissionDenied
            ) =>
        {
            None
        }
        Err(error) => Some(RunError::Socket(error)),
    });
    let locks = found.locks.into_iter();
    faults.extend(locks.filter_map(|it| in_use(it.field, it.name, it.holder)));
    faults
}

/// Whether who holds something may be the agent of this configuration, which holds the lock. Either may be a process
/// that is not seen from here.
fn may_be(agent: HeldBy, holder: Option<u32>) -> bool {
    match (agent, holder) {
        (HeldBy::Nobody, _) => false,
        (HeldBy::Process(Some(agent)), Some(holder)) => agent == holder,
        (HeldBy::Process(_) | HeldBy::Unknown, _) => true,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::sys::lock::{Lock, Taken};
    use crate::sys::scratch::Scratch;

    fn config(base: &Path, address: &str) -> Config {
        let base = base.display();
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             stateDirectory: {base}/state\nsocket: {base}/agent.sock\nmetrics: {{address: \"{address}\"}}\n\
             bpf: {{pinDirectory: {base}/pins}}\nkubelet: {{cgroupRoot: /pods}}\n"
        );
        Config::from_yaml(&text, None, &[]).unwrap().config
    }

    fn told(config: &Config) -> Vec<String> {
        told_of(config, None)
    }

    /// Of what is held and stays so.
    fn told_of(config: &Config, cgroup_root: Option<&Path>) -> Vec<String> {
        told_within(Duration::ZERO, config, cgroup_root)
    }

    /// Of what is free: a child that another test makes may hold it for a moment.
    fn told_of_free(config: &Config, cgroup_root: Option<&Path>) -> Vec<String> {
        told_within(Duration::from_secs(60), config, cgroup_root)
    }

    fn told_within(patience: Duration, config: &Config, cgroup_root: Option<&Path>) -> Vec<String> {
        let faults = faults_within(patience, &Root::host(), config, cgroup_root);
        faults.iter().map(|it| crate::observe::chain(it)).collect()
    }

    /// This process holds the addresses and the lock.
    #[test]
    fn an_address_in_use_is_told_unless_the_agent_itself_holds_it() {
        let base = Scratch::new("in-use");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = config(base.directory(), &address.to_string());
        let socket = base.path("agent.sock");
        let (unix, file) = unix_socket::listen(&socket, 0o755).unwrap();
        let holder = listeners::name(&Root::host(), std::process::id());
        assert!(holder.ends_with(&format!(" (pid {})", std::process::id())));
        let both = [
            format!(
                "metrics.address: {address} is in use by {holder}; right would be one that is free"
            ),
            format!(
                "socket: {} is in use by {holder}; right would be one that is free",
                socket.display()
            ),
        ];
        assert_eq!(told(&config), both);

        let root = Root::at(base.directory());
        root.create_dir_all("/state").unwrap();
        let lock = base.write("state/lock", "");
        assert_eq!(told(&config), both, "of an agent that has ended");
        let lock = Lock::take(&lock).unwrap();
        assert!(matches!(lock, Taken::Lock(_)), "{lock:?}");
        assert_eq!(told(&config), [""; 0]);
        drop((lock, listener, unix));
        let left = told_of_free(&config, None);
        assert_eq!(left, [""; 0], "what is left of an agent is free");
        file.remove();
        base.write("agent.sock", "");
        let right = format!("socket: {} is there and is not a socket", socket.display());
        assert_eq!(told_of_free(&config, None), [right]);
    }

    /// This process holds all of them.
    #[test]
    fn what_another_agent_has_locked_is_told_unless_it_is_of_this_state_directory() {
        let base = Scratch::new("in-use");
        let config = config(base.directory(), "");
        let root = Root::at(base.directory());
        for directory in ["/state", "/pins", "/cgroup"] {
            root.create_dir_all(directory).unwrap();
        }
        let cgroup = base.path("cgroup");
        assert_eq!(told_of_free(&config, Some(&cgroup)), [""; 0]);
        let take = |path: &Path| match Lock::take(path).unwrap() {
            Taken::Lock(lock) => lock,
            Taken::HeldBy(holder) => panic!("{holder:?}"),
        };
        let locks = [take(&base.path("pins")), take(&cgroup)];
        let told = told_of(&config, Some(&cgroup));
        let pins = format!(
            "bpf.pinDirectory: {} is in use by ",
            base.path("pins").display()
        );
        let [first, second] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(first.starts_with(&pins), "{told:?}");
        let right = "kubelet.cgroupRoot: /pods is in use by ";
        assert!(second.starts_with(right), "{told:?}");

        let state = take(&base.path("state/lock"));
        assert_eq!(told_of(&config, Some(&cgroup)), [""; 0]);
        drop((state, locks));
        assert_eq!(told_of_free(&config, Some(&cgroup)), [""; 0]);
    }

    #[test]
    fn who_is_not_seen_may_be_the_agent_if_one_runs() {
        for (agent, holder, is_it) in [
            (HeldBy::Nobody, None, false),
            (HeldBy::Nobody, Some(1), false),
            (HeldBy::Unknown, None, true),
            (HeldBy::Unknown, Some(1), true),
            (HeldBy::Process(None), None, true),
            (HeldBy::Process(None), Some(1), true),
            (HeldBy::Process(Some(1)), None, true),
            (HeldBy::Process(Some(1)), Some(1), true),
            (HeldBy::Process(Some(1)), Some(2), false),
        ] {
            assert_eq!(may_be(agent, holder), is_it, "{agent:?} {holder:?}");
        }
    }
}
