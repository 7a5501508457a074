//! Whether the agent works: what `/healthz` and `/readyz` answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::sys::clock;

/// Alive while the loop completes passes; ready while nothing blocks. Clones share the state.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Mutex<State>>,
    max_pass_age: Duration,
}

#[derive(Debug)]
struct State {
    /// When the last pass was complete, or of the start, by [`clock::monotonic`]: while the node is suspended no pass
    /// is missing.
    last_pass: Duration,
    /// What is not ready yet, and why.
    blocked: BTreeMap<&'static str, String>,
}

impl Health {
    /// Alive until no pass completes for `max_pass_age`; not ready until `unblock` has been called
    /// for each of `waits_for`.
    pub fn new(max_pass_age: Duration, waits_for: impl IntoIterator<Item = &'static str>) -> Self {
        let blocked = waits_for
            .into_iter()
            .map(|part| (part, "not yet".to_owned()))
            .collect();
        Self {
            shared: Arc::new(Mutex::new(State {
                last_pass: clock::monotonic(),
                blocked,
            })),
            max_pass_age,
        }
    }

    /// A pass of the loop is complete.
    pub fn pass_done(&self) {
        self.lock().last_pass = clock::monotonic();
    }

    /// `part` is not ready, because of `reason`.
    pub fn block(&self, part: &'static str, reason: impl Into<String>) {
        self.lock().blocked.insert(part, reason.into());
    }

    /// `part` is ready.
    pub fn unblock(&self, part: &'static str) {
        self.lock().blocked.remove(part);
    }

    pub fn is_ready(&self) -> bool {
        self.lock().blocked.is_empty()
    }

    /// `Err`: one line for each part that is not ready.
    pub fn ready(&self) -> Result<(), String> {
        let state = self.lock();
        if state.blocked.is_empty() {
            return Ok(());
        }
        let line = |(part, reason): (&&str, &String)| format!("{part}: {reason}\n");
        Err(state.blocked.iter().map(line).collect())
    }

    /// `Err`: how long no pass has completed.
    pub fn alive(&self) -> Result<(), String> {
        let age = clock::monotonic().saturating_sub(self.lock().last_pass);
        if age <= self.max_pass_age {
            return Ok(());
        }
        Err(format!("no complete pass for {} s\n", age.as_secs()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_every_part_is_and_the_text_says_which_is_not() {
        let health = Health::new(Duration::from_secs(30), ["pods", "ebpf"]);
        assert_eq!(
            health.ready(),
            Err("ebpf: not yet\npods: not yet\n".to_owned())
        );
        health.unblock("ebpf");
        health.block("pods", "no such directory");
        assert_eq!(health.ready(), Err("pods: no such directory\n".to_owned()));
        health.unblock("pods");
        assert_eq!(health.ready(), Ok(()));
    }

    #[test]
    fn alive_while_passes_complete() {
        let health = Health::new(Duration::from_secs(3600), []);
        assert_eq!(health.alive(), Ok(()));
        let health = Health::new(Duration::ZERO, []);
        let begun = health.lock().last_pass;
        while clock::monotonic() == begun {}
        assert!(health.alive().is_err());
        health.pass_done();
        assert!(health.lock().last_pass > begun);
    }
}
