//! What stays as it is while the agent runs.

use crate::model::capacity::max_pids;
use crate::model::node_memory::Meminfo;
use crate::model::stats::Machine;
use crate::model::time::WallTime;
use crate::model::topology::Topology;
use crate::sys::{Root, clock};

/// Reads it once; a dozen files. What cannot be read is `None`, and sizes are 0.
pub fn machine(root: &Root, node_name: &str, topology: &Topology, is_unified: bool) -> Machine {
    let text = |path: &str| root.read_text(path).ok();
    let line = |path: &str| text(path).map(|it| it.trim().to_owned());
    let line = |path: &str| line(path).filter(|it| !it.is_empty());
    let meminfo = text("/proc/meminfo").and_then(|it| Meminfo::parse(&it).ok());
    let meminfo = meminfo.unwrap_or_default();
    let pid_max = text("/proc/sys/kernel/pid_max");
    let threads_max = text("/proc/sys/kernel/threads-max");
    let since_boot = clock::boottime();
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Machine {
        node_name: node_name.to_owned(),
        n_cpus: count(topology.online().len()),
        n_cores: count(topology.cores().len()),
        n_packages: count(topology.packages().len()),
        memory: meminfo.total,
        swap: meminfo.swap_total.unwrap_or(0),
        booted_at: clock::wall()
            .checked_sub(since_boot)
            .map(WallTime::from_epoch),
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
