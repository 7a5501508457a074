//! Programs that are looked for along a `PATH`. A directory of it may be on a file system that does not answer, as NFS
//! whose server is away: each container's search has a thread of its own, so it holds up no other start.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::runtime::{ContainerId, StartError};
use crate::sys::Root;
use crate::sys::patience::Errand;

/// How long a start waits for its search before it makes room for others. Arbitrary: a local disk that is in order takes
/// less than a millisecond for all of a `PATH`.
const LONGEST: Duration = Duration::from_millis(200);

/// Those that have not answered yet, of one container each.
#[derive(Debug, Default)]
pub(super) struct Searches(Mutex<BTreeMap<ContainerId, Search>>);

#[derive(Debug)]
struct Search {
    candidates: Arc<[PathBuf]>,
    /// The index of the one that is looked at.
    at: Arc<AtomicUsize>,
    errand: Errand<Option<PathBuf>>,
}

impl Searches {
    /// The first of `candidates` that is a program; `None`: none is. A search that takes long goes on, and is asked again
    /// by the next call.
    pub(super) fn find(
        &self,
        id: &ContainerId,
        candidates: Vec<PathBuf>,
    ) -> Result<Option<PathBuf>, StartError> {
        let begun = self.lock().remove(id);
        let (search, longest) = match begun.filter(|it| *it.candidates == *candidates) {
            Some(search) => (search, Duration::ZERO),
            None => (Search::begin(candidates.into())?, LONGEST),
        };
        if let Some(found) = search.errand.wait(longest) {
            return Ok(found);
        }
        let at = search.candidates.get(search.at.load(Ordering::Relaxed));
        let at = at.cloned().unwrap_or_default();
        self.lock().insert(id.clone(), search);
        Err(StartError::SearchHangs { at })
    }

    /// Nobody asks any more.
    pub(super) fn forget(&self, id: &ContainerId) {
        self.lock().remove(id);
    }

    /// A panic of a holder leaves whole entries.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Search>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Search {
    fn begin(candidates: Arc<[PathBuf]>) -> Result<Self, StartError> {
        let at = Arc::<AtomicUsize>::default();
        let (all, now_at) = (Arc::clone(&candidates), Arc::clone(&at));
        let errand = Errand::start(move |asker| {
            let wanted = all.iter().enumerate().take_while(|_| asker.is_waiting());
            let mut wanted = wanted.inspect(|(i, _)| now_at.store(*i, Ordering::Relaxed));
            let (_, program) = wanted.find(|(_, it)| is_program(it))?;
            Some(program.clone())
        });
        Ok(Self {
            candidates,
            at,
            errand: errand.map_err(StartError::Search)?,
        })
    }
}

/// A regular file that anyone may execute. Whether the container's user may, the kernel says.
fn is_program(path: &Path) -> bool {
    let metadata = Root::host().metadata(path);
    metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}
