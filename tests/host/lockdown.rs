//! A kernel that is locked down (kernel_lockdown(7)): which programs it refuses, what is said to stand in for them, and
//! that kills are counted all the same. Nobody can unlock it, so each test has a guest of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::check::{CheckLevel, CheckReport};
use ballast::model::kernel::KernelVersion;
use ballast::model::record::OomScope;
use ballast::model::status::ProgramState;
use ballast::sources::bpf::{self, LoadOptions, ProgramReport, Stream, Streams};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::kube::{Driver, KubeTree, Naming};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape;
use ballast_tests::wait::until;

use super::look::{has_ended, oom_detail};
use super::node_oom::{Crowd, run_out_beside};
use super::{kernel, leave_out, only_in_a_vm};

const STATE: &str = "/sys/kernel/security/lockdown";

/// What a container may use, MiB, and what it takes, bytes.
const LIMIT: u64 = 24;
const TOO_MUCH: &str = "100663296";

const UID: &str = "5d3c7a90-1f2e-4b6d-8a79-3c4d5e6f7081";

/// Programs that the kernel refuses, and what does their work instead.
type Refused = BTreeMap<String, Option<String>>;

/// What the kernel takes now.
#[derive(Debug, PartialEq)]
struct Tried {
    refused: Refused,
    running: BTreeSet<String>,
}

impl Tried {
    fn now() -> Result<Self> {
        let streams = Streams::load(&LoadOptions::default())?;
        let all = streams.reports();
        let (refused, running): (Vec<_>, Vec<_>) = all
            .iter()
            .partition(|it| matches!(it.state, bpf::ProgramState::Refused { .. }));
        let refused = refused.into_iter().map(|it| {
            let instead = it.instead(all).map(str::to_owned);
            (it.program.to_owned(), instead)
        });
        let running = running.into_iter().map(|it| it.program.to_owned());
        Ok(Self {
            refused: refused.collect(),
            running: running.collect(),
        })
    }

    fn instead_of(&self, program: &str) -> Option<&str> {
        self.refused.get(program)?.as_deref()
    }
}

fn lock(level: &str) -> Result<()> {
    fs::write(STATE, level).with_context(|| format!("write {level} to {STATE}"))?;
    let state = fs::read_to_string(STATE)?;
    ensure!(state.contains(&format!("[{level}]")), "{state}");
    Ok(())
}

/// How a node that is locked is told, and what is killed there.
struct Locked {
    level: CheckLevel,
    found: &'static str,
    /// Words of what follows from it.
    so: &'static str,
    refused: Refused,
    /// `None`: no program reports kills.
    scope: Option<OomScope>,
}

impl Locked {
    /// `check` and the status of an agent, which is started, say exactly what is refused, and what there is instead.
    fn start(&self, agent: &mut Agent) -> Result<()> {
        agent.metrics = scrape::free_address()?;
        let output = agent.check_command()?.args(["-o", "json"]).output()?;
        let report: CheckReport =
            serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
        let mut items = report.items.iter();
        let item = items.find(|it| it.name == "lockdown").context("an item")?;
        assert_eq!((item.level, &*item.found), (self.level, self.found));
        let so = item.consequence.as_deref().unwrap_or_default();
        assert!(so.contains(self.so), "{so}");
        let refused = report.items.iter().filter_map(|it| {
            let program = it.name.strip_prefix("ebpf/")?;
            let so = it.consequence.as_deref()?;
            let instead = so.strip_prefix("instead: ").map(str::to_owned);
            Some((program.to_owned(), instead))
        });
        assert_eq!(refused.collect::<Refused>(), self.refused, "{report}");

        agent.start()?;
        let status = agent.wait("it says which programs run", |it| {
            !it.node.ebpf.programs.is_empty()
        })?;
        let programs = status.node.ebpf.programs.iter();
        let refused = programs
            .filter(|it| it.state != ProgramState::Attached)
            .map(|it| {
                let reason = it.reason.as_deref().unwrap_or_default();
                let instead = reason.split_once("; instead: ");
                (it.name.clone(), instead.map(|it| it.1.to_owned()))
            });
        assert_eq!(refused.collect::<Refused>(), self.refused);
        Ok(())
    }

    /// The one kill is told, and counted once: by the report of a program, or by the kernel's count.
    fn check_kill(&self, agent: &Agent, of: &[(&str, &str)]) -> Result<()> {
        let n_missed = match self.scope {
            Some(_) => 0.0,
            None => 1.0,
        };
        let check = || -> Result<()> {
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let kills = page.value("ballast_oom_kills_total", of);
            let missed = page.sum("ballast_oom_missed_kills_total", &[]);
            ensure!(
                kills == Some(1.0) && missed == n_missed,
                "{kills:?} kills, {missed} missed"
            );
            Ok(())
        };
        until("the kill is counted", check)?;
        // Later than whatever is still compared.
        thread::sleep(2 * GRACE);
        check()?;
        let kills = agent.events("oom")?;
        assert_eq!(kills.len(), 1, "{kills:#?}");
        match self.scope {
            Some(scope) => assert_eq!(oom_detail(&kills[0])?.scope, scope, "{kills:#?}"),
            None => assert_eq!(kills[0].event.reason, "OomKillMissed", "{kills:#?}"),
        }
        Ok(())
    }

    /// In both modes.
    fn check(&self) -> Result<()> {
        let mut own = Agent::new("locked-own")?.with_kubelet("singleProcessOOMKill: true");
        self.start(&mut own)?;
        let hog = hog()?;
        let container = Container::new("greedy", &[&hog, "alloc", TOO_MUCH]).limited_to(LIMIT);
        own.put(&Manifest::new("one").with_overhead(16).container(container))?;
        own.wait_pod("one", "ends", |it| has_ended(it, "greedy"))?;
        self.check_kill(&own, &[("pod", "one"), ("container", "greedy")])?;
        own.stop()?;
        drop(own);

        let tree = KubeTree::new("locked", Driver::Cgroupfs)?;
        let mut observer = Agent::observing("locked-observe", &tree)?;
        self.start(&mut observer)?;
        let container = tree.pod(UID)?.container(Naming::Containerd, 1)?;
        container.limit(LIMIT)?;
        // Without the program that tells of cgroups it is found by a walk.
        observer.wait("its container is found", |it| {
            it.pods.iter().any(|it| it.containers.len() == 1)
        })?;
        container.run("exec tail /dev/zero")?.wait()?;
        self.check_kill(
            &observer,
            &[("pod_uid", UID), ("container_id", &container.id)],
        )
    }
}

#[cfg_attr(feature = "privileged", test)]
fn a_kernel_that_is_locked_for_integrity_refuses_nothing() -> Result<()> {
    only_in_a_vm()?;
    let before = Tried::now()?;
    lock("integrity")?;
    assert_eq!(Tried::now()?, before);
    let locked = Locked {
        level: CheckLevel::Ok,
        found: "integrity",
        so: "",
        refused: before.refused,
        scope: Some(OomScope::Container),
    };
    locked.check()
}

#[cfg_attr(feature = "privileged", test)]
fn a_kernel_that_is_locked_for_confidentiality_refuses_what_reads_its_memory() -> Result<()> {
    only_in_a_vm()?;
    // Before Linux 6.2 no form of the program about victims does without a helper.
    let is_old = kernel()? < KernelVersion::new(6, 2);
    let before = Tried::now()?;
    lock("confidentiality")?;
    let after = Tried::now()?;

    let mut expected: BTreeSet<String> = before.refused.keys().cloned().collect();
    for program in &before.running {
        let typed = program.trim_end_matches("_raw");
        let is_raw = program != typed;
        let is_victims = typed.starts_with("oom_victim");
        // What stands in for a typed form reads by helpers, and so do these in any form.
        if is_raw || is_victims || typed == "cgroup_created" {
            expected.insert(typed.to_owned());
            if !is_victims || is_old {
                expected.insert(format!("{typed}_raw"));
            }
        }
        // A begin is nothing without its end.
        let of_end = typed.strip_suffix("_end").filter(|_| is_raw);
        expected.extend(of_end.map(|it| format!("{it}_begin")));
    }
    let refused: BTreeSet<String> = after.refused.keys().cloned().collect();
    assert_eq!(refused, expected, "{before:#?}");
    for program in ["cgroup_created", "cgroup_created_raw"] {
        let instead = after.instead_of(program);
        assert_eq!(instead, Some(ProgramReport::without(Stream::Cgroup)));
    }
    let victims = before
        .running
        .iter()
        .find(|it| it.starts_with("oom_victim"));
    let victims = victims.context("a program tells of victims")?;
    let instead = match is_old {
        true => ProgramReport::without(Stream::Oom),
        false => "oom_victim_bare",
    };
    assert_eq!(after.instead_of(victims), Some(instead), "{victims}");
    let locked = Locked {
        level: CheckLevel::Degraded,
        found: "confidentiality",
        so: match is_old {
            true => "none reports OOM kills",
            false => "whose limit was reached is not named",
        },
        refused: after.refused,
        // That it was a limit is known, and not whose.
        scope: (!is_old).then_some(OomScope::Other),
    };
    locked.check()
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_where_a_locked_kernel_hides_its_reason() -> Result<()> {
    only_in_a_vm()?;
    if kernel()? < KernelVersion::new(6, 2) {
        leave_out("kills that a locked kernel reports: before Linux 6.2 there are none");
        return Ok(());
    }
    let _crowd = Crowd::gather()?;
    lock("confidentiality")?;
    run_out_beside("node-oom-locked", "derived")
}
