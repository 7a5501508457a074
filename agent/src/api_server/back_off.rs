//! How long it is waited before the API server is tried again.

use std::time::Duration;

use super::Patience;
use crate::sys::clock;

/// The longest wait, at first and at last. All agents of a cluster miss its API server at one moment, and it may tell
/// all of them to wait for as long, so each waits for a random part of it besides.
pub(super) const FIRST: Duration = Duration::from_millis(800);
pub(super) const LAST: Duration = Duration::from_secs(30);

/// Twice as long each time.
pub(super) struct BackOff {
    patience: Patience,
    longest: Duration,
}

impl BackOff {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            longest: patience.first_pause,
        }
    }

    /// What was tried went well.
    pub(super) fn reset(&mut self) {
        self.longest = self.patience.first_pause;
    }

    /// `least`: what was asked for.
    pub(super) async fn wait(&mut self, least: Duration) {
        tokio::time::sleep(least + clock::random_part(self.longest)).await;
        self.longest = (self.longest * 2).min(self.patience.last_pause);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// How long it waits, by the paused clock.
    async fn pause(back_off: &mut BackOff, least: Duration) -> Duration {
        let began = Instant::now();
        back_off.wait(least).await;
        began.elapsed()
    }

    fn at_its_longest() -> BackOff {
        BackOff {
            patience: Patience::default(),
            longest: LAST,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_the_longest_and_begin_anew_after_a_reset() {
        let mut back_off = BackOff::new(Patience::default());
        for _ in 0..2 {
            for longest in [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
                let longest = Duration::from_millis(longest);
                assert_eq!(back_off.longest, longest);
                let pause = pause(&mut back_off, Duration::ZERO).await;
                assert!(pause <= longest, "{pause:?} of {longest:?}");
            }
            back_off.reset();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_have_any_length_up_to_the_longest() {
        let mut back_off = at_its_longest();
        let mut pauses = Vec::new();
        for _ in 0..1000 {
            pauses.push(pause(&mut back_off, Duration::ZERO).await);
        }
        let (shortest, longest) = (pauses.iter().min(), pauses.iter().max());
        assert!(shortest < Some(&(LAST / 4)), "{shortest:?}");
        assert!(longest > Some(&(LAST / 4 * 3)), "{longest:?}");
        assert!(longest <= Some(&LAST), "{longest:?}");
    }

    /// One API server says the same to all agents.
    #[tokio::test(start_paused = true)]
    async fn no_pause_is_shorter_than_was_asked_for_nor_are_all_as_long() {
        let mut back_off = at_its_longest();
        let least = LAST * 2;
        let mut pauses = Vec::new();
        for _ in 0..1000 {
            pauses.push(pause(&mut back_off, least).await);
        }
        let (shortest, longest) = (pauses.iter().min(), pauses.iter().max());
        assert!(shortest >= Some(&least), "{shortest:?}");
        assert!(shortest < Some(&(least + LAST / 4)), "{shortest:?}");
        assert!(longest > Some(&(least + LAST / 4 * 3)), "{longest:?}");
        assert!(longest <= Some(&(least + LAST)), "{longest:?}");
    }
}
