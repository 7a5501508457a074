//! Who has the machine. What looks at all of it (kills outside the pods, other agents, a kubelet) runs one after the
//! other, whoever starts it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::progress::note;
use crate::{interrupt, workspace};

const LOCK: &str = "/run/ballast-machine.lock";

const POLL: Duration = Duration::from_millis(50);

/// It is had until this is dropped, or the program ends.
pub(crate) struct Machine {
    _lock: File,
}

impl Machine {
    /// Waits until nobody else has it. `what`: who has it then, for whoever waits.
    pub(crate) fn take(what: &str) -> Result<Self> {
        ensure!(
            workspace::is_root(),
            "{what} makes cgroups and loads eBPF programs: run it as root"
        );
        Self::take_by(LOCK, what).with_context(|| format!("lock {LOCK}"))
    }

    fn take_by(path: &str, what: &str) -> Result<Self> {
        interrupt::check()?;
        let mut options = OpenOptions::new();
        let mut lock = options.read(true).write(true).create(true).open(path)?;
        let mut has_waited = false;
        while let Err(error) = lock.try_lock() {
            if let TryLockError::Error(error) = error {
                return Err(error.into());
            }
            if !has_waited {
                let mut holder = String::new();
                lock.read_to_string(&mut holder)?;
                note(format_args!(
                    "waits for the machine, which {} has",
                    holder.trim()
                ));
                has_waited = true;
            }
            thread::sleep(POLL);
            interrupt::check()?;
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{what} (pid {})", std::process::id())?;
        Ok(Self { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn one_after_the_other_has_it() {
        let path = std::env::temp_dir().join(format!("ballast-machine-{}", std::process::id()));
        let path = path.to_str().expect("text").to_owned();
        let first = Machine::take_by(&path, "first").expect("nobody has it");
        let (sender, order) = mpsc::channel();
        let of_second = sender.clone();
        let second = thread::spawn({
            let path = path.clone();
            move || {
                let second = Machine::take_by(&path, "second");
                of_second.send("second").expect("it is read");
                drop(second.expect("it is free"));
            }
        });
        // Time enough for one that does not wait.
        thread::sleep(Duration::from_millis(200));
        sender.send("first").expect("it is read");
        drop(first);
        second.join().expect("it ends");
        assert_eq!(
            order.iter().take(2).collect::<Vec<_>>(),
            ["first", "second"]
        );
        let last = std::fs::read_to_string(&path).expect("it is there");
        assert!(last.starts_with("second (pid "), "{last}");
        std::fs::remove_file(&path).expect("it is there");
    }
}
