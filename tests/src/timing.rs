//! How long decisions take that a test makes on its way. Per thread.

use std::cell::RefCell;
use std::mem;
use std::time::{Duration, Instant};

thread_local! {
    static TIMES: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
}

/// Makes a decision and notes the time it took.
pub fn decision<T>(decide: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let decided = decide();
    let took = started.elapsed();
    TIMES.with_borrow_mut(|it| it.push(took));
    decided
}

/// What was noted since the last time.
pub fn taken() -> Vec<Duration> {
    TIMES.with_borrow_mut(mem::take)
}
