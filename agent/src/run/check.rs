//! `ballast check`: gathers what the pure report is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{RunError, observe, own};
use crate::apply::devices::{DEVICE_PROGRAM, DevicePrograms};
use crate::check;
use crate::config::{Compat, Config, KubeletConfig, Mode};
use crate::decide::cgroup_files::FileRules;
use crate::decide::device_access::device_access;
use crate::decide::reserved::{ReservedCgroup, reserved_cgroups};
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::check::{
    BPFFS, Bpffs, CgroupDetection, CheckReport, FactSheet, KubeletSettingsFacts, ProgramCheck,
    ReservedCgroupFacts,
};
use crate::model::mounts::CgroupFacts;
use crate::sources::bpf::{self, LoadOptions, ProgramReport, ProgramState, Stream, Streams};
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kube_tree::pods_of_kubelet;
use crate::sources::mounts::open_trees;
use crate::sources::probe;
use crate::sys::{Root, page_size};

/// What this node gives the agent. Every eBPF program is loaded and attached for a moment; nothing
/// is pinned, mounted or written. `reads_manifests`: those of mode `own`, too.
pub fn check(config: &Config, reads_manifests: bool) -> CheckReport {
    let mut facts = facts(config);
    // A start reads them later, when what it may die of is noted.
    if let Mode::Own(own) = &config.mode
        && reads_manifests
    {
        facts.manifests = own::find_manifests(config, own);
    }
    if let Mode::Observe(settings) = &config.mode {
        let pods = facts.pod_cgroups.as_ref();
        let runtime = observe::find_runtime(settings, &facts.cgroups, pods);
        (facts.runtime, facts.n_unnamed) = runtime.map_or((None, 0), |(it, n)| (Some(it), n));
        facts.workloads = Some(observe::find_workloads(settings, pods));
        if let Some(KubeletSettingsFacts::Untold(_)) = &facts.kubelet_settings {
            facts.kubelet_settings = Some(observe::ask_kubelet(settings, pods));
        }
    }
    let mut programs = try_programs();
    if let (Mode::Own(_), CgroupDetection::Found(found)) = (&config.mode, &facts.cgroups)
        && check::needs_device_program(found)
    {
        programs.push(try_device_program());
    }
    check::report(&facts, config, &programs)
}

/// `found`, where the node is fit by the judgement of [`check`] without the programs, none of which an agent needs.
/// What stands against either is told at once.
pub(super) fn with_fitness<T>(config: &Config, found: Result<T, RunError>) -> Result<T, RunError> {
    let mut report = check::report(&facts(config), config, &[]).fatal();
    if report.items.is_empty() {
        return found;
    }
    let found = found.err().into_iter().flat_map(RunError::each);
    // What keeps the node from being looked at is in the report.
    let mut faults: Vec<RunError> = found
        .filter(|it| !matches!(it, RunError::Node(_)))
        .collect();
    // What a setting forbids is told of its field.
    let told: BTreeSet<&str> = faults.iter().filter_map(RunError::check_item).collect();
    report.items.retain(|it| !told.contains(it.name.as_str()));
    if !report.items.is_empty() {
        faults.push(RunError::Unfit(report));
    }
    Err(RunError::all(faults))
}

fn facts(config: &Config) -> FactSheet {
    let mut facts = probe::facts(&Root::host(), &config.socket);
    let pins = &config.bpf.pin_directory;
    if facts.bpffs != Bpffs::Absent {
        match bpf::why_no_pins_in(pins) {
            Some(other) => facts.bpffs = other,
            // It is on a bpffs of its own.
            None if !pins.starts_with(BPFFS) => facts.bpffs = Bpffs::Mounted(pins.clone()),
            None => {}
        }
    }
    if let (Mode::Own(own), CgroupDetection::Found(found)) = (&config.mode, &facts.cgroups)
        && let Some(reader) = reader_of(found)
    {
        let is_unified = found.layout.is_unified();
        facts.reserved_cgroups = reserved_facts(&config.kubelet, own.compat, is_unified, &reader);
        facts.kubelet.pods_left = count_pods_left(&config.kubelet.cgroup_root, &reader);
    }
    if let Mode::Own(_) = &config.mode {
        facts.apart = own::apart(&Root::host(), config);
    }
    if let (Mode::Observe(settings), CgroupDetection::Found(found)) = (&config.mode, &facts.cgroups)
    {
        let (pods, kubelet) = observe::find_pods(found, settings);
        facts.pod_cgroups = Some(pods);
        facts.kubelet_settings = kubelet;
    }
    facts
}

/// `None`: the hierarchies cannot be opened, which is told elsewhere.
fn reader_of(found: &CgroupFacts) -> Option<CgroupReader> {
    let trees = open_trees(&Root::host(), &found.layout).ok()?;
    Some(CgroupReader::new(
        Arc::new(trees),
        BTreeSet::new(),
        page_size(),
    ))
}

/// 0 where they cannot be read.
fn count_pods_left(root: &CgroupName, reader: &CgroupReader) -> usize {
    let drivers = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd];
    let pods = drivers.map(|it| pods_of_kubelet(reader, root, it).unwrap_or_default());
    pods.iter().map(BTreeMap::len).sum()
}

/// Which of the cgroups that are to be limited are there, with the files to do it.
pub(super) fn reserved_facts(
    kubelet: &KubeletConfig,
    compat: Compat,
    is_unified: bool,
    reader: &CgroupReader,
) -> Vec<ReservedCgroupFacts> {
    let rules = FileRules::plain(is_unified, page_size());
    let wanted = reserved_cgroups(kubelet, compat, &rules);
    let look = |it: ReservedCgroup| {
        let cgroup = it.cgroup.path;
        let dirs = it.cgroup.files.iter().map(|(file, _)| {
            let dir = reader.dir(&cgroup, file.controller.name()).ok();
            (file.name.clone(), dir)
        });
        let dirs: Vec<_> = dirs.collect();
        let is_there = dirs.iter().any(|(_, dir)| dir.is_some());
        let lacking = dirs
            .into_iter()
            .filter(|(file, dir)| dir.as_ref().is_none_or(|it| !it.has(file)))
            .map(|(file, _)| file)
            .collect();
        ReservedCgroupFacts {
            field: it.field.to_owned(),
            path: cgroup.to_string(),
            lacking: is_there.then_some(lacking),
        }
    };
    wanted.into_iter().map(look).collect()
}

fn try_device_program() -> ProgramCheck {
    let tried = DevicePrograms::new(&device_access(&[]), Box::new(|_, _| {}));
    ProgramCheck {
        program: DEVICE_PROGRAM.to_owned(),
        is_running: tried.is_ok(),
        state: match tried {
            Ok(_) => "cgroup/device".to_owned(),
            Err(error) => crate::observe::chain(&error),
        },
        fallback: Some("containers may open every device of the host".to_owned()),
    }
}

fn try_programs() -> Vec<ProgramCheck> {
    match Streams::load(&LoadOptions::default()) {
        Ok(streams) => {
            let reports = streams.reports();
            let checks = reports.iter().map(|it| program_check(it, reports));
            checks.collect()
        }
        Err(error) => Stream::ALL
            .iter()
            .map(|stream| ProgramCheck {
                program: stream.name().to_owned(),
                state: crate::observe::chain(&error),
                is_running: false,
                fallback: Some(ProgramReport::without(*stream).to_owned()),
            })
            .collect(),
    }
}

fn program_check(report: &ProgramReport, all: &[ProgramReport]) -> ProgramCheck {
    let (state, is_running) = match &report.state {
        ProgramState::Attached { hook } => (hook.clone(), true),
        ProgramState::Adopted { hook } => (format!("{hook}, adopted"), true),
        ProgramState::Refused { reason } => (reason.clone(), false),
    };
    ProgramCheck {
        program: report.program.to_owned(),
        state,
        is_running,
        fallback: report.instead(all).map(str::to_owned),
    }
}
