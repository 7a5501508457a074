//! Reads the forensic records of OOM kills back from their ring on disk, also those of an agent that
//! ran before. The agent goes on writing meanwhile: a record is there whole or not at all.

use std::path::Path;
use std::time::Duration;

use crate::model::forensics::{Counted, KIND, MAX_RECORD_BYTES, OomRecord, RecordId, VERSION};
use crate::model::pod::PodUid;
use crate::model::record::{Event, PodRef};
use crate::model::sealed;
use crate::sys::{FsError, Root};

/// From the first kill of a record to its last, at most; and how much later than a younger record it may be numbered.
const SPAN: Duration = Duration::from_secs(10);

/// Records of a pod that are shown, and how many records are looked at for them, newest first:
/// a full ring of the smallest takes a second.
const OF_POD: usize = 5;
const LOOKED_AT: usize = 1000;

/// Numbers of the records that are there, oldest first; reads none of them.
pub fn ids(directory: &Path) -> Result<Vec<RecordId>, FsError> {
    match Root::host().list(directory) {
        Ok(names) => Ok(names
            .iter()
            .filter_map(|it| RecordId::of_file(it))
            .collect()),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// One record. `None`: it has been removed, is damaged, or of another version of the agent.
pub fn read(directory: &Path, id: RecordId) -> Option<OomRecord> {
    let path = directory.join(id.file_name());
    let bytes = Root::host().read_at_most(&path, MAX_RECORD_BYTES as u64);
    match sealed::open(KIND, VERSION, &bytes.ok()?) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!(path = %path.display(), error = crate::sys::chain(&error), "OOM record");
            None
        }
    }
}

/// The newest [`LOOKED_AT`] records, each read when it is asked for, the newest first.
fn newest(directory: &Path) -> Result<impl Iterator<Item = OomRecord>, FsError> {
    let newest = ids(directory)?.into_iter().rev().take(LOOKED_AT);
    Ok(newest.filter_map(move |id| read(directory, id)))
}

/// Kills that are on record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedKills {
    /// Oldest first.
    pub named: Vec<Event>,
    /// How many more there were.
    pub n_unnamed: u64,
}

/// The kills of a boot that happened after `since`, boottime; of the newest [`LOOKED_AT`] records.
pub fn kills_since(
    directory: &Path,
    boot_id: &str,
    since: Duration,
) -> Result<RecordedKills, FsError> {
    let records = newest(directory)?;
    let records = records.take_while(|it| it.boot_id.as_deref() == Some(boot_id));
    let is_after = |it: &Event| at(it) > since;
    let mut found = RecordedKills::default();
    // They are in the order of their first kills, and a kill that joins an old one may be the youngest.
    for record in records.take_while(|it| at(&it.event) + SPAN > since) {
        found.n_unnamed += record.n_unnamed_after(since);
        found.named.extend(record.kills().filter(is_after));
    }
    found.named.sort_by_key(|it| it.boottime_ns);
    Ok(found)
}

/// A kill that is on record.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberedKill {
    pub event: Event,
    pub counted: Counted,
    /// The record is its own, and others have joined it.
    pub is_first: bool,
}

/// Kills of a boot with a higher number than this, in the order of their numbers; of the newest [`LOOKED_AT`] records,
/// and of the last [`SPAN`] in which there are some.
pub fn numbered_after(
    directory: &Path,
    boot_id: &str,
    number: u64,
) -> Result<Vec<NumberedKill>, FsError> {
    let mut youngest = None;
    let records = newest(directory)?.take_while(|it| {
        let began = at(&it.event);
        let youngest = *youngest.get_or_insert(began);
        it.boot_id.as_deref() == Some(boot_id) && began + SPAN > youngest
    });
    let mut found = Vec::new();
    for record in records {
        let kills = record.counted_kills().filter(|(_, it)| it.number > number);
        found.extend(kills.map(|(event, counted)| NumberedKill {
            event,
            counted: counted.clone(),
            is_first: record.counted.as_ref() == Some(counted),
        }));
    }
    found.sort_by_key(|it| it.counted.number);
    Ok(found)
}

fn at(kill: &Event) -> Duration {
    Duration::from_nanos(kill.boottime_ns)
}

/// The last records with a victim in the pod, newest first.
pub fn of_pod(
    directory: &Path,
    is_pod: impl Fn(Option<&PodRef>, Option<&PodUid>) -> bool,
) -> Result<Vec<OomRecord>, FsError> {
    let of_pod = newest(directory)?.filter(|it| it.has_victim_in(&is_pod));
    Ok(of_pod.take(OF_POD).collect())
}

#[cfg(test)]
mod tests;
