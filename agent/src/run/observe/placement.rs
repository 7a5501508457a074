//! Which CPUs, memory and devices kubelet has given to which containers, by the files that it keeps of that: they are
//! right without an API server, and say nothing of names.

use std::path::Path;
use std::time::Duration;

use super::Loop;
use super::kubelet::Kubelet;
use crate::config::{DEFAULT_ROOT_DIRECTORY, KubeletConfig};
use crate::decide::placement::foreign::ForeignBooks;
use crate::model::kubelet_state::{CPU_FILE, MEMORY_FILE, OfPolicy, gives_out};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::status::PlacementStatus;
use crate::model::topology::Topology;
use crate::run::publisher::Began;
use crate::sources::kubelet_state::{self, KubeletStateError};
use crate::sys::{FsError, Root};

/// Between two looks at the files, while pods come and go.
const LOOK_GAP: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// As kubelet had them when it ran last; `None`: none was known.
    found: Option<Found>,
    /// The files are to be read again.
    pub(super) is_behind: bool,
    /// When that is due at the earliest, boottime.
    due: Duration,
}

#[derive(Debug)]
struct Found {
    books: ForeignBooks,
    /// Why some of it is not known, a line each.
    faults: Vec<String>,
}

impl Found {
    /// Each file by itself. The error is that kubelet is gone.
    fn read(kubelet: &Kubelet, root: &Root) -> Result<Self, FsError> {
        let files = kubelet.files(root)?;
        let read = |path: &Path, max_bytes| files.bytes(path, max_bytes);
        let directory = &kubelet.root_directory;
        let cpu = kubelet_state::find_cpus(&read, directory);
        let memory = kubelet_state::find_memory(&read, directory);
        // Wherever the rest of its state is (pkg/kubelet/cm/devicemanager/manager.go).
        let devices = kubelet_state::read_devices(&read, Path::new(DEFAULT_ROOT_DIRECTORY));
        let config = &kubelet.settings.kubelet.placement;
        let mut faults = Vec::new();
        let books = ForeignBooks {
            cpu: of_policy(
                cpu,
                "CPUs",
                &directory.join(CPU_FILE),
                ["cpuManagerPolicy", config.cpu_manager_policy.as_str()],
                &mut faults,
            ),
            memory: of_policy(
                memory,
                "memory",
                &directory.join(MEMORY_FILE),
                ["memoryManagerPolicy", config.memory_manager_policy.as_str()],
                &mut faults,
            ),
            devices: usable(devices, "devices", None, &mut faults),
        };
        Ok(Self { books, faults })
    }
}

/// `configured`: the policy that kubelet was told by `field`. It starts with none but that of its file, so another one
/// is not its own.
fn of_policy<T>(
    found: Result<Option<OfPolicy<T>>, KubeletStateError>,
    what: &str,
    file: &Path,
    [field, configured]: [&str; 2],
    faults: &mut Vec<String>,
) -> Option<OfPolicy<T>> {
    let missing = gives_out(configured).then(|| format!("there is no {}", file.display()));
    let found = usable(found, what, missing, faults)?;
    let policy = &found.policy;
    if policy != configured {
        faults.push(format!(
            "kubelet places by {field} {policy}, as its file says, and not by {configured}"
        ));
    }
    Some(found)
}

/// `missing`: what it means that there is no file.
fn usable<T>(
    found: Result<Option<T>, KubeletStateError>,
    what: &str,
    missing: Option<String>,
    faults: &mut Vec<String>,
) -> Option<T> {
    let why = match found {
        Ok(Some(found)) => return Some(found),
        Ok(None) => missing,
        Err(error) => Some(crate::observe::chain(&error)),
    };
    faults.extend(why.map(|it| format!("to whom kubelet has given {what} is not known: {it}")));
    None
}

impl Placement {
    /// Boottime; `None`: nothing has changed.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.is_behind.then_some(self.due)
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let faults = self.found.as_ref().map(|it| it.faults.clone());
        faults.unwrap_or_default()
    }

    /// See [`ForeignBooks::summary`].
    pub(super) fn status<'a>(
        &self,
        kubelet: &KubeletConfig,
        topology: &Topology,
        pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
    ) -> Option<PlacementStatus> {
        let books = &self.found.as_ref()?.books;
        let reserved = kubelet.reserved_system_cpus.as_ref();
        Some(books.summary(&kubelet.placement, reserved, topology, pod_of))
    }

    /// See [`ForeignBooks::cpus_of`].
    pub(super) fn cpuset(&self, pod: &PodUid, container: &str) -> Option<String> {
        let books = &self.found.as_ref()?.books;
        books.cpus_of(pod, container).map(ToString::to_string)
    }
}

impl Loop {
    /// Reads kubelet's files again, if pods have come or gone since. While kubelet is down they stand.
    pub(super) fn look_for_places(&mut self, now: Duration) {
        if !self.placement.is_behind || now < self.placement.due {
            return;
        }
        let began = Began::now();
        let root = Root::host();
        let found = match &self.kubelet {
            Err(_) => Some(None),
            // Another process may have its number by now.
            Ok(kubelet) if !kubelet.is_there(&root) => None,
            Ok(kubelet) => Found::read(kubelet, &root).ok().map(Some),
        };
        if let Some(found) = found {
            let is_there = |uid: &PodUid| self.tree.readings.pod(uid).is_some();
            let books = found.as_ref().map(|it| &it.books);
            self.placement.is_behind = books.is_some_and(|it| it.is_behind(is_there));
            self.placement.found = found;
            self.publisher.changed(now);
        }
        self.placement.due = began.due_again(LOOK_GAP);
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the files that are read; a failed fixture fails the test"
)]
mod tests;
