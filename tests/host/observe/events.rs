//! What the kernel tells besides kills.

use anyhow::{Context, Result};
use ballast::model::event::{ExitStatus, ProcessChange};
use ballast::model::record::EventDetail;
use ballast::model::status::Status;
use ballast_tests::scrape::page;

use super::{EATER, UID, everywhere, limited, pod_of, whose};

/// Of a process that ends by itself, and of one that waits for memory which nobody can give.
#[cfg_attr(feature = "privileged", test)]
fn ends_of_processes_and_stalls_are_told_by_uid_and_id() -> Result<()> {
    everywhere("events", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 601)?;
        container.run(&format!("(exit 7); exec {EATER}"))?.wait()?;
        let whole = (UID, container.id.as_str());
        let is_end = |detail: &Option<EventDetail>, status| {
            let Some(EventDetail::Process(it)) = detail else {
                return false;
            };
            matches!(it.change, ProcessChange::Exit { status: found, .. } if found == status)
        };
        let killed = ExitStatus::Signal {
            signal: 9,
            core_dumped: false,
        };
        for status in [ExitStatus::Code(7), killed] {
            agent.wait_events("the end is told", "process", |events| {
                let mut events = events.iter();
                events.any(|it| whose(it) == whole && is_end(&it.event.detail, status))
            })?;
        }
        let stalls = agent.wait_events("a stall is told", "stall", |events| {
            events.iter().any(|it| whose(it) == whole)
        })?;
        let stall = stalls.iter().find(|it| whose(it) == whole);
        let stall = stall.context("it was there")?;
        assert_eq!((&stall.event.pod, &stall.event.container), (&None, &None));
        // One that waits for memory again and again. Whoever reads the files of a process while it is killed holds
        // its memory, and then the kernel may kill the shell too: the container goes on without it.
        let waiting = limited(&pod, 602)?;
        let _other = waiting.run_on_host("exec sleep 3600")?;
        let _program = waiting.run(&format!("while :; do {EATER}; done"))?;
        let stalls = |status: &Status| {
            let pod = pod_of(status, UID)?;
            let mut containers = pod.containers.iter();
            let container = containers.find(|it| it.id.as_deref() == Some(waiting.id.as_str()))?;
            let pressure = status.node.pressure.as_ref()?;
            let scope = |name: &str| pressure.stalls.get(name).copied();
            Some([
                container.memory_stall?,
                pod.memory_stall?,
                scope("burstable")?,
                scope("kubepods")?,
            ])
        };
        agent.wait("that it waits is shown at every level", |status| {
            stalls(status).is_some_and(|all| all.iter().all(|it| it.some_us > 0))
        })?;
        waiting.kill();
        let own = page(&agent.metrics, "/metrics")?;
        for scope in ["burstable", "kubepods"] {
            let labels = [("resource", "memory"), ("scope", scope)];
            let waited = own.sum("ballast_pressure_stall_seconds_total", &labels);
            assert!(waited > 0.0, "{scope}: {waited}");
        }
        Ok(())
    })
}
