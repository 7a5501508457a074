//! One file per container under `<state>/containers`: what a later agent needs to adopt it.
//!
//! A record is born as `ID.starting` and becomes `ID.json` by the hand of the container's own
//! process, in its last step before its program. So `ID.json` means that the program ran, and
//! `ID.starting` that it never did, at whatever instant the agent was killed. Only a crash of the
//! node can lose that rename, and then the boot id tells.
//!
//! A file is two lines of JSON: a header with format and checksum, and the record.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::runtime::error::RecordError;
use crate::runtime::{ContainerId, ContainerRecord, RecordFault};
use crate::sys::launch::Rename;
use crate::sys::{Dir, FsError, Operation, Root, chain, durable, regular};

/// Changes with every change of [`ContainerRecord`] that an older agent would misread.
const FORMAT: u32 = 1;

/// Their directory, below the state directory.
pub const RECORDS: &str = "containers";
const RAN: &str = ".json";
const STARTING: &str = ".starting";
const CORRUPT: &str = ".corrupt";
/// A record has about 1 KiB; more than this is none.
const MAX_BYTES: u64 = 16 << 20;
/// Left by a write that was cut short (`sys::durable`).
const TEMPORARY: &str = ".tmp";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    /// Of the second line without its line end, hexadecimal.
    sha256: String,
}

/// A record with what its name says.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) record: ContainerRecord,
    pub(super) has_run: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Makes the directory where it is not there.
    pub(super) fn open(state_dir: &Path) -> Result<Self, FsError> {
        let dir = state_dir.join(RECORDS);
        Root::host().create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Writes the record of a container whose program has not run, to survive a crash of the node.
    pub(super) fn write_starting(&self, record: &ContainerRecord) -> Result<(), FsError> {
        let path = self.path(&record.id, STARTING);
        durable::write(&path, &encode(record, &path)?)
    }

    /// The rename that says that the program runs.
    pub(super) fn mark_run(&self, id: &ContainerId) -> Result<Rename, FsError> {
        let name =
            |suffix| CString::new(format!("{id}{suffix}")).expect("a container id has no NUL byte");
        Ok(Rename {
            dir: Dir::open(&self.dir)?,
            from: name(STARTING),
            to: name(RAN),
        })
    }

    /// Replaces the record of a container whose program has run. Not synced: it adds how it
    /// ended, which a crash of the node makes worthless for all but its own containers.
    pub(super) fn update(&self, record: &ContainerRecord) -> Result<(), FsError> {
        let path = self.path(&record.id, RAN);
        durable::replace(&path, &encode(record, &path)?)
    }

    /// Removes all there is about a container.
    pub(super) fn remove(&self, id: &ContainerId) -> Result<(), FsError> {
        self.remove_starting(id)?;
        Root::host().remove_file(self.path(id, RAN))
    }

    pub(super) fn remove_starting(&self, id: &ContainerId) -> Result<(), FsError> {
        Root::host().remove_file(self.path(id, STARTING))
    }

    /// Whether there is any file of a container, set aside or not. Where nobody can say, there is.
    pub(super) fn has(&self, id: &ContainerId) -> bool {
        self.suffixes(id).map_or(true, |it| !it.is_empty())
    }

    /// Whether all files of a container, set aside or not, say that its program has not run. False where there is none,
    /// or nobody can say.
    pub(super) fn is_cut_short(&self, id: &ContainerId) -> bool {
        let suffixes = self.suffixes(id).unwrap_or_default();
        !suffixes.is_empty() && suffixes.iter().all(|it| it.starts_with(STARTING))
    }

    /// What follows the id in the names of a container's files.
    fn suffixes(&self, id: &ContainerId) -> Result<Vec<String>, FsError> {
        let names = Root::host().list(&self.dir)?;
        let rests = names.iter().filter_map(|it| it.strip_prefix(id.as_str()));
        let suffixes = rests.filter(|it| it.starts_with('.'));
        Ok(suffixes.map(str::to_owned).collect())
    }

    /// Whether the program has run since the record was found as one that has not. Where nobody can say, it has: nothing
    /// runs twice.
    pub(super) fn has_run(&self, id: &ContainerId) -> bool {
        let found = Root::host().symlink_metadata(self.path(id, RAN));
        found.map_or_else(|error| !error.is_gone(), |_| true)
    }

    /// Every record, by id. What is damaged is set aside, what the kernel fails to read, or is of another format, stays;
    /// both are reported. Leftovers are removed.
    pub(super) fn load(&self) -> Result<(Vec<Found>, Vec<RecordFault>), FsError> {
        let host = Root::host();
        let mut found = Vec::new();
        let mut faults = Vec::new();
        for name in host.list(&self.dir)? {
            let path = self.dir.join(&name);
            let (id, has_run) = match (name.strip_suffix(RAN), name.strip_suffix(STARTING)) {
                (Some(id), _) => (id, true),
                (None, Some(id)) => (id, false),
                (None, None) => {
                    if name.ends_with(TEMPORARY)
                        && let Err(error) = host.remove_file(&path)
                    {
                        tracing::warn!(error = chain(&error), "remove what is left of a write");
                    }
                    continue;
                }
            };
            match read(&path, id) {
                Ok(record) => found.push(Found { record, has_run }),
                // The container's process renamed it after the list was made.
                Err(RecordError::File(error)) if error.is_gone() => {
                    let path = self.dir.join(format!("{id}{RAN}"));
                    match read(&path, id) {
                        Ok(record) => found.push(Found {
                            record,
                            has_run: true,
                        }),
                        Err(source) => faults.push(RecordFault { path, source }),
                    }
                }
                Err(source) => {
                    if source.is_damage() {
                        let mut aside = path.clone().into_os_string();
                        aside.push(CORRUPT);
                        // Where that fails it is found again by the next agent.
                        if let Err(error) = durable::rename(&path, Path::new(&aside)) {
                            tracing::error!(error = chain(&error), "set a record aside");
                        }
                    }
                    faults.push(RecordFault { path, source });
                }
            }
        }
        found.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        // Under both names: left by an agent killed between writing the one and removing the
        // other.
        found.dedup_by(|later, kept| {
            let is_same = later.record.id == kept.record.id;
            if is_same && later.has_run {
                std::mem::swap(later, kept);
            }
            is_same
        });
        Ok((found, faults))
    }

    fn path(&self, id: &ContainerId, suffix: &str) -> PathBuf {
        self.dir.join(format!("{id}{suffix}"))
    }
}

/// Containers of the agent of this directory whose first process is there, as far as their records can be read. For who
/// is not that agent: changes nothing. In another boot a process may have the pid and the start of one of them.
pub fn running(state_dir: &Path, boot_id: &str) -> Vec<ContainerRecord> {
    let dir = state_dir.join(RECORDS);
    let names = Root::host().list(&dir).unwrap_or_default();
    let records = names.iter().filter_map(|name| {
        let id = name.strip_suffix(RAN)?;
        read(&dir.join(name), id).ok()
    });
    let runs = |it: &ContainerRecord| it.boot_id == boot_id && it.process.is_there();
    records.filter(runs).collect()
}

fn read(path: &Path, id: &str) -> Result<ContainerRecord, RecordError> {
    let record = decode(&regular::whole_if_possible(path, MAX_BYTES)?)?;
    if record.id.as_str() != id {
        return Err(RecordError::OtherContainer { found: record.id });
    }
    Ok(record)
}

/// `path` is for the message: a path in the record that is not UTF-8 cannot be written.
fn encode(record: &ContainerRecord, path: &Path) -> Result<Vec<u8>, FsError> {
    let failed = |e| FsError::new(Operation::Write, path, io::Error::other(e));
    let body = serde_json::to_vec(record).map_err(failed)?;
    let header = Header {
        format: FORMAT,
        sha256: checksum(&body),
    };
    let header = serde_json::to_vec(&header).map_err(failed)?;
    Ok([header.as_slice(), b"\n", body.as_slice(), b"\n"].concat())
}

fn decode(bytes: &[u8]) -> Result<ContainerRecord, RecordError> {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let (Some(header), Some(body)) = (lines.next(), lines.next()) else {
        return Err(RecordError::NoHeader);
    };
    let header: Header = serde_json::from_slice(header).map_err(RecordError::Header)?;
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    let found = checksum(body);
    if found != header.sha256 {
        return Err(RecordError::Checksum {
            found,
            want: header.sha256,
        });
    }
    if header.format != FORMAT {
        return Err(RecordError::Format {
            found: header.format,
            want: FORMAT,
        });
    }
    serde_json::from_slice(body).map_err(RecordError::Content)
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::event::{CgroupId, ExitStatus};
    use crate::model::pod::{PodUid, ResourceList};
    use crate::runtime::{ContainerEnd, ContainerExit, ContainerOwner, HostProcess, JoinedCgroup};
    use crate::sys::scratch::Scratch;

    /// As the first release wrote it. A format stays readable as long as nodes may have it.
    const FORMAT_1: &str = include_str!("records/format-1.json");

    fn record() -> ContainerRecord {
        ContainerRecord {
            id: ContainerId::new("app-2-0123abcd").expect("valid"),
            owner: ContainerOwner {
                pod_uid: PodUid("8f14e45f".to_owned()),
                pod_namespace: "default".to_owned(),
                pod_name: "web".to_owned(),
                container: "app".to_owned(),
                attempt: 2,
            },
            spec_hash: "5f3c".to_owned(),
            pod_requests: ResourceList::new(),
            log_path: "/var/lib/ballast/logs/default_web_8f14e45f/app/2.log".into(),
            oom_score_adj: -997,
            cgroups: vec![JoinedCgroup {
                path: "/sys/fs/cgroup/kubepods/pod8f14e45f/app-2-0123abcd".into(),
                cgroup_id: CgroupId(4711),
            }],
            boot_id: "6b3f6f2e-54c8-4b5c-9c6c-0d8a4b1f2a77".to_owned(),
            process: HostProcess {
                pid: 1234,
                start_ticks: 567_890,
            },
            started_at: Duration::new(5_678, 900_000_001),
            end: Some(ContainerEnd {
                exit: ContainerExit::Known(ExitStatus::Signal {
                    signal: 9,
                    core_dumped: false,
                }),
                finished_at: Some(Duration::new(6_000, 1)),
            }),
        }
    }

    #[test]
    fn the_current_format_is_what_is_written_and_read() {
        let bytes = encode(&record(), Path::new("r")).expect("plain text");
        assert_eq!(String::from_utf8_lossy(&bytes), FORMAT_1);
        assert_eq!(decode(FORMAT_1.as_bytes()).expect("format 1"), record());
    }

    #[test]
    fn what_the_pod_requests_is_in_the_record() {
        let amount = "1500m".parse().expect("a quantity");
        let record = ContainerRecord {
            pod_requests: ResourceList::from([("cpu".to_owned(), amount)]),
            ..record()
        };
        let bytes = encode(&record, Path::new("r")).expect("plain text");
        assert_eq!(decode(&bytes).expect("what was written"), record);
    }

    #[test]
    fn what_is_damaged_is_set_aside_and_what_cannot_be_read_yet_stays() {
        let state = Scratch::new("records");
        let records = Records::open(state.directory()).expect("a directory");
        state.unreadable("containers/unread.json");
        state.write("containers/damaged.json", "spoilt");
        let later = FORMAT_1.replacen("\"format\":1", "\"format\":9", 1);
        state.write("containers/later.json", later);
        let body = "{\"of\":\"another form\"}";
        let sum = checksum(body.as_bytes());
        let other = format!("{{\"format\":1,\"sha256\":\"{sum}\"}}\n{body}\n");
        state.write("containers/other.json", other);
        let (found, faults) = records.load().expect("it can be listed");
        assert!(found.is_empty());
        let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(told[0].contains("damaged.json, set aside"), "{told:?}");
        assert!(told[1].contains("later.json, left"), "{told:?}");
        assert!(told[2].contains("other.json, left"), "{told:?}");
        assert!(told[3].contains("unread.json, left"), "{told:?}");
        let names = Root::host().list(&records.dir).expect("it can be listed");
        let right = [
            "damaged.json.corrupt",
            "later.json",
            "other.json",
            "unread.json",
        ];
        assert_eq!(names, right);
    }

    #[test]
    fn nothing_of_another_boot_runs() {
        let state = Scratch::new("boots");
        let records = Records::open(state.directory()).expect("a directory");
        let process = HostProcess::find(std::process::id()).expect("it is there");
        let record = ContainerRecord {
            process,
            ..record()
        };
        records.update(&record).expect("it can be written");
        let running = |boot_id: &str| running(state.directory(), boot_id).len();
        assert_eq!(running(&record.boot_id), 1);
        assert_eq!(running("another"), 0);
    }

    #[test]
    fn a_file_of_any_kind_is_a_record() {
        let state = Scratch::new("any-record");
        let records = Records::open(state.directory()).expect("a directory");
        let has = |id: &str| records.has(&ContainerId::new(id).expect("valid"));
        let is_cut_short = |id: &str| records.is_cut_short(&ContainerId::new(id).expect("valid"));
        for name in [
            "a-0.json",
            "b-0.starting",
            "c-0.json.corrupt",
            "e-0.starting.corrupt",
        ] {
            state.write(format!("containers/{name}"), "");
        }
        assert_eq!(["a-0", "b-0", "c-0", "e-0"].map(has), [true; 4]);
        assert_eq!(["a", "a-01", "d-0"].map(has), [false; 3]);
        let cut_short = ["a-0", "b-0", "c-0", "d-0", "e-0"].map(is_cut_short);
        assert_eq!(cut_short, [false, true, false, false, true]);
        let has_run = |id: &str| records.has_run(&ContainerId::new(id).expect("valid"));
        assert_eq!(["a-0", "b-0", "d-0"].map(has_run), [true, false, false]);
        Root::host().remove_dir_all(&records.dir).expect("removed");
        assert!(has("d-0") && !is_cut_short("b-0"), "nobody can say");
        state.write("containers", "");
        assert!(has_run("b-0"), "nobody can say");
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        for i in 0..FORMAT_1.len() - 1 {
            let mut bytes = FORMAT_1.as_bytes().to_vec();
            bytes[i] ^= 1;
            assert!(decode(&bytes).is_err(), "byte {i}");
            assert!(decode(&FORMAT_1.as_bytes()[..i]).is_err(), "{i} bytes");
        }
    }

    #[test]
    fn a_path_that_is_not_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let record = ContainerRecord {
            log_path: std::ffi::OsString::from_vec(vec![b'/', 0xff]).into(),
            ..record()
        };
        assert!(encode(&record, Path::new("r")).is_err());
    }
}
