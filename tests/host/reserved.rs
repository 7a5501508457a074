//! The cgroups of daemons: limited as reserved, put right when somebody changes them, never made.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::scratch::own_name;

/// A cgroup of somebody else's in every hierarchy, as systemd names those of daemons; gone when it is dropped.
struct Daemons(String);

impl Daemons {
    fn new(test: &str) -> Result<Self> {
        let daemons = Self(format!("/{}.slice", own_name(test)));
        if cgroup::is_unified() {
            cgroup::write("", "/", "cgroup.subtree_control", "+cpu +memory +pids")?;
        }
        for mount in cgroup::mounts() {
            let dir = mount.join(daemons.0.trim_start_matches('/'));
            fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        Ok(daemons)
    }

    fn read(&self, controller: &str, file: &str) -> Result<String> {
        cgroup::read(controller, &self.0, file)
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for dir in cgroup::dirs_in_all(&self.0) {
            cgroup::clear(&dir);
        }
    }
}

/// The files of memory, CPU and processes, with what they hold.
fn limits(daemons: &Daemons) -> Result<[String; 3]> {
    let (memory, cpu) = match cgroup::is_unified() {
        true => ("memory.max", "cpu.weight"),
        false => ("memory.limit_in_bytes", "cpu.shares"),
    };
    Ok([
        daemons.read("memory", memory)?,
        daemons.read("cpu", cpu)?,
        daemons.read("pids", "pids.max")?,
    ])
}

fn agent(test: &str, daemons: &str, enforced: &str) -> Result<Agent> {
    let agent = Agent::new(test)?
        .with_kubelet("systemReserved: {cpu: 250m, memory: 64Mi, pid: \"500\"}")
        .with_kubelet(&format!("systemReservedCgroup: {daemons}"))
        .with_kubelet(&format!("enforceNodeAllocatable: [pods, {enforced}]"));
    Ok(agent)
}

#[cfg_attr(feature = "privileged", test)]
fn daemons_are_limited_to_what_is_reserved_for_them() -> Result<()> {
    let daemons = Daemons::new("all")?;
    let mut agent = agent("reserved", &daemons.0, "system-reserved")?;
    agent.start()?;
    let cpu = if cgroup::is_unified() { "10" } else { "256" };
    let wanted = ["67108864", cpu, "500"].map(str::to_owned);
    agent.wait_for("it is limited", || Ok(limits(&daemons)? == wanted))?;
    cgroup::write("pids", &daemons.0, "pids.max", "max")?;
    agent.wait_for("it is put right", || Ok(limits(&daemons)? == wanted))?;
    agent.stop()?;
    assert_eq!(limits(&daemons)?, wanted);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_compressible_reservation_limits_cpu_alone() -> Result<()> {
    let daemons = Daemons::new("cpu")?;
    let [memory, before, pids] = limits(&daemons)?;
    let mut agent = agent("compressible", &daemons.0, "system-reserved-compressible")?;
    agent.start()?;
    let cpu = if cgroup::is_unified() { "10" } else { "256" };
    assert_ne!(before, cpu);
    let wanted = [memory, cpu.to_owned(), pids];
    agent.wait_for("it has its share", || Ok(limits(&daemons)? == wanted))?;
    Ok(())
}

/// As kubelet, the agent makes no cgroup of others: it does not start, and says which one is missing, of the field that
/// names it.
#[cfg_attr(feature = "privileged", test)]
fn a_reserved_cgroup_that_is_not_there_ends_the_start() -> Result<()> {
    let agent = agent("no-daemons", "/ballast-no-such-cgroup", "system-reserved")?;
    let words = "systemReservedCgroup: there is no cgroup /ballast-no-such-cgroup";
    let of_field = format!("kubelet.{words}");
    let output = agent.run_command()?.output()?;
    assert_eq!(output.status.code(), Some(2));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said)?;
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(said.contains(&of_field), "{said}");
    let output = agent.check_command()?.output()?;
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stdout)?;
    assert!(said.contains(words), "{said}");
    let said = String::from_utf8(output.stderr)?;
    assert!(said.contains(&of_field), "{said}");
    let made = cgroup::dirs_in_all("/ballast-no-such-cgroup");
    assert_eq!(made, Vec::<&Path>::new());
    Ok(())
}
