//! The last of what has ended, for events that are still on their way.

use std::collections::VecDeque;

/// How many that have ended stay known: a thousand pods of one container. The loop removes a few hundred
/// cgroups a second at most and an event waits a second at most, so this many cannot end while one waits.
pub const KEPT: usize = 2_048;
/// Path, pod and container of each take some half a KiB: together no more than a MiB.
const _: () = assert!(KEPT * 512 <= 1 << 20);

/// The newest [`KEPT`], the oldest first.
#[derive(Debug)]
pub struct Ended<T>(VecDeque<T>);

impl<T: PartialEq> Ended<T> {
    /// Gives the one that is to be forgotten for it, if there are too many.
    pub fn push(&mut self, ended: T) -> Option<T> {
        self.0.push_back(ended);
        match self.0.len() > KEPT {
            true => self.0.pop_front(),
            false => None,
        }
    }

    pub fn contains(&self, it: &T) -> bool {
        self.0.contains(it)
    }

    /// It has not ended after all, or is there again. True: it was among these.
    pub fn remove(&mut self, it: &T) -> bool {
        let n = self.0.len();
        self.0.retain(|ended| ended != it);
        self.0.len() < n
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T> Default for Ended<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}
