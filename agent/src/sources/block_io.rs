//! Whether the kernel counts the block IO of cgroups.
//!
//! Since Linux 6.10 cgroup v1 counts nothing of a disk before some cgroup had a throttle rule for it
//! (block/blk-throttle.c, `blk_throtl_init`, called with the first rule). The agent makes no such rule:
//! what it costs the disk is for the owner of the node to decide.

use std::collections::BTreeSet;
use std::path::Path;

use crate::model::mounts::CgroupLayout;
use crate::sys::Root;

/// Disks, by name, that have read or written and of which cgroup v1 counts nothing; none on v2, and none
/// where that cannot be read.
pub fn uncounted_disks(root: &Root, layout: &CgroupLayout) -> Vec<String> {
    find(root, layout).unwrap_or_default()
}

fn find(root: &Root, layout: &CgroupLayout) -> Option<Vec<String>> {
    let CgroupLayout::Legacy { .. } = layout else {
        return None;
    };
    let file = layout
        .mount_of("blkio")?
        .join("blkio.throttle.io_service_bytes_recursive");
    let counted = root.read_text(file).ok()?;
    let counted: BTreeSet<&str> = counted
        .lines()
        .filter_map(|it| it.split(' ').next())
        .collect();
    let disks = root.read_text("/proc/diskstats").ok()?;
    let uncounted = disks.lines().filter_map(Disk::parse).filter(|disk| {
        let block = Path::new("/sys/class/block").join(disk.name);
        // Of a partition its disk is counted. Where there is no such file, it is no disk any more.
        disk.is_used
            && !counted.contains(disk.number.as_str())
            && root.exists(&block)
            && !root.exists(block.join("partition"))
    });
    Some(uncounted.map(|it| it.name.to_owned()).collect())
}

/// A line of `/proc/diskstats` (Documentation/admin-guide/iostats.rst).
struct Disk<'a> {
    name: &'a str,
    /// `MAJOR:MINOR`.
    number: String,
    is_used: bool,
}

impl<'a> Disk<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [major, minor, name, n_read, _, _, _, n_written, ..] = fields[..] else {
            return None;
        };
        Some(Self {
            name,
            number: format!("{major}:{minor}"),
            is_used: n_read != "0" || n_written != "0",
        })
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the files that are read, in a directory of their own"
)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::model::mounts::ControllerName;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_disk_in_use_without_a_figure_is_uncounted() {
        let dir = Scratch::new("block-io");
        let put = |path: &str, text: &str| {
            let path = dir.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let counts = "cg/blkio/blkio.throttle.io_service_bytes_recursive";
        let disks = "   7  0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 254  0 vda 9 1 60 2 0 0 0 0 0 1 3\n \
                     254  1 vda1 9 1 60 2 0 0 0 0 0 1 3\n   8  0 sda 0 0 0 0 7 0 56 1 0 1 1\nshort\n";
        put("proc/diskstats", disks);
        for disk in ["loop0", "vda", "vda1", "sda"] {
            put(&format!("sys/class/block/{disk}/dev"), "");
        }
        put("sys/class/block/vda1/partition", "1\n");
        let controllers = |name: &str| {
            let mount = Path::new("/cg").join(name);
            BTreeMap::from([(ControllerName(name.to_owned()), mount)])
        };
        let layout = |name: &str| CgroupLayout::Legacy {
            controllers: controllers(name),
            hybrid: None,
        };
        let root = Root::at(dir.directory());
        let found = |name| uncounted_disks(&root, &layout(name));
        assert_eq!(found("blkio"), [""; 0], "there is no such file");
        put(counts, "Total 0\n");
        assert_eq!(found("blkio"), ["vda", "sda"]);
        put(counts, "254:0 Read 30720\n254:0 Total 30720\nTotal 30720\n");
        assert_eq!(found("blkio"), ["sda"]);
        assert_eq!(found("memory"), [""; 0]);
        let unified = CgroupLayout::Unified {
            mount: "/cg".into(),
        };
        assert_eq!(uncounted_disks(&root, &unified), [""; 0]);
    }
}
