//! What the demo said would happen, and whether it did.

use crate::progress;

/// See the module.
#[derive(Default)]
pub(super) struct Promises {
    n_kept: usize,
    broken: Vec<String>,
}

impl Promises {
    /// Says whether a promise was kept, and remembers it.
    pub(super) fn check(&mut self, promise: &str, is_kept: bool) {
        if is_kept {
            self.n_kept += 1;
            progress::note(format_args!("kept: {promise}"));
        } else {
            progress::note(format_args!("NOT KEPT: {promise}"));
            self.broken.push(promise.to_owned());
        }
    }

    pub(super) fn all_kept(&self) -> bool {
        self.broken.is_empty()
    }

    pub(super) fn broken(&self) -> &[String] {
        &self.broken
    }

    pub(super) fn count(&self) -> usize {
        self.n_kept
    }
}
