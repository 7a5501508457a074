//! Reads the memory of one container. What changes all the time is read from files that are held
//! open; settings are looked up now and then, without holding a file for each.

use std::time::Duration;

use crate::model::cgroup_files::{MemoryEvents, parse_count};
use crate::model::cgroup_name::CgroupName;
use crate::model::container_memory::{ContainerReading, MemorySettings};
use crate::model::event::CgroupId;
use crate::model::eviction::MemoryUse;
use crate::sources::ReadError;
use crate::sources::cgroup_use::{
    MemoryFiles, StallFile, dir, if_any, limit_file, memory_limit, read,
};
use crate::sources::node_reading::held;
use crate::sys::{Dir, FsError, HeldFile, TextBuffer, Trees};

/// How long settings are taken to stay: the agent itself writes them, seldom.
const SETTINGS_STAY: Duration = Duration::from_secs(30);

/// See the module. Nothing is open before the first reading.
#[derive(Debug)]
pub(super) struct ContainerReader {
    cgroup: CgroupName,
    files: Option<Files>,
    stall: Option<StallFile>,
}

#[derive(Debug)]
struct Files {
    memory: MemoryFiles,
    /// Kernels without a file stay so.
    events: Option<HeldFile>,
    peak: Option<HeldFile>,
    is_unified: bool,
    settings: Option<(Duration, MemorySettings)>,
}

impl ContainerReader {
    pub(super) fn new(cgroup: CgroupName) -> Self {
        Self {
            cgroup,
            files: None,
            stall: None,
        }
    }

    /// Its memory alone: two reads.
    pub(super) fn memory(&mut self, trees: &Trees, buffer: &mut TextBuffer) -> Option<MemoryUse> {
        held(
            &mut self.files,
            || Files::open(trees, &self.cgroup).ok()?,
            |it| it.memory.read(buffer),
        )
    }

    /// All of it: five reads. `None`: there is no such cgroup.
    pub(super) fn read(
        &mut self,
        trees: &Trees,
        buffer: &mut TextBuffer,
        at: Duration,
    ) -> Option<ContainerReading> {
        let memory = self.memory(trees, buffer);
        let files = self.files.as_mut()?;
        Some(ContainerReading {
            at,
            cgroup_id: CgroupId(files.memory.inode()),
            memory,
            events: files.events(buffer).unwrap_or_default(),
            peak: files
                .peak
                .as_ref()
                .and_then(|it| read(it, buffer, parse_count).ok()),
            settings: files.settings(trees, &self.cgroup, at),
            stall: held(
                &mut self.stall,
                || StallFile::open(trees, &self.cgroup).ok()?,
                |it| it.read(buffer),
            ),
        })
    }
}

impl Files {
    fn open(trees: &Trees, name: &CgroupName) -> Result<Option<Self>, FsError> {
        let is_unified = trees.unified;
        let [events, peak] = match is_unified {
            true => ["memory.events", "memory.peak"],
            false => ["memory.failcnt", "memory.max_usage_in_bytes"],
        };
        let Some(dir) = dir(trees, "memory", name)? else {
            return Ok(None);
        };
        let Some(memory) = MemoryFiles::open_in(&dir, is_unified)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            memory,
            events: if_any(HeldFile::open_in(&dir, events))?,
            peak: if_any(HeldFile::open_in(&dir, peak))?,
            is_unified,
            settings: None,
        }))
    }

    fn events(&self, buffer: &mut TextBuffer) -> Option<MemoryEvents> {
        let file = self.events.as_ref()?;
        let found: Result<_, ReadError> = match self.is_unified {
            true => read(file, buffer, MemoryEvents::parse),
            false => read(file, buffer, parse_count).map(|n| MemoryEvents {
                max: Some(n),
                ..MemoryEvents::default()
            }),
        };
        found.ok()
    }

    fn settings(&mut self, trees: &Trees, name: &CgroupName, at: Duration) -> MemorySettings {
        if let Some((read_at, settings)) = self.settings
            && at.saturating_sub(read_at) < SETTINGS_STAY
        {
            return settings;
        }
        let found = dir(trees, "memory", name).ok().flatten();
        // Another cgroup at the path has settings of its own, and is read with the next reading.
        let found = found.filter(|it| it.inode() == self.memory.inode());
        let Some(dir) = found else {
            return MemorySettings::default();
        };
        let settings = settings(&dir, self.is_unified);
        self.settings = Some((at, settings));
        settings
    }
}

fn settings(dir: &Dir, is_unified: bool) -> MemorySettings {
    let read = |file: &str| {
        let text = dir.read_text(file).ok()?;
        memory_limit(&text, is_unified).ok()?
    };
    let protection = |file| if is_unified { read(file) } else { None };
    MemorySettings {
        limit: read(limit_file(is_unified)),
        min: protection("memory.min"),
        low: protection("memory.low"),
        high: protection("memory.high"),
    }
}
