//! The forensic records of OOM kills on disk: one sealed file each, named by its number, the oldest
//! removed when there is too much of it.
//!
//! Invariant: after every call the files take at most the bytes given, and a reader sees a record
//! whole or not at all. Files that no agent made are left alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checkpoint;
use crate::model::forensics::{KIND, MAX_RECORD_BYTES, OomRecord, RecordId, VERSION};
use crate::model::sealed;
use crate::sys::{FsError, Root, chain, durable};

/// The newest records, which the death of the node can have caught half on disk, are looked at when
/// the ring is opened. An older one that is damaged shows when it is read.
const CHECKED: usize = 16;

/// What [`checkpoint::set_aside`] adds to a name.
const SET_ASIDE: &str = ".corrupt";

/// What [`OomRing::open`] found besides records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Records, damaged ones left out.
    pub n_records: usize,
    /// Damaged; renamed, so that their bytes can be looked at until their turn to be removed comes.
    pub n_damaged: usize,
    /// Not of this agent.
    pub n_foreign: usize,
    /// Why something of it stays that should not, as on a disk that is read-only.
    pub fault: Option<String>,
}

impl Found {
    fn note(&mut self, tidied: Result<(), FsError>) {
        if let Err(error) = tidied {
            self.fault.get_or_insert_with(|| chain(&error));
        }
    }
}

/// See the module. One for each directory.
#[derive(Debug)]
pub struct OomRing {
    directory: PathBuf,
    max_bytes: u64,
    /// Size of each record, by its number.
    sizes: BTreeMap<RecordId, u64>,
    n_bytes: u64,
    /// Damaged ones. At most 16 come with a start, so they are not counted in the bound.
    set_aside: Vec<RecordId>,
    next: RecordId,
}

impl OomRing {
    /// Opens the ring in `directory`, made where it is not there, and removes what is over
    /// `max_bytes`. Lists names and sizes, and reads at most 16 records.
    pub fn open(directory: &Path, max_bytes: u64) -> Result<(Self, Found), FsError> {
        let root = Root::host();
        root.create_private_dir(directory)?;
        let mut ring = Self {
            directory: directory.to_owned(),
            max_bytes,
            sizes: BTreeMap::new(),
            n_bytes: 0,
            set_aside: Vec::new(),
            next: RecordId(1),
        };
        let mut found = Found::default();
        for name in root.list(directory)? {
            let path = directory.join(&name);
            let is_unfinished = name
                .strip_suffix(".tmp")
                .and_then(RecordId::of_file)
                .is_some();
            let set_aside = name.strip_suffix(SET_ASIDE).and_then(RecordId::of_file);
            match (RecordId::of_file(&name), set_aside) {
                (Some(id), _) => ring.note(id, root.metadata(&path)?.len()),
                (None, Some(id)) => ring.set_aside.push(id),
                (None, None) if is_unfinished => found.note(root.remove_file(&path)),
                (None, None) => found.n_foreign += 1,
            }
        }
        let set_aside = ring.set_damaged_aside(&root, &mut found.n_damaged);
        found.note(set_aside);
        found.note(ring.make_room(0));
        found.n_records = ring.sizes.len();
        Ok((ring, found))
    }

    /// Number of the next record.
    pub fn next_id(&self) -> RecordId {
        self.next
    }

    pub fn has(&self, id: RecordId) -> bool {
        self.sizes.contains_key(&id)
    }

    /// Path of a record, also of one that is not there.
    pub fn path(&self, id: RecordId) -> PathBuf {
        self.directory.join(id.file_name())
    }

    /// Writes a record, or a newer state of it. It survives the death of the agent at once, that of
    /// the node after [`durable::sync`] of its path.
    pub fn write(&mut self, id: RecordId, bytes: &[u8]) -> Result<(), FsError> {
        let size = bytes.len() as u64;
        self.make_room(size)?;
        durable::replace(&self.path(id), bytes)?;
        self.forget(id);
        self.note(id, size);
        Ok(())
    }

    fn note(&mut self, id: RecordId, size: u64) {
        self.n_bytes += size;
        self.sizes.insert(id, size);
        self.next = self.next.max(id.next());
    }

    fn forget(&mut self, id: RecordId) {
        self.n_bytes -= self.sizes.remove(&id).unwrap_or(0);
    }

    /// Removes the oldest records until `size` bytes more fit.
    fn make_room(&mut self, size: u64) -> Result<(), FsError> {
        while self.n_bytes + size > self.max_bytes
            && let Some((&oldest, _)) = self.sizes.first_key_value()
        {
            let root = Root::host();
            root.remove_file(self.path(oldest))?;
            self.forget(oldest);
            for id in self.set_aside.extract_if(.., |id| *id <= oldest) {
                let name = id.file_name() + SET_ASIDE;
                root.remove_file(self.directory.join(name))?;
            }
        }
        Ok(())
    }

    fn set_damaged_aside(&mut self, root: &Root, n_damaged: &mut usize) -> Result<(), FsError> {
        let newest: Vec<RecordId> = self.sizes.keys().rev().take(CHECKED).copied().collect();
        for id in newest {
            let bytes = root.read_at_most(self.path(id), MAX_RECORD_BYTES as u64);
            let opened = bytes.map(|it| sealed::open::<OomRecord>(KIND, VERSION, &it));
            match opened {
                Ok(Ok(_)) => {}
                // Of another version of the agent, which may come back.
                Ok(Err(error)) if !error.is_damage() => {}
                // Or what is there is no file.
                Ok(Err(_)) | Err(_) => {
                    checkpoint::set_aside(&self.path(id))?;
                    self.forget(id);
                    self.set_aside.push(id);
                    *n_damaged += 1;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
