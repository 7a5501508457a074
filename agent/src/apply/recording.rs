//! Writes recordings into a directory: one file after another, the oldest removed when they are too
//! large together. In: steps, from the thread that decides. Out: files as `model::recording` has
//! them.
//!
//! A thread of its own encodes and writes, so that a slow or full disk never holds up a decision:
//! what it cannot take in time is left out and counted. A step says all that it was decided from, so
//! a gap spoils no other step.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::model::recording::{Encoder, RecordingError};
use crate::model::time::WallTime;
use crate::sys::{FsError, Operation, Root, append, chain, clock};

/// Of the names of the files; between them is the time at which a file was begun.
const PREFIX: &str = "eviction-";
const SUFFIX: &str = ".story";

/// Steps that wait for the disk, at most: a second at the fastest sampling.
const QUEUE: usize = 256;

/// What a crash of the node may lose. A crash of the agent loses what is in the queue.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// How much recordings may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// All files together, but never less than the one that is being written.
    pub max_bytes: u64,
    /// From here on another file is begun.
    pub max_file_bytes: u64,
}

/// Why a recording cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the header of a recording")]
    Header(#[from] RecordingError),
    #[error("the header or a step of a recording as JSON")]
    Json(#[from] serde_json::Error),
}

/// What became of the steps so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    pub n_written: u64,
    /// Left out because the disk was too slow.
    pub n_dropped: u64,
    /// Could not be written.
    pub n_failed: u64,
    /// Since the recorder was opened, of all files.
    pub n_bytes: u64,
    /// When the oldest file that is kept was begun; `None`: its name does not say.
    pub oldest: Option<WallTime>,
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    /// Seconds since the epoch; 0: not known.
    oldest: AtomicU64,
}

/// Takes steps. When it is dropped, what waits is written first.
#[derive(Debug)]
pub struct Recorder<S> {
    steps: Option<SyncSender<S>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Serialize + Send + 'static> Recorder<S> {
    /// Begins a file in `directory`, which is made where it is not there.
    pub fn open(
        directory: &Path,
        limits: RecordingLimits,
        header: &impl Serialize,
    ) -> Result<Self, RecorderError> {
        let counters = Arc::new(Counters::default());
        let header = serde_json::to_value(header)?;
        let mut files = Files::open(directory, limits, header, Arc::clone(&counters))?;
        let (steps, todo) = sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("recorder".into())
            .spawn(move || files.write_all(&todo))
            .map_err(|e| FsError::new(Operation::Open, Path::new("recorder thread"), e))?;
        Ok(Self {
            steps: Some(steps),
            counters,
            thread: Some(thread),
        })
    }

    /// Hands a step over; never waits.
    pub fn push(&self, step: S) {
        let taken = self.steps.as_ref().map(|it| it.try_send(step));
        if !matches!(taken, Some(Ok(()))) {
            count(&self.counters.dropped, 1);
        }
    }

    pub fn counts(&self) -> RecorderCounts {
        RecorderCounts {
            n_written: self.counters.written.load(Ordering::Relaxed),
            n_dropped: self.counters.dropped.load(Ordering::Relaxed),
            n_failed: self.counters.failed.load(Ordering::Relaxed),
            n_bytes: self.counters.bytes.load(Ordering::Relaxed),
            oldest: Some(self.counters.oldest.load(Ordering::Relaxed))
                .filter(|it| *it > 0)
                .map(|seconds| WallTime::from_epoch(Duration::from_secs(seconds))),
        }
    }
}

impl<S> Drop for Recorder<S> {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _panicked = thread.join();
        }
    }
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// The files of a directory, and the one that is being written.
struct Files {
    root: Root,
    limits: RecordingLimits,
    header: Value,
    counters: Arc<Counters>,
    /// Finished ones with their sizes, oldest first.
    finished: VecDeque<(PathBuf, u64)>,
    /// `None`: the last one failed, and another is begun with the next step.
    current: Option<Current>,
    has_told: bool,
}

struct Current {
    file: File,
    path: PathBuf,
    n_bytes: u64,
    encoder: Encoder,
}

impl Files {
    fn open(
        directory: &Path,
        limits: RecordingLimits,
        header: Value,
        counters: Arc<Counters>,
    ) -> Result<Self, RecorderError> {
        let root = Root::at(directory);
        root.create_private_dir("/")?;
        let mut finished = VecDeque::new();
        let mut names = root.list("/")?;
        // The name begins with the time.
        names.sort_unstable();
        for name in names {
            if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                let n_bytes = root.metadata(&name)?.len();
                finished.push_back((PathBuf::from(name), n_bytes));
            }
        }
        let mut files = Self {
            root,
            limits,
            header,
            counters,
            finished,
            current: None,
            has_told: false,
        };
        files.current = Some(files.begin()?);
        files.count_oldest();
        Ok(files)
    }

    fn write_all<S: Serialize>(&mut self, todo: &Receiver<S>) {
        let mut is_synced = true;
        loop {
            match todo.recv_timeout(SYNC_EVERY) {
                Ok(step) => {
                    match self.write(&step) {
                        Ok(()) => count(&self.counters.written, 1),
                        Err(error) => self.failed(&error),
                    }
                    is_synced = false;
                }
                Err(RecvTimeoutError::Timeout) if is_synced => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.sync();
                    is_synced = true;
                }
                Err(RecvTimeoutError::Disconnected) => return self.sync(),
            }
        }
    }

    fn write(&mut self, step: &impl Serialize) -> Result<(), RecorderError> {
        let step = serde_json::to_value(step)?;
        let mut current = match self.current.take() {
            Some(current) if current.n_bytes < self.limits.max_file_bytes => current,
            full => {
                if let Some(full) = full {
                    self.finished.push_back((full.path, full.n_bytes));
                }
                self.begin()?
            }
        };
        let frame = match current.encoder.step(step) {
            Ok(frame) => frame,
            Err(error) => {
                self.current = Some(current);
                return Err(error.into());
            }
        };
        // A frame that is written in part ends the file: nothing after it could be read.
        let written = write_to(&mut current, &frame, &self.counters);
        match written {
            Ok(()) => self.current = Some(current),
            Err(error) => {
                self.finished.push_back((current.path, current.n_bytes));
                return Err(error.into());
            }
        }
        Ok(self.remove_oldest()?)
    }

    fn begin(&mut self) -> Result<Current, RecorderError> {
        let now = WallTime::from_epoch(clock::wall()).to_string();
        let name = format!("{PREFIX}{}{SUFFIX}", now.replace([':', '-'], ""));
        let (encoder, head) = Encoder::new(&self.header)?;
        let file = append::open(&self.root.path(&name))?;
        let mut current = Current {
            file: File::from(file),
            path: name.into(),
            n_bytes: 0,
            encoder,
        };
        write_to(&mut current, &head, &self.counters)?;
        Ok(current)
    }

    fn remove_oldest(&mut self) -> Result<(), FsError> {
        let of_current = self.current.as_ref().map_or(0, |it| it.n_bytes);
        let of_finished: u64 = self.finished.iter().map(|(_, n_bytes)| n_bytes).sum();
        let mut sum = of_current + of_finished;
        while sum > self.limits.max_bytes
            && let Some((path, n_bytes)) = self.finished.pop_front()
        {
            sum -= n_bytes;
            self.root.remove_file(&path)?;
        }
        self.count_oldest();
        Ok(())
    }

    fn count_oldest(&self) {
        let finished = self.finished.front().map(|(path, _)| path);
        let oldest = finished.or(self.current.as_ref().map(|it| &it.path));
        let begun = oldest.and_then(|it| begun_at(it)).unwrap_or_default();
        let seconds = begun.since_epoch().as_secs();
        self.counters.oldest.store(seconds, Ordering::Relaxed);
    }

    fn sync(&mut self) {
        if let Some(current) = &self.current
            && let Err(e) = current.file.sync_data()
        {
            let path = self.root.path(&current.path);
            self.failed(&FsError::new(Operation::Sync, &path, e).into());
        }
    }

    /// The first failure is told; all are counted.
    fn failed(&mut self, error: &RecorderError) {
        count(&self.counters.failed, 1);
        if !self.has_told {
            self.has_told = true;
            tracing::warn!(
                error = chain(error),
                "a step was not recorded; further ones are counted only"
            );
        }
    }
}

/// The time in the name of a file.
fn begun_at(path: &Path) -> Option<WallTime> {
    let name = path.to_str()?;
    name.strip_prefix(PREFIX)?
        .strip_suffix(SUFFIX)?
        .parse()
        .ok()
}

fn write_to(current: &mut Current, bytes: &[u8], counters: &Counters) -> Result<(), FsError> {
    current
        .file
        .write_all(bytes)
        .map_err(|e| FsError::new(Operation::Write, &current.path, e))?;
    let n_bytes = bytes.len() as u64;
    current.n_bytes += n_bytes;
    count(&counters.bytes, n_bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
