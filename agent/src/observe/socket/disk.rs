//! The disk of the state directory, which may hang.
//!
//! Invariant: no client waits for it longer than [`DISK_TIMEOUT`], and at most [`MAX_READS`] threads hang with it. The
//! runtime has a bound of such threads, and pages of metrics and SIGTERM need one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::CLIENT_TIMEOUT;

/// How long a client waits for what is read. A full ring of records takes a second.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(8);

// The client still listens then, and is told.
const _: () = assert!(DISK_TIMEOUT.as_secs() < CLIENT_TIMEOUT.as_secs());

/// Reads at a time; others wait for them.
pub(super) const MAX_READS: usize = 8;

/// Clones share what is read at a time.
#[derive(Clone)]
pub(super) struct Disk {
    pub(super) reads: Arc<Semaphore>,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(MAX_READS)),
        }
    }
}

impl Disk {
    /// What `read` gives. `None`: it takes too long, or those before it do. A read that has begun goes on without its
    /// client, and counts until it ends.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let reading = async {
            let permit = Arc::clone(&self.reads).acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            let reading = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                read()
            });
            reading.await.map_err(io::Error::other)
        };
        let read = tokio::time::timeout(DISK_TIMEOUT, reading).await;
        read.ok().transpose()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_is_not_waited_for_and_counts_until_it_ends() {
        let disk = Disk::default();
        let (begin, has_begun) = oneshot::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let of_client = disk.clone();
        let client = tokio::spawn(async move {
            let hang = move || {
                begin.send(()).unwrap();
                is_released.recv().is_ok()
            };
            of_client.read(hang).await.unwrap()
        });
        has_begun.await.unwrap();
        tokio::time::advance(DISK_TIMEOUT).await;
        assert_eq!(client.await.unwrap(), None);
        assert_eq!(disk.reads.available_permits(), MAX_READS - 1);
        release.send(()).unwrap();
        let all = u32::try_from(MAX_READS).unwrap();
        assert!(disk.reads.acquire_many(all).await.is_ok());
        assert_eq!(disk.read(|| 7).await.unwrap(), Some(7));
    }
}
