//! Whether this machine can run the lane. `cargo xtask test` runs this module's test before all others.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::{hog, remove_traces_of_the_dead};
use ballast_tests::cgroup;

#[cfg_attr(feature = "privileged", test)]
fn this_machine_can_run_the_lane() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the host lane makes cgroups and loads eBPF programs: run it as root"
    );
    let btf = Path::new("/sys/kernel/btf/vmlinux");
    ensure!(
        btf.exists(),
        "{} is not there: a kernel with CONFIG_DEBUG_INFO_BTF is needed",
        btf.display()
    );
    for controller in ["cpu", "cpuset", "memory", "pids"] {
        let mount = cgroup::mount_of(controller);
        let has_it = match cgroup::is_unified() {
            true => fs::read_to_string(mount.join("cgroup.controllers"))?
                .split_whitespace()
                .any(|it| it == controller),
            false => mount.join("cgroup.procs").exists(),
        };
        ensure!(has_it, "no {controller} controller at {}", mount.display());
    }
    ensure!(
        fs::read_to_string("/proc/filesystems")?
            .lines()
            .any(|it| it == "nodev\tbpf"),
        "this kernel has no bpffs, which the agent mounts to keep its events while it is down"
    );
    hog().context("BALLAST_BIN and BALLAST_HOG must name programs")?;
    for process in cgroup::sub_dirs(Path::new("/proc")) {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        ensure!(
            name.trim_end() != "kubelet",
            "a kubelet runs here ({}), beside which no agent that manages the node starts; one of a cluster for tests \
             is ended by cargo xtask cluster down",
            process.display()
        );
    }
    remove_traces_of_the_dead();
    Ok(())
}
