//! Reads what eviction knows of the node, from files that are held open: a whole reading, and a
//! cheap one for looking often while a threshold is near.
//!
//! What cannot be read is `None` in the reading and hides nothing else. The cgroup of all pods may
//! go and come; it is looked for again with each reading.

use std::sync::Arc;
use std::time::Duration;

use crate::model::capacity::{max_pids, running_pids};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{FastReading, FsUse, MemoryUse, NodeReading, StallTotals};
use crate::model::node_memory::{Meminfo, free_pages_of_cpus, low_watermark_pages};
use crate::sources::ReadError;
use crate::sources::cgroup_use::{LimitFile, MemoryFiles, StallFile, read};
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::{HeldFile, Root, TextBuffer, Trees};

/// How long the watermarks of the kernel are taken to stay: only an administrator changes them, and
/// `/proc/zoneinfo` is large on large machines.
const WATERMARKS_STAY: Duration = Duration::from_secs(10);

/// Reader of the node.
#[derive(Debug)]
pub struct NodeReader {
    root: Root,
    trees: Arc<Trees>,
    nodefs: FilesystemProbe,
    page_size: u64,
    meminfo: HeldFile,
    loadavg: Option<HeldFile>,
    stall: Option<StallFile>,
    root_memory: Option<MemoryFiles>,
    kubepods: Option<CgroupPath>,
    kubepods_memory: Option<MemoryFiles>,
    kubepods_limit: Option<LimitFile>,
    kubepods_stall: Option<StallFile>,
    /// The last that was told: where it cannot be read for once, the capacity is still known.
    memory_total: u64,
    /// And when it was read.
    low_watermark: Option<(Option<u64>, Duration)>,
    buffer: TextBuffer,
}

impl NodeReader {
    /// `kubepods`: `None` where there is none; `nodefs`: the file system of the state directory; `page_size` in bytes.
    /// Fails when the size of the memory is not known; any other file may be missing.
    pub fn open(
        root: &Root,
        trees: Arc<Trees>,
        kubepods: Option<&CgroupPath>,
        nodefs: FilesystemProbe,
        page_size: u64,
    ) -> Result<Self, ReadError> {
        let mut buffer = TextBuffer::default();
        let open = |path: &str| HeldFile::open(&root.path(path));
        let meminfo = open("/proc/meminfo")?;
        let memory_total = read(&meminfo, &mut buffer, Meminfo::parse)?.total;
        Ok(Self {
            meminfo,
            loadavg: open("/proc/loadavg").ok(),
            stall: open("/proc/pressure/memory").ok().map(StallFile::of_node),
            root_memory: MemoryFiles::open(&trees, &CgroupPath::root())
                .ok()
                .flatten(),
            root: root.clone(),
            trees,
            nodefs,
            page_size,
            kubepods: kubepods.cloned(),
            kubepods_memory: None,
            kubepods_limit: None,
            kubepods_stall: None,
            memory_total,
            low_watermark: None,
            buffer,
        })
    }

    /// Bytes.
    pub fn page_size(&self) -> u64 {
        self.page_size
    }

    /// All of it; `at` is the time of the reading, `CLOCK_BOOTTIME`.
    pub fn read(&mut self, at: Duration) -> NodeReading {
        let meminfo = self.meminfo();
        let kubepods = self.kubepods();
        NodeReading {
            at,
            memory_total: self.memory_total,
            memory_free: meminfo.and_then(|it| it.free),
            memory_available: meminfo.and_then(|it| it.available),
            // A kernel without huge pages does not mention them.
            hugepages: meminfo.and_then(|it| it.hugetlb).unwrap_or(0),
            slab_reclaimable: meminfo.and_then(|it| it.slab_reclaimable),
            free_of_cpus: None,
            low_watermark: self.low_watermark(at),
            page_size: Some(self.page_size),
            root: self.root_memory(),
            kubepods_limit: kubepods.and_then(|_| self.kubepods_limit()),
            kubepods,
            nodefs: self.nodefs(),
            pids_max: self.pids_max(),
            pids: self.pids(),
            stall: self.stall(),
            kubepods_stall: self.kubepods_stall(),
            swap_free: meminfo.and_then(|it| it.swap_free),
        }
    }

    /// What changes quickly; six reads of small files, no lock of the kernel.
    pub fn read_fast(&mut self, at: Duration) -> FastReading {
        let meminfo = self.meminfo();
        FastReading {
            at,
            memory_free: meminfo.and_then(|it| it.free),
            memory_available: meminfo.and_then(|it| it.available),
            slab_reclaimable: meminfo.and_then(|it| it.slab_reclaimable),
            root: meminfo.and_then(|it| it.memory_use()),
            kubepods: self.kubepods(),
            pids: self.pids(),
            stall: self.stall(),
            kubepods_stall: self.kubepods_stall(),
        }
    }

    /// See [`NodeReading::free_of_cpus`]. Milliseconds on a machine with hundreds of CPUs.
    pub fn free_of_cpus(&self) -> Option<u64> {
        let text = self.root.read_text("/proc/zoneinfo").ok()?;
        Some(free_pages_of_cpus(&text).saturating_mul(self.page_size))
    }

    fn meminfo(&mut self) -> Option<Meminfo> {
        let info = read(&self.meminfo, &mut self.buffer, Meminfo::parse).ok()?;
        self.memory_total = info.total;
        Some(info)
    }

    fn low_watermark(&mut self, at: Duration) -> Option<u64> {
        if let Some((low_watermark, read_at)) = self.low_watermark
            && at.saturating_sub(read_at) < WATERMARKS_STAY
        {
            return low_watermark;
        }
        let text = self.root.read_text("/proc/zoneinfo").ok();
        let pages = text.and_then(|it| low_watermark_pages(&it));
        let low_watermark = pages.map(|it| it.saturating_mul(self.page_size));
        self.low_watermark = Some((low_watermark, at));
        low_watermark
    }

    /// Read anew each time: whoever raises it in need wants nobody to go for what it was.
    fn pids_max(&self) -> Option<u64> {
        let text = |path: &str| self.root.read_text(path).ok();
        let pid_max = text("/proc/sys/kernel/pid_max");
        let threads_max = text("/proc/sys/kernel/threads-max");
        max_pids(pid_max.as_deref(), threads_max.as_deref())
    }

    fn root_memory(&mut self) -> Option<MemoryUse> {
        self.root_memory.as_ref()?.read(&mut self.buffer).ok()?
    }

    fn kubepods(&mut self) -> Option<MemoryUse> {
        let (trees, path) = (&self.trees, self.kubepods.as_ref());
        held(
            &mut self.kubepods_memory,
            || MemoryFiles::open(trees, path?).ok()?,
            |it| it.read(&mut self.buffer),
        )
    }

    fn kubepods_limit(&mut self) -> Option<u64> {
        let (trees, path) = (&self.trees, self.kubepods.as_ref());
        held(
            &mut self.kubepods_limit,
            || LimitFile::open(trees, path?).ok()?,
            |it| it.read(&mut self.buffer),
        )
    }

    fn kubepods_stall(&mut self) -> Option<StallTotals> {
        let (trees, path) = (&self.trees, self.kubepods.as_ref());
        held(
            &mut self.kubepods_stall,
            || StallFile::open(trees, path?).ok()?,
            |it| it.read(&mut self.buffer),
        )
    }

    fn stall(&mut self) -> Option<StallTotals> {
        self.stall.as_ref()?.read(&mut self.buffer).ok()?
    }

    fn pids(&mut self) -> Option<u64> {
        running_pids(self.loadavg.as_ref()?.read(&mut self.buffer).ok()?)
    }

    fn nodefs(&self) -> Option<FsUse> {
        let found = self.nodefs.read()?;
        Some(FsUse {
            available: found.available_bytes,
            capacity: found.total_bytes,
            inodes_free: found.inodes_free,
            inodes: found.inodes,
        })
    }
}

/// Reads from files that are held open, opening them where they are not. Where the cgroup behind
/// them was removed, those of the one that took its place.
pub(super) fn held<F, T>(
    files: &mut Option<F>,
    open: impl Fn() -> Option<F>,
    mut read: impl FnMut(&F) -> Result<Option<T>, ReadError>,
) -> Option<T> {
    if let Some(open) = files {
        match read(open) {
            Ok(found) => return found,
            Err(error) if error.is_gone() => *files = None,
            Err(_) => return None,
        }
    }
    *files = open();
    read(files.as_ref()?).ok()?
}
