//! The host tests, in two lanes: those of the gate, and those that take long.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::again::{self, Ran};
use super::programs::HostPrograms;
use super::report::{self, Outcome};
use super::{ERROR_BACKTRACE, ONE_AT_A_TIME, exactly, list, run_to_end, times};
use crate::progress::{self, note};
use crate::{cadvisor, interrupt, python_grpc, workspace};

/// Which of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but those of [`STORM`].
    Host,
    Storm,
}

/// Host tests, by the beginning of their names, that are not of the gate.
const STORM: &[&str] = &[
    // These take 15 s and more by themselves, or are about numbers.
    "cadvisor::",
    "beside::a_second_agent_on_the_same_state",
    "crash::a_storm_of_kills",
    "descriptors::a_start_without_descriptors_waits",
    "eviction::a_leak_of_50_mb_per_second",
    "eviction::an_agent_that_dies_while_it_evicts",
    "forensics::an_agent_that_dies_in_a_storm",
    "limits::a_cgroup_that_cannot_be_removed",
    "observe::kills::a_kill_that_no_agent_lived_to_compare",
    "observe::kills::a_kill_that_nobody_watched",
    "observe::pods::an_event_that_cannot_be_written",
    "observe::tree::a_minute_of_churn",
    "observe::tree::of_two_trees_in_use",
    "observe::tree::ten_thousand_cgroups",
    "oom::a_burst_of_a_thousand_kills",
    "oom::kills_for_which_the_ring_had_no_room",
    "placement::storm::",
    "pressure::a_disk_that_is_full_when_the_agent_starts",
    "pressure::a_disk_that_no_pod_has_filled",
    "pressure::a_disk_without_any_room",
    "pressure::a_pod_beyond_its_limit_of_local_storage",
    "pressure::an_evicted_pod_that_is_to_run_always_returns",
    "repair::a_persistent_other_writer_is_given_way",
    "repair::a_pod_that_nobody_can_name_goes_on",
    "stalls::a_pod_that_waits_for_memory",
    "stats::readings_are_cheap",
    // The memory of the whole machine decides here, and others may take of it meanwhile.
    "eviction::a_leak_outside_the_pods",
    "node_memory::",
];

/// Host tests, by the beginning of their names, that run one at a time: what others do meanwhile would be taken for
/// theirs, or the other way round. All others look at nothing but what they have made themselves, and run beside each
/// other.
const ALONE: &[&str] = &[
    // All OOM kills of the machine count: each agent is told of all, and tells those outside of its pods as the node's.
    "beside::events_follow_kubepods",
    "ebpf::a_kill_and_the_end_of_its_victim",
    "ebpf::what_cannot_be_read_is_counted",
    "forensics::a_burst_is_kept_in_few_records",
    "observe::pods::a_kill_is_an_event_of_its_pod",
    "observe::pods::a_kill_that_was_named_late",
    "observe::privileges::with_a_state_directory_that_is_read_only",
    "quiet::children_of_a_pod_wake_nobody",
    "quiet::stalls_wake_nobody",
    // Its kubelet is one for every agent that starts.
    "beside::what_check_calls_fatal",
    // Every mount of the machine counts, and what somebody has written is held open.
    "observe::writes::",
    // The tasks, the memory and the stalls of the machine count.
    "pressure::a_fork_bomb",
    "pressure::a_stall_evicts",
    "pressure::a_dry_run_tells_of_a_stall",
    "readings::",
    // How soon the agent, the kernel or the disk comes to it counts.
    "eviction::a_flood_of_page_cache",
    "eviction::a_leak_of_2_gb_per_second",
    "observe::tree::churn_leaves_no_pod",
    "pressure::a_growing_pod_is_frozen",
    "relief::a_large_process",
];

/// Host tests that do to a machine what only a virtual one is for: the lane `vm` has them.
const ONLY_IN_A_VM: &[&str] = &[
    "hardware::",
    "lockdown::",
    "node_memory::a_node_that_runs_out_of_memory",
    "node_oom::",
    "placement::hotplug::",
];

/// Those of them that do what cannot be undone: each has a guest of its own.
const A_GUEST_EACH: &[&str] = &["lockdown::"];

/// Whether this machine can run the others, and what tests have left on it that were ended in the middle.
const FIRST: &str = "ability::";

/// Whether the name of a test begins with one of these.
pub(super) fn begins(test: &str, with: &[&str]) -> bool {
    with.iter().any(|it| test.starts_with(it))
}

/// Twice the cores of a small machine: most of these tests wait most of the time.
const FOUR_AT_A_TIME: &str = "--test-threads=4";

impl Part {
    fn has(self, test: &str) -> bool {
        !begins(test, ONLY_IN_A_VM) && begins(test, STORM) == (self == Self::Storm)
    }
}

/// Gives how the lane ended, and the output of the tests.
pub(super) fn run(
    programs: &HostPrograms,
    part: Part,
    pass_on: &[String],
    asked: bool,
    busy: u32,
) -> Result<(Outcome, String)> {
    note(programs.tests.display());
    let mut chosen = chosen(programs, part, pass_on)?;
    let needs_cadvisor = chosen.iter().any(|it| it.starts_with(cadvisor::TESTS));
    let program = needs_cadvisor.then(|| cadvisor::program().map_err(|error| format!("{error:#}")));
    if let Some(Err(why)) = &program
        && asked
    {
        note(format_args!("no cAdvisor: {why}"));
    }
    let needs_modules = chosen.iter().any(|it| it.contains(python_grpc::TESTS));
    let mut without = Vec::new();
    let modules = match needs_modules.then(python_grpc::modules).transpose() {
        Ok(modules) => modules,
        // The test that needs them fails.
        Err(error) if asked => {
            note(format_args!("no gRPC of Python: {error:#}"));
            None
        }
        Err(error) => {
            chosen.retain(|it| !it.contains(python_grpc::TESTS));
            without.push(format!("a plugin in Python: {error:#}"));
            None
        }
    };
    let parts = parts(chosen, part, pass_on);
    let command = |arguments: &[String]| {
        let mut command = times::command(&programs.tests);
        command
            .current_dir(workspace::root().join("tests"))
            .args(arguments)
            .env("BALLAST_BIN", &programs.agent)
            .env("BALLAST_HOG", &programs.hog)
            .env("BALLAST_PLUGIN", &programs.plugin)
            .env(ERROR_BACKTRACE, "0")
            .envs(modules.iter().map(|it| (python_grpc::MODULES, it)));
        match &program {
            Some(Ok(path)) => command.env(cadvisor::PROGRAM, path),
            Some(Err(why)) if !asked => command.env(cadvisor::WITHOUT, why),
            // The tests that need it fail, where there are any.
            Some(Err(_)) | None => &mut command,
        };
        command
    };
    let mut output = String::new();
    let outcome = again::run(&parts, |arguments| {
        let ran = run_to_end("host tests", &mut command(arguments), busy)?;
        output += &ran.output;
        match why_none(arguments, &ran) {
            Some(why) => bail!("this machine cannot run the lane: {why}"),
            None => Ok(ran),
        }
    });
    if interrupt::has_come() {
        // The first one removes what the others have left.
        progress::quiet(&mut command(&[FIRST.to_owned()]))?;
    }
    let mut outcome = outcome?;
    if let Outcome::Passed(passed) = &mut outcome {
        passed.without.extend(without);
    }
    Ok((outcome, output))
}

/// Why no other test is to be run: the first one has failed.
fn why_none(arguments: &[String], ran: &Ran) -> Option<String> {
    let fault = ran.fault.as_ref()?;
    let first = arguments.iter().find(|it| it.starts_with(FIRST))?;
    report::failure(&ran.output, first).or_else(|| Some(fault.clone()))
}

/// The arguments of each run of the test program: of the first test, of those that run beside each other,
/// and of the others.
fn parts(chosen: Vec<String>, part: Part, pass_on: &[String]) -> Vec<Vec<String>> {
    let (first, rest): (_, Vec<_>) = chosen.into_iter().partition(|it| it.starts_with(FIRST));
    let (together, alone) = rest
        .into_iter()
        .partition(|it| part == Part::Host && !begins(it, ALONE));
    let parts: [(&str, Vec<String>); 3] = [
        (ONE_AT_A_TIME, first),
        (FOUR_AT_A_TIME, together),
        (ONE_AT_A_TIME, alone),
    ];
    let parts = parts.into_iter().filter(|(_, tests)| !tests.is_empty());
    parts
        .map(|(threads, tests)| {
            let options = [threads].into_iter().chain(times::ARGUMENTS);
            let tests = exactly(tests, pass_on);
            options.map(str::to_owned).chain(tests).collect()
        })
        .collect()
}

/// The arguments of the host tests in each guest of a kernel, where `arguments` choose among them.
pub(crate) fn guests(tests: &Path, arguments: Vec<String>) -> Result<Vec<Vec<String>>> {
    Ok(split(list(tests, &arguments)?, arguments))
}

/// As [`guests`], of the tests that are chosen.
fn split(chosen: Vec<String>, arguments: Vec<String>) -> Vec<Vec<String>> {
    let (alone, together): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|it| begins(it, A_GUEST_EACH));
    let skipped = alone
        .iter()
        .flat_map(|it| ["--skip".to_owned(), it.clone()]);
    let first: Vec<String> = arguments.iter().cloned().chain(skipped).collect();
    // Where there is no test at all, its guest says so.
    let has_first = !together.is_empty() || alone.is_empty();
    let first = has_first.then_some(first);
    let each = alone.into_iter().map(|it| of(vec![it], &arguments));
    first.into_iter().chain(each).collect()
}

/// The arguments that run those of the host tests which `arguments` choose and whose names begin with one of these.
/// `None`: there are none.
pub(crate) fn that_begin(
    tests: &Path,
    arguments: &[String],
    with: &[String],
) -> Result<Option<Vec<String>>> {
    let mut chosen = list(tests, arguments)?;
    chosen.retain(|test| with.iter().any(|it| test.starts_with(it.as_str())));
    Ok((!chosen.is_empty()).then(|| of(chosen, arguments)))
}

/// The arguments that run these tests of those that `arguments` choose.
fn of(tests: Vec<String>, arguments: &[String]) -> Vec<String> {
    let options = [ONE_AT_A_TIME].into_iter().chain(times::ARGUMENTS);
    let tests = exactly(tests, arguments);
    options.map(str::to_owned).chain(tests).collect()
}

/// The names of the tests of `part` that `pass_on` chooses, which is all, or those with one of its words in their
/// name; and that of the first, whatever it chooses.
fn chosen(programs: &HostPrograms, part: Part, pass_on: &[String]) -> Result<Vec<String>> {
    let all = list(&programs.tests, &[])?;
    for name in [
        STORM,
        ALONE,
        ONLY_IN_A_VM,
        A_GUEST_EACH,
        again::AGAIN,
        &[FIRST],
    ]
    .concat()
    {
        ensure!(
            all.iter().any(|it| it.starts_with(name)),
            "no host test is called {name}, which a list of xtask/src/test names"
        );
    }
    let mut chosen = list(&programs.tests, pass_on)?;
    chosen.retain(|it| part.has(it));
    ensure!(
        !chosen.is_empty(),
        "no test of this lane has such a name; the rest of the host tests is another lane"
    );
    chosen.retain(|it| !it.starts_with(FIRST));
    let first = all.into_iter().filter(|it| it.starts_with(FIRST));
    Ok(first.chain(chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_first_test_fails_no_other_is_run() {
        let ran = |fault: Option<&str>| Ran {
            output: "---- ability::a stdout ----\nError: no BTF\n\n\nfailures:\n".to_owned(),
            fault: fault.map(str::to_owned),
            ..Ran::default()
        };
        let failed = ran(Some("status 101"));
        let [first, other] =
            ["ability::a", "files::a"].map(|it| ["--exact", it].map(str::to_owned));
        assert_eq!(why_none(&first, &failed).as_deref(), Some("no BTF"));
        assert_eq!(why_none(&first, &ran(None)), None);
        assert_eq!(why_none(&other, &failed), None);
    }

    #[test]
    fn who_looks_at_the_whole_machine_runs_alone_and_the_others_beside_each_other() {
        let first = "ability::this_machine";
        let (alone, others) = ("readings::a", ["cpusets::b", "newly::made"]);
        let chosen = [others[0], alone, first, others[1]].map(str::to_owned);
        let run = |threads: &str, tests: &[&str]| -> Vec<String> {
            let options = [threads].into_iter().chain(times::ARGUMENTS);
            let all = options.chain(["--exact"]).chain(tests.iter().copied());
            all.map(str::to_owned).collect()
        };
        assert_eq!(
            parts(chosen.to_vec(), Part::Host, &[]),
            [
                run(ONE_AT_A_TIME, &[first]),
                run(FOUR_AT_A_TIME, &others),
                run(ONE_AT_A_TIME, &[alone]),
            ]
        );
        let all_alone = [others[0], alone, others[1]];
        assert_eq!(
            parts(chosen.to_vec(), Part::Storm, &[]),
            [run(ONE_AT_A_TIME, &[first]), run(ONE_AT_A_TIME, &all_alone)]
        );
    }

    #[test]
    fn what_cannot_be_undone_has_a_guest_of_its_own() {
        let all = |it: &[&str]| -> Vec<String> { it.iter().map(|it| (*it).to_owned()).collect() };
        let one = |test: &str| {
            let options = ["--test-threads=1", "-Zunstable-options", "--report-time"];
            all(&[&options[..], &["--nocapture", "--exact", test]].concat())
        };
        let given = all(&["--nocapture", "--skip", "top::"]);
        let (a, b) = ("lockdown::a", "lockdown::b");
        for (chosen, skipped, others) in [
            (
                &["files::c", a, b][..],
                Some(&["--skip", a, "--skip", b][..]),
                &[a, b][..],
            ),
            (&["files::c"], Some(&[][..]), &[]),
            (&[b], None, &[b]),
            (&[], Some(&[][..]), &[]),
        ] {
            let first = skipped.map(|it| [given.clone(), all(it)].concat());
            let others = others.iter().map(|it| one(it));
            let expected: Vec<_> = first.into_iter().chain(others).collect();
            assert_eq!(split(all(chosen), given.clone()), expected, "{chosen:?}");
        }
    }
}
