//! Endless loops beside the lanes: a test that waits for facts passes beside them too.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

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
