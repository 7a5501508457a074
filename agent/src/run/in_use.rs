//! Whether the addresses of a configuration are free, looked at without taking any. One that the agent of this very
//! configuration holds is as it should be: that a second one cannot start is told by the lock of the state directory.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::RunError;
use super::exclusive::STATE_LOCK;
use crate::config::Config;
use crate::observe::http;
use crate::sources::listeners;
use crate::sys::unix_socket::{self, ListenError};
use crate::sys::{Root, clock, lock};

/// How long an address may still be held by an agent that was just killed.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(250);

/// See the module.
pub(super) fn faults(root: &Root, config: &Config) -> Vec<RunError> {
    let began = clock::boottime();
    loop {
        let agent = lock::held_by(&root.path(config.state_directory.join(STATE_LOCK)));
        let address = config.metrics.address.filter(|it| http::is_in_use(*it));
        let socket = unix_socket::check_free(&root.path(&config.socket));
        let is_held = address.is_some() || matches!(socket, Err(ListenError::InUse { .. }));
        let is_late = clock::boottime().saturating_sub(began) > PATIENCE;
        // An agent that runs goes on.
        if agent.is_some() || is_late || !is_held {
            return judge(root, agent, address, socket);
        }
        thread::sleep(STEP);
    }
}

/// `address` is in use. `agent`: as [`lock::held_by`] has it.
fn judge(
    root: &Root,
    agent: Option<Option<u32>>,
    address: Option<SocketAddr>,
    socket: Result<(), ListenError>,
) -> Vec<RunError> {
    let in_use = |field, address: String, holder: Option<u32>| {
        (!may_be(agent, holder)).then(|| RunError::InUse {
            field,
            address,
            holder: holder.map(|it| listeners::name(root, it)),
        })
    };
    let mut faults = Vec::new();
    faults.extend(address.and_then(|address| {
        let holder = listeners::process_at(root, address, agent.flatten());
        in_use("metrics.address", address.to_string(), holder)
    }));
    faults.extend(match socket {
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
    faults
}

/// Whether who holds an address may be the agent of this configuration, which holds the lock. Either may be a process
/// that is not seen from here.
fn may_be(agent: Option<Option<u32>>, holder: Option<u32>) -> bool {
    match (agent, holder) {
        (None, _) => false,
        (Some(Some(agent)), Some(holder)) => agent == holder,
        (Some(_), _) => true,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use super::*;
    use crate::sys::lock::{Lock, Taken};
    use crate::sys::scratch::Scratch;

    fn config(base: &Path, address: &str) -> Config {
        let base = base.display();
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             stateDirectory: {base}/state\nsocket: {base}/agent.sock\nmetrics: {{address: \"{address}\"}}\n"
        );
        Config::from_yaml(&text, None, &[]).unwrap().config
    }

    fn told(config: &Config) -> Vec<String> {
        let faults = faults(&Root::host(), config);
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
        let (unix, file) = unix_socket::listen(&socket).unwrap();
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
        assert_eq!(told(&config), [""; 0], "what is left of an agent is free");
        file.remove();
        base.write("agent.sock", "");
        let right = format!("socket: {} is there and is not a socket", socket.display());
        assert_eq!(told(&config), [right]);
    }

    #[test]
    fn who_is_not_seen_may_be_the_agent_if_one_runs() {
        for (agent, holder, is_it) in [
            (None, None, false),
            (None, Some(1), false),
            (Some(None), None, true),
            (Some(None), Some(1), true),
            (Some(Some(1)), None, true),
            (Some(Some(1)), Some(1), true),
            (Some(Some(1)), Some(2), false),
        ] {
            assert_eq!(may_be(agent, holder), is_it, "{agent:?} {holder:?}");
        }
    }
}
