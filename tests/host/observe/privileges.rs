//! What the agent tells as root with a few capabilities.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ballast::model::kernel::effective_mask;
use ballast::model::record::OomScope;
use ballast::model::status::{ContainerEntry, ProgramState, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeContainer, KubeTree, Naming};
use ballast_tests::scrape::{self, free_address, text};
use ballast_tests::wait::until;

use super::{STATIC_UID, UID, check_kill, eat, limited, wait_kills};

/// Loads programs, and reads open files and the network namespace of other users' processes.
const COMPLETE: &str = "BPF,PERFMON,SYS_PTRACE,DAC_READ_SEARCH";

/// Linux 5.10 counts maps against a limit of the process, which has to be raised.
fn on_this_kernel(names: &'static str) -> &'static str {
    let is_old = std::env::var("BALLAST_VM").is_ok_and(|it| it == "5.10");
    match (is_old, names) {
        (true, COMPLETE) => "BPF,PERFMON,SYS_PTRACE,DAC_READ_SEARCH,SYS_RESOURCE",
        (true, _) => "BPF,PERFMON,SYS_RESOURCE",
        (false, names) => names,
    }
}

/// What is known because the kernel lets an agent know it: attached programs, and families of what a container
/// uses.
fn known(agent: &Agent, container: &KubeContainer) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let attached = |status: &Status| -> BTreeSet<String> {
        let programs = status.node.ebpf.programs.iter();
        let programs = programs.filter(|it| it.state == ProgramState::Attached);
        programs.map(|it| it.name.clone()).collect()
    };
    let status = agent.wait(
        "programs are loaded, and what a container uses is read",
        |it| {
            let mut containers = it.pods.iter().flat_map(|it| &it.containers);
            let is_read = containers.any(|it| {
                it.id.as_deref() == Some(&container.id)
                    && it.usage.memory_bytes.is_some_and(|it| it.0 > 0)
            });
            is_read && !attached(it).is_empty()
        },
    )?;
    let id = format!("id=\"{}\"", container.path);
    let page = text(&agent.metrics, "/metrics/cadvisor")?;
    let families = page.lines().filter(|it| it.contains(&id));
    let families = families.filter_map(|it| Some(it.split_once('{')?.0.to_owned()));
    Ok((attached(&status), families.collect()))
}

/// An agent that `change` has changed before its start tells what one tells that has all rights. `is_so`: whether its
/// process is what `change` meant.
fn check(
    test: &str,
    change: impl FnOnce(&KubeTree, &mut Agent) -> Result<()>,
    is_so: impl FnOnce(u32) -> Result<()>,
) -> Result<()> {
    let tree = KubeTree::new(test, Driver::Systemd)?;
    let pod = tree.pod(UID)?;
    let idle = pod.container(Naming::Containerd, 500)?;
    let _idle = idle.run("exec sleep 3600")?;
    let with_all = {
        let mut agent = Agent::observing(&format!("observe-{test}-all"), &tree)?;
        agent.metrics = free_address()?;
        agent.start()?;
        let known = known(&agent, &idle)?;
        agent.stop()?;
        known
    };
    let mut agent = Agent::observing(&format!("observe-{test}"), &tree)?;
    agent.metrics = free_address()?;
    change(&tree, &mut agent)?;
    agent.start()?;
    is_so(agent.pid().context("it runs")?)?;

    let container = limited(&pod, 501)?;
    eat(&container)?;
    let kills = wait_kills(&agent, 1)?;
    let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    assert_eq!(detail.victim.is_main_process, Some(true));
    until("as much is known", || {
        let known = known(&agent, &idle)?;
        ensure!(known == with_all, "{known:#?}; {with_all:#?}");
        Ok(())
    })?;
    agent.stop()
}

fn check_with(test: &str, names: &'static str) -> Result<()> {
    let names = on_this_kernel(names);
    let change = |_: &KubeTree, agent: &mut Agent| {
        agent.capabilities = Some(names);
        Ok(())
    };
    check(test, change, |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let held = effective_mask(&status).context("no capabilities")?;
        assert_eq!(held.count_ones() as usize, names.split(',').count());
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn with_the_capabilities_for_all_of_it_everything_is_told() -> Result<()> {
    check_with("complete", COMPLETE)
}

#[cfg_attr(feature = "privileged", test)]
fn with_the_capabilities_for_programs_alone_kills_are_told() -> Result<()> {
    check_with("least", "BPF,PERFMON")
}

#[cfg_attr(feature = "privileged", test)]
fn as_it_is_shipped_everything_is_told() -> Result<()> {
    let names = on_this_kernel(COMPLETE);
    let change = |_: &KubeTree, agent: &mut Agent| {
        (agent.is_as_shipped, agent.capabilities) = (true, Some(names));
        Ok(())
    };
    check("shipped", change, |_| Ok(()))
}

/// As a container has one on cgroup v2: all paths of cgroups that the kernel shows it begin at its own.
#[cfg_attr(feature = "privileged", test)]
fn in_a_cgroup_namespace_of_its_own_everything_is_told() -> Result<()> {
    let change = |tree: &KubeTree, agent: &mut Agent| {
        let home = tree.pod(STATIC_UID)?.container(Naming::Containerd, 505)?;
        let script = format!("{}exec {} own-namespaces \"$@\"", home.joins(), hog()?);
        agent.start_by(&[], &script);
        Ok(())
    };
    check("namespace", change, |pid| {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/cgroup"));
        assert_ne!(of(&pid.to_string())?, of("self")?);
        Ok(())
    })
}

/// A disk that had a fault is read-only from then on, and its node is one that people look at.
#[cfg_attr(feature = "privileged", test)]
fn with_a_state_directory_that_is_read_only_everything_is_told() -> Result<()> {
    let tree = KubeTree::new("readonly", Driver::Cgroupfs)?;
    let pod = tree.pod(UID)?;
    let mut agent = Agent::observing("observe-read-only", &tree)?;
    agent.metrics = free_address()?;
    agent.start()?;
    let before = limited(&pod, 510)?;
    eat(&before)?;
    wait_kills(&agent, 1)?;
    agent.stop()?;
    let state = agent.state();
    let state = state.display();
    let mounts = format!("mount --bind {state} {state} && mount -o remount,bind,ro {state}");
    agent.start_by(&["unshare", "-m"], &format!("{mounts} && exec \"$@\""));
    agent.start()?;
    let container = limited(&pod, 511)?;
    eat(&container)?;
    let kills = wait_kills(&agent, 1)?;
    check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    let counted = || {
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let of = |result| page.sum("ballast_oom_records_total", &[("result", result)]);
        let kills = page.sum("ballast_oom_kills_total", &[("pod_uid", UID)]);
        anyhow::Ok((kills, of("kept"), of("dropped")))
    };
    until("both are counted, and the one without a record", || {
        let counted = counted()?;
        // That of the first was kept.
        ensure!(counted == (2.0, 1.0, 1.0), "{counted:?}");
        Ok(())
    })
}

/// Who was given a cgroup may keep others out of it: all others are known, and so is that one.
#[cfg_attr(feature = "privileged", test)]
fn a_cgroup_that_its_owner_keeps_to_himself_hides_no_other() -> Result<()> {
    let tree = KubeTree::new("kept", Driver::Cgroupfs)?;
    let pod = tree.pod(UID)?;
    let kept = pod.container(Naming::Containerd, 502)?;
    let other = pod.container(Naming::Containerd, 503)?;
    let _programs = [kept.run("exec sleep 3600")?, other.run("exec sleep 3600")?];
    keep(&cgroup::dir_of("memory", &kept.path))?;
    let mut agent = Agent::observing("observe-kept", &tree)?;
    agent.capabilities = Some(on_this_kernel("BPF,PERFMON"));
    // Where kubelets are looked for.
    let service = KubeContainer::at(&format!("/{}-service", agent.cgroup_root))?;
    keep(&cgroup::dir_of("memory", &service.path))?;
    agent.start()?;
    agent.wait("both are known, and the other is read", |it| {
        let containers: Vec<_> = it.pods.iter().flat_map(|it| &it.containers).collect();
        let of = |id: &str| containers.iter().find(|it| it.id.as_deref() == Some(id));
        let is_read = |it: &&&ContainerEntry| it.usage.memory_bytes.is_some_and(|it| it.0 > 0);
        of(&kept.id).is_some() && of(&other.id).as_ref().is_some_and(is_read)
    })?;
    assert_eq!(told_unreadable(&agent)?, 0);
    let container = limited(&pod, 504)?;
    eat(&container)?;
    let kills = wait_kills(&agent, 1)?;
    check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    service.remove();
    Ok(())
}

fn told_unreadable(agent: &Agent) -> Result<usize> {
    let events = agent.events("node")?;
    let told = events
        .iter()
        .filter(|it| it.event.reason == "TreeUnreadable");
    Ok(told.count())
}

/// Gives a directory to somebody who lets nobody else in.
fn keep(directory: &Path) -> Result<()> {
    chown(directory, Some(1000), Some(1000))?;
    Ok(fs::set_permissions(
        directory,
        Permissions::from_mode(0o700),
    )?)
}
