//! The root: the root cgroup, and the machine's own figures where it has no file.

use std::time::Duration;

use super::cgroup::{Below, CgroupReader, Context, Faults};
use super::process::is_shown;
use crate::model::capacity::running_pids;
use crate::model::cgroup_path::CgroupPath;
use crate::model::node_memory::Meminfo;
use crate::model::psi::Stalls;
use crate::model::stats::text::{parse_diskstats, parse_net_dev};
use crate::model::stats::{CgroupStats, FileSystemStats, InterfaceStats, NodeStats};
use crate::model::text::ParseError;
use crate::sources::cgroup_use::{self, StallFile, if_any};
use crate::sources::mounts;
use crate::sys::filesystem::{Filesystem, FilesystemProbe};
use crate::sys::{HeldFile, Root};

#[derive(Debug)]
pub(super) struct NodeFigures {
    root: Root,
    nodefs: FilesystemProbe,
    /// The source of the mount that holds it.
    device: String,
    cgroup: CgroupReader,
    files: NodeFiles,
}

/// Nothing is open before the first reading.
#[derive(Debug, Default)]
struct NodeFiles {
    /// False: some that are missing could not be opened.
    is_whole: bool,
    meminfo: Option<HeldFile>,
    loadavg: Option<HeldFile>,
    network: Option<HeldFile>,
    disks: Option<HeldFile>,
    stalls: [Option<StallFile>; 3],
}

impl NodeFiles {
    fn open(root: &Root, faults: &mut Faults) -> Self {
        let before = *faults;
        let mut open = |path: &str| faults.opened(if_any(HeldFile::open(&root.path(path))));
        let mut stall =
            |resource: &str| open(&format!("/proc/pressure/{resource}")).map(StallFile::of_node);
        let stalls = [stall("cpu"), stall("memory"), stall("io")];
        Self {
            stalls,
            meminfo: open("/proc/meminfo"),
            loadavg: open("/proc/loadavg"),
            // Of the host also where the agent has a network of its own, if it may look at that.
            network: HeldFile::open(&root.path("/proc/1/net/dev"))
                .ok()
                .or_else(|| open("/proc/net/dev")),
            disks: open("/proc/diskstats"),
            is_whole: *faults == before,
        }
    }
}

impl NodeFigures {
    /// `nodefs`: the file system that is shown.
    pub(super) fn open(root: &Root, nodefs: FilesystemProbe) -> Self {
        // Mounts are told by paths without links.
        let at = nodefs.canonical_path();
        let at = at.as_deref().unwrap_or(nodefs.path());
        Self {
            root: root.clone(),
            device: mounts::source_of(root, at).unwrap_or_default(),
            nodefs,
            cgroup: CgroupReader::at(CgroupPath::root()),
            files: NodeFiles::default(),
        }
    }

    /// Some 25 reads.
    pub(super) fn read(&mut self, cx: &mut Context, at: Duration) -> NodeStats {
        if !self.files.is_whole {
            self.files = NodeFiles::open(&self.root, &mut cx.faults);
        }
        let meminfo = value(cx, self.files.meminfo.as_ref(), Meminfo::parse);
        let tasks = value(cx, self.files.loadavg.as_ref(), |text| {
            Ok(running_pids(text))
        });
        let cgroup = self.cgroup(cx, at, meminfo.as_ref());
        NodeStats {
            cgroup,
            network: self.network(cx).unwrap_or_default(),
            file_system: self.file_system(),
            disks: value(cx, self.files.disks.as_ref(), parse_diskstats).unwrap_or_default(),
            n_tasks: tasks.flatten(),
        }
    }

    fn cgroup(&mut self, cx: &mut Context, at: Duration, meminfo: Option<&Meminfo>) -> CgroupStats {
        let found = self.cgroup.full(cx, at, Below::Uncounted);
        let mut stats = found.unwrap_or_default();
        stats.at = at;
        stats.n_processes = self.n_processes();
        if let Some(meminfo) = meminfo {
            let less = |all: Option<u64>, free: Option<u64>| all?.checked_sub(free?);
            let memory = &mut stats.memory;
            let all = less(Some(meminfo.total), meminfo.free);
            memory.usage = memory.usage.or(memory.stat.in_use()).or(all);
            memory.swap = less(meminfo.swap_total, meminfo.swap_free);
        }
        let mut stalls = self.files.stalls.iter().map(|file| {
            let found = file.as_ref()?.read_all(&mut cx.buffer);
            cx.faults.counted(found).flatten()
        });
        let mut next = || stalls.next().flatten();
        stats.stalls = Stalls {
            cpu: next(),
            memory: next(),
            io: next(),
        };
        stats
    }

    /// One name that is no text hides no other interface.
    fn network(&self, cx: &mut Context) -> Option<Vec<InterfaceStats>> {
        let parse = |text: &str| parse_net_dev(text, is_shown);
        let found = cgroup_use::read_lossy(self.files.network.as_ref()?, &mut cx.buffer, parse);
        cx.faults.counted(found)
    }

    fn n_processes(&self) -> Option<u64> {
        let names = self.root.list("/proc").ok()?;
        let is_process = |name: &&String| name.bytes().all(|it| it.is_ascii_digit());
        u64::try_from(names.iter().filter(is_process).count()).ok()
    }

    fn file_system(&self) -> Option<FileSystemStats> {
        Some(file_system(self.device.clone(), &self.nodefs.read()?))
    }
}

/// What is shown of a file system. `device`: as the table of mounts names its source.
pub fn file_system(device: String, found: &Filesystem) -> FileSystemStats {
    FileSystemStats {
        device,
        capacity: found.total_bytes,
        available: found.available_bytes,
        used: found.total_bytes.saturating_sub(found.free_bytes),
        inodes: found.inodes,
        inodes_free: found.inodes_free,
    }
}

fn value<T>(
    cx: &mut Context,
    file: Option<&HeldFile>,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Option<T> {
    let found = cgroup_use::read(file?, &mut cx.buffer, parse);
    cx.faults.counted(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::sys::Trees;
    use crate::sys::patience::Patience;
    use crate::sys::scratch::Scratch;

    /// As without a free descriptor.
    #[test]
    fn a_file_of_the_node_that_cannot_be_opened_is_a_fault_and_tried_again() {
        const LOADAVG: &str = "proc/loadavg";
        let scratch = Scratch::new("unopened-node");
        let root = Root::at(scratch.directory());
        root.create_dir_all("/proc").expect("a directory");
        let (mut figures, mut cx) = figures(&root);
        let mut n_tasks = || {
            let found = figures.read(&mut cx, Duration::ZERO).n_tasks;
            (found, cx.faults.io)
        };
        scratch.unreadable(LOADAVG);
        assert_eq!(n_tasks(), (None, 1));
        root.remove_file(LOADAVG).expect("it is there");
        scratch.write(LOADAVG, "0.00 0.00 0.00 1/7 9\n");
        for _ in 0..2 {
            assert_eq!(n_tasks(), (Some(7), 1));
        }
    }

    fn figures(root: &Root) -> (NodeFigures, Context) {
        let patience = Patience::start(Duration::from_secs(60)).expect("a thread");
        let nodefs = FilesystemProbe::new(root, Path::new("/"), &patience);
        let trees = Trees {
            unified: true,
            trees: Vec::new(),
        };
        let cx = Context::new(Arc::new(trees), 4096);
        (NodeFigures::open(root, nodefs), cx)
    }

    #[test]
    fn an_interface_whose_name_is_no_text_hides_no_other_one_of_the_node() {
        let scratch = Scratch::new("node-figures");
        let root = Root::at(scratch.directory());
        root.create_dir_all("/proc/1/net").expect("a directory");
        let counts = b": 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n".as_slice();
        let lines = [
            b"  eth0".as_slice(),
            counts,
            b"caf\xe9",
            counts,
            b"eth1",
            counts,
        ];
        scratch.write("proc/1/net/dev", lines.concat());
        let (mut figures, mut cx) = figures(&root);
        let found = figures.read(&mut cx, Duration::ZERO);
        let names: Vec<&str> = found.network.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1"]);
        assert_eq!(cx.faults, Faults::default());
    }
}
