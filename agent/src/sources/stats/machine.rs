//! What seldom changes while the agent runs.

use std::time::Duration;

use crate::model::capacity::max_pids;
use crate::model::cpuset::CpuSet;
use crate::model::node_memory::Meminfo;
use crate::model::stats::Machine;
use crate::model::time::WallTime;
use crate::model::topology::Topology;
use crate::sources::sysfs;
use crate::sys::{Root, clock};

/// The clock of the node was set if the time of the boot moves by more: two clocks drift apart by less in months.
pub const CLOCK_SET: Duration = Duration::from_secs(60);

/// What tells that the machine is another one than it was: three small files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hardware {
    online: Option<CpuSet>,
    /// Bytes.
    memory: u64,
    swap: Option<u64>,
    huge_pages: Option<String>,
}

impl Hardware {
    pub(super) fn read(root: &Root) -> Self {
        let text = |path: &str| root.read_text(path).ok();
        let meminfo = text("/proc/meminfo").and_then(|it| Meminfo::parse(&it).ok());
        let meminfo = meminfo.unwrap_or_default();
        Self {
            online: sysfs::online(root),
            memory: meminfo.total,
            swap: meminfo.swap_total,
            huge_pages: text("/proc/sys/vm/nr_hugepages"),
        }
    }
}

/// The time of the boot is another one by the clock as it goes now.
pub(super) fn is_clock_set(machine: &Machine) -> bool {
    let before = machine.booted_at.map(|it| it.since_epoch());
    let offset = before.zip(booted_at()).map(|(a, b)| a.abs_diff(b));
    offset.is_some_and(|it| it > CLOCK_SET)
}

/// Since the epoch, by the clock as it goes now; `None`: the clock has an earlier year than the epoch.
pub fn booted_at() -> Option<Duration> {
    clock::wall().checked_sub(clock::boottime())
}

/// Reads it; a dozen files. What cannot be read is `None`, and sizes are 0.
pub fn machine(root: &Root, node_name: &str, topology: &Topology, is_unified: bool) -> Machine {
    let text = |path: &str| root.read_text(path).ok();
    let line = |path: &str| text(path).map(|it| it.trim().to_owned());
    let line = |path: &str| line(path).filter(|it| !it.is_empty());
    let meminfo = text("/proc/meminfo").and_then(|it| Meminfo::parse(&it).ok());
    let meminfo = meminfo.unwrap_or_default();
    let pid_max = text("/proc/sys/kernel/pid_max");
    let threads_max = text("/proc/sys/kernel/threads-max");
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Machine {
        node_name: node_name.to_owned(),
        n_cpus: count(topology.online().len()),
        n_cores: count(topology.cores().len()),
        n_packages: count(topology.packages().len()),
        memory: meminfo.total,
        swap: meminfo.swap_total.unwrap_or(0),
        booted_at: booted_at().map(WallTime::from_epoch),
        machine_id: line("/etc/machine-id").or_else(|| line("/var/lib/dbus/machine-id")),
        system_uuid: line("/sys/class/dmi/id/product_uuid")
            .or_else(|| line("/proc/device-tree/system-id"))
            .or_else(|| line("/proc/device-tree/vm,uuid")),
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        kernel_version: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        os_version: text("/etc/os-release")
            .or_else(|| text("/usr/lib/os-release"))
            .and_then(|it| pretty_name(&it)),
        max_pids: max_pids(pid_max.as_deref(), threads_max.as_deref()),
        is_unified,
        numa_nodes: topology.numa_nodes.clone(),
    }
}

/// `PRETTY_NAME` of os-release(5), without its quotes.
fn pretty_name(text: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|it| it.strip_prefix("PRETTY_NAME="))?;
    let value = value.trim();
    let quoted = ['"', '\''].iter().find_map(|quote| {
        let inner = value.strip_prefix(*quote)?;
        inner.strip_suffix(*quote)
    });
    Some(quoted.unwrap_or(value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn another_machine_is_told_by_its_cpus_memory_swap_and_huge_pages() {
        let scratch = Scratch::new("machine");
        let root = Root::at(scratch.directory());
        for directory in ["proc/sys/vm", "sys/devices/system/cpu"] {
            root.create_dir_all(directory).expect("a directory");
        }
        let mut before = Hardware::read(&root);
        assert_eq!(before, Hardware::default(), "nothing can be read");
        let meminfo = "MemTotal: 4 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n";
        for (file, text) in [
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/devices/system/cpu/online", "0-2\n"),
            ("proc/meminfo", meminfo),
            ("proc/meminfo", &format!("{meminfo}SwapTotal: 8 kB\n")),
            ("proc/sys/vm/nr_hugepages", "0\n"),
            ("proc/sys/vm/nr_hugepages", "5\n"),
        ] {
            scratch.write(file, text);
            let now = Hardware::read(&root);
            assert_ne!(now, before, "{file}: {text}");
            assert_eq!(now, Hardware::read(&root));
            before = now;
        }
    }

    #[test]
    fn a_clock_that_was_set_moves_the_boot() {
        let machine = |booted_at: Option<Duration>| Machine {
            booted_at: booted_at.map(WallTime::from_epoch),
            ..Machine::default()
        };
        assert!(!is_clock_set(&machine(None)));
        assert!(!is_clock_set(&machine(booted_at())));
        assert!(is_clock_set(&machine(Some(Duration::from_secs(7)))));
    }

    #[test]
    fn the_name_of_the_system_is_without_quotes() {
        for (text, expected) in [
            (
                "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n",
                Some("Debian GNU/Linux 12"),
            ),
            ("PRETTY_NAME='A B'\n", Some("A B")),
            ("PRETTY_NAME=Plain\n", Some("Plain")),
            ("PRETTY_NAME=\"\n", Some("\"")),
            ("NAME=x\n", None),
        ] {
            assert_eq!(pretty_name(text).as_deref(), expected, "{text}");
        }
    }
}
