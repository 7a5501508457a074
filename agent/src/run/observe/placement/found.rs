//! What kubelet's files say at one moment, each by itself, and why some of it is not known, a line each.

use std::path::Path;
use std::time::Duration;

use super::super::kubelet::Kubelet;
use crate::config::{Compat, DEFAULT_ROOT_DIRECTORY, KubeletConfig};
use crate::decide::placement::foreign::ForeignBooks;
use crate::decide::placement::managers::{PlacementSettings, cpu_manager};
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_state::{CPU_FILE, MEMORY_FILE, OfPolicy, gives_out};
use crate::model::placement::CpuState;
use crate::model::pod::ResourceList;
use crate::model::topology::Topology;
use crate::sources::kubelet_state::{self, KubeletStateError};
use crate::sys::{FsError, Root};

/// Between two questions that are not answered.
const ASK_GAP: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) books: ForeignBooks,
    /// CPUs that it keeps for the system; `None`: which is not known.
    pub(super) reserved: Option<CpuSet>,
    pub(super) faults: ByFile<Vec<String>>,
}

/// Which CPUs kubelet says that it can give out.
#[derive(Debug, Default)]
pub(super) enum Allocatable {
    #[default]
    Unasked,
    Asked,
    Told(CpuSet),
    Refused {
        why: String,
        /// Boottime of the next question.
        again: Duration,
    },
}

impl Allocatable {
    pub(super) fn refused(why: String, now: Duration) -> Self {
        Self::Refused {
            why,
            again: now + ASK_GAP,
        }
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        match self {
            Self::Unasked => true,
            Self::Refused { again, .. } => now >= *again,
            Self::Asked | Self::Told(_) => false,
        }
    }

    /// `why`: what keeps it from being worked out.
    fn in_full(&self, why: String) -> String {
        match self {
            Self::Refused { why: refusal, .. } => {
                format!("{why}; and its pod resources API does not tell: {refusal}")
            }
            Self::Unasked | Self::Asked | Self::Told(_) => why,
        }
    }
}

/// Of each of its files.
#[derive(Debug, Default)]
pub(super) struct ByFile<T> {
    pub(super) cpu: T,
    pub(super) memory: T,
    pub(super) devices: T,
}

impl Found {
    /// Each file by itself. The error is that kubelet is gone, or that the agent may not look at its files.
    pub(super) fn read(
        kubelet: &Kubelet,
        root: &Root,
        topology: &Topology,
        allocatable: &Allocatable,
    ) -> Result<Self, FsError> {
        let files = kubelet.files(root)?;
        let read = |path: &Path, max_bytes| files.bytes(path, max_bytes);
        let directory = &kubelet.root_directory;
        let cpu = kubelet_state::find_cpus(&read, directory);
        let memory = kubelet_state::find_memory(&read, directory);
        // Wherever the rest of its state is (pkg/kubelet/cm/devicemanager/manager.go).
        let devices = kubelet_state::read_devices(&read, Path::new(DEFAULT_ROOT_DIRECTORY));
        let config = &kubelet.settings.kubelet.placement;
        let mut faults = ByFile::<Vec<String>>::default();
        let books = ForeignBooks {
            cpu: of_policy(
                cpu,
                "CPUs",
                &directory.join(CPU_FILE),
                ["cpuManagerPolicy", config.cpu_manager_policy.as_str()],
                &mut faults.cpu,
            ),
            memory: of_policy(
                memory,
                "memory",
                &directory.join(MEMORY_FILE),
                ["memoryManagerPolicy", config.memory_manager_policy.as_str()],
                &mut faults.memory,
            ),
            devices: usable(devices, "devices", None, &mut faults.devices),
        };
        let reserved = books.cpu.as_ref().and_then(|cpu| {
            let state = cpu.given_out()?;
            let is_told = cpu.policy == config.cpu_manager_policy.as_str();
            let why = match allocatable {
                Allocatable::Told(cpus) => {
                    let left_out = cpus.difference(&state.all());
                    if left_out.is_empty() {
                        return Some(topology.online().difference(cpus));
                    }
                    // As between the two times that it writes for one change.
                    format!(
                        "it says that it can give out CPUs {left_out}, and its file leaves them out"
                    )
                }
                // The line of the policy says it.
                _ if !is_told => return None,
                other => match reserved(&kubelet.settings.kubelet, topology, state) {
                    Ok(reserved) => return Some(reserved),
                    Err(why) => other.in_full(why),
                },
            };
            let line = format!("which CPUs kubelet keeps for the system is not known: {why}");
            faults.cpu.push(line);
            None
        });
        Ok(Self {
            books,
            reserved,
            faults,
        })
    }
}

impl Found {
    /// None of it can be read.
    pub(super) fn unreadable(error: &FsError) -> Self {
        let why = crate::observe::chain(error);
        Self {
            faults: ByFile {
                cpu: vec![format!("what kubelet has placed is not known: {why}")],
                ..ByFile::default()
            },
            ..Self::default()
        }
    }
}

/// The CPUs that kubelet keeps for the system, as it chooses them when it starts (pkg/kubelet/cm/cpumanager, v1.36:
/// `NewManager` and `NewStaticPolicy`). The error says why it cannot have come to `state` with these settings.
fn reserved(
    kubelet: &KubeletConfig,
    topology: &Topology,
    state: &CpuState,
) -> Result<CpuSet, String> {
    let of_cpu = kubelet.reserved("cpu");
    let settings = PlacementSettings {
        compat: Compat::Kubelet,
        config: kubelet.placement.clone(),
        reserved_system_cpus: kubelet.reserved_system_cpus.clone(),
        reservation: ResourceList::from([("cpu".to_owned(), of_cpu)]),
        topology: topology.clone(),
    };
    let manager = cpu_manager(&settings).map_err(|error| {
        let why = crate::observe::chain(&error);
        // The fields are kubelet's own here, and not those of a section of the agent's file.
        why.strip_prefix("kubelet.")
            .map_or(why.clone(), str::to_owned)
    })?;
    let manager = manager.ok_or("its policy gives none out")?;
    let checked = manager.fits(state);
    checked.map_err(|it| crate::observe::chain(&it))?;
    Ok(manager.reserved().clone())
}

/// `configured`: the policy that kubelet was told by `field`. It starts with none but that of its file.
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
            "kubelet was told {field} {configured}, and its file is of {policy}: it was told so after its start, or does \
             not start"
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
