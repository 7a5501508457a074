//! How a test waits for a fact: it looks until the fact is there, and one generous bound says when that will
//! never be. How long something takes is measured by `cargo xtask bench`.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Between two looks.
pub const STEP: Duration = Duration::from_millis(10);

/// How long a test waits for anything: 60 s, twenty times that in an emulated machine.
pub fn patience() -> Duration {
    const PATIENCE: Duration = Duration::from_secs(60);
    on_this_machine(PATIENCE)
}

/// What takes so long on a real machine takes twenty times as long on an emulated one.
pub fn on_this_machine(time: Duration) -> Duration {
    match std::env::var_os("BALLAST_VM") {
        Some(_) => 20 * time,
        None => time,
    }
}

/// Looks until `look` finds it; the error has what its last look says.
pub fn until<T>(what: &str, look: impl FnMut() -> Result<T>) -> Result<T> {
    until_within(patience(), what, look)
}

/// The same of what is made of many facts, which may take longer than one.
pub fn until_within<T>(
    bound: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        match look() {
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("not after {bound:?}: {what}"));
            }
            Err(_) => thread::sleep(STEP),
            found => return found,
        }
    }
}

/// Looks until `is_it`. An error of the look itself ends the wait.
pub fn wait_for(what: &str, mut is_it: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience();
    while !is_it()? {
        let is_early = Instant::now() < deadline;
        ensure!(is_early, "not after {:?}: {what}", patience());
        thread::sleep(STEP);
    }
    Ok(())
}

/// Looks until `is_it`, and gives whether it came to that: for tidying up, which never fails.
pub fn comes_true(mut is_it: impl FnMut() -> bool) -> bool {
    wait_for("", || Ok(is_it())).is_ok()
}
