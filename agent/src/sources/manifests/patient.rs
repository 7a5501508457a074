//! A directory of manifests on a file system that may hang, as one of a server that is away does: nobody waits for
//! longer than a moment, and what was read last stands.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{ManifestDirectory, ManifestFault, ManifestScan, Running};
use crate::sys::chain;
use crate::sys::patience::Errand;

/// How long a reading is waited for. A thousand files on a local disk that is in order take a tenth of it.
const LONGEST: Duration = Duration::from_secs(1);
/// The same of one that was late.
const LATE: Duration = Duration::from_millis(10);

/// See the module.
pub struct PatientDirectory {
    path: PathBuf,
    /// A reading that hangs holds it.
    directory: Arc<Mutex<ManifestDirectory>>,
    /// It was waited for in vain.
    late: Option<Errand<ManifestScan>>,
    is_late: Arc<AtomicBool>,
    /// Called by a thread when a reading is done that was late.
    on_late: Arc<dyn Fn() + Send + Sync>,
    last: ManifestScan,
}

impl fmt::Debug for PatientDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatientDirectory")
            .field("path", &self.path)
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

impl PatientDirectory {
    pub fn new(directory: ManifestDirectory, on_late: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            path: directory.path().to_owned(),
            directory: Arc::new(Mutex::new(directory)),
            late: None,
            is_late: Arc::default(),
            on_late: Arc::new(on_late),
            last: ManifestScan::default(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As [`ManifestDirectory::prefer`], before the first scan.
    pub fn prefer(&mut self, running: BTreeMap<String, Running>) {
        if let Ok(mut directory) = self.directory.try_lock() {
            directory.prefer(running);
        }
    }

    /// As [`ManifestDirectory::scan`]. Where that takes too long, what was read last, as incomplete, and again until it
    /// is done.
    pub fn scan(&mut self) -> ManifestScan {
        let (reading, longest) = match self.late.take() {
            Some(late) => (late, LATE),
            None => match self.begin() {
                Ok(reading) => (reading, LONGEST),
                Err(error) => return self.last_with(format!("make a thread: {}", chain(&error))),
            },
        };
        if let Some(scan) = reading.wait(longest) {
            self.is_late.store(false, Ordering::Release);
            self.last = scan.clone();
            return scan;
        }
        self.is_late.store(true, Ordering::Release);
        self.late = Some(reading);
        self.last_with(format!(
            "was not read within {} s; the pods of the last reading stay",
            LONGEST.as_secs()
        ))
    }

    fn begin(&self) -> std::io::Result<Errand<ManifestScan>> {
        let (directory, is_late) = (Arc::clone(&self.directory), Arc::clone(&self.is_late));
        let on_late = Arc::clone(&self.on_late);
        Errand::start(move |_| {
            let mut directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            let scan = directory.scan();
            // It is taken by the next reading. Who stops to wait in this moment looks again by the clock.
            if is_late.load(Ordering::Acquire) {
                on_late();
            }
            scan
        })
    }

    /// What was read last, with a fault.
    fn last_with(&self, why: String) -> ManifestScan {
        let mut scan = self.last.clone();
        scan.is_complete = false;
        scan.faults
            .push(ManifestFault::of_file(self.path.clone(), why));
        scan
    }
}
