//! Endless loops beside the lanes: a test that waits for facts passes beside them too.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long something may take beside this many loops a core that may take `alone` without any: each has its
/// share of the core.
pub(crate) fn deadline(alone: Duration, for_each_core: u32) -> Duration {
    alone * (1 + for_each_core)
}

/// Loops that end with this value.
pub(super) struct Loops(Arc<AtomicBool>);

impl Loops {
    /// Starts `for_each_core` loops for each core.
    pub(super) fn start(for_each_core: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..for_each_core as usize * n_cores {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_grows_with_the_loops_beside_it() {
        let alone = Duration::from_mins(30);
        assert_eq!(deadline(alone, 0), alone);
        assert_eq!(deadline(alone, 2), Duration::from_mins(90));
    }
}
