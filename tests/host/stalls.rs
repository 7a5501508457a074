//! Memory stalls of pods as the agent shows them, from PSI or, where the kernel has none, from the
//! reclaim programs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ballast::model::eviction::StallSource;
use ballast::model::status::Status;
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};

use super::eviction::{Files, files_of};
use super::say;

/// Writes and reads a file that does not fit below its limit.
pub(super) fn thrash(file: &str) -> String {
    format!("f={file}; while :; do head -c 67108864 /dev/zero > $f; cat $f > /dev/null; done")
}
/// Where files are memory, none can be dropped: a child grows until it is killed, again and again.
const GROW: &str = "while :; do tail /dev/zero; done";

#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_waits_for_memory_shows_it_at_every_level() -> Result<()> {
    let mut agent = Agent::new("stalls")?.with_kubelet("singleProcessOOMKill: true");
    agent.start()?;
    let script = match files_of(&agent)? {
        Files::InMemory => GROW.to_owned(),
        Files::OnDisk => thrash("$BALLAST_POD_DIR/file"),
    };
    let thrashing = Container::sh("main", &script).limited_to(16);
    agent.put(&Manifest::new("thrashing").container(thrashing))?;
    let has_psi = Path::new("/proc/pressure/memory").exists();
    let source = match has_psi {
        true => StallSource::Psi,
        false => StallSource::Reclaim,
    };
    let stalls = |status: &Status| {
        let pod = status.pods.iter().find(|it| it.name == "thrashing")?;
        let pressure = status.node.pressure.as_ref()?;
        let scope = |name: &str| pressure.stalls.get(name).copied();
        Some([
            scope("kubepods")?,
            scope("burstable")?,
            pod.memory_stall?,
            pod.containers.first()?.memory_stall?,
        ])
    };
    let status = agent.wait("stalls at every level", |status| {
        stalls(status).is_some_and(|all| all.iter().all(|it| it.some_us > 0))
    })?;
    let found = stalls(&status).context("there a moment ago")?;
    say(format!("{found:?}"));
    for it in found {
        assert_eq!(it.source, source);
        assert_eq!(it.full_us.is_some(), has_psi);
    }
    let node = status.node.pressure.context("no pressure")?.stalls;
    assert_eq!(node.contains_key("node"), has_psi);
    let text = agent.command(&["explain", "pod", "thrashing"])?;
    ensure!(text.contains("WAITED FOR MEMORY"), "{text}");
    assert_eq!(text.contains("the kernel keeps no PSI"), !has_psi, "{text}");
    agent.stop()
}
