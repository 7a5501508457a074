#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use zerocopy::{FromBytes, IntoBytes};

use super::*;

/// A kernel with everything, as of 7.2.
fn full() -> KernelSupport {
    let tracepoints = hooks(|hook| match hook {
        Hook::Typed(name) | Hook::Raw(name) => Some(name),
        _ => None,
    });
    let passes = |name: &str| match name {
        "signal_generate" => vec![S, P, P, S, S],
        "mm_vmscan_memcg_reclaim_end" | "mm_vmscan_direct_reclaim_end" => vec![S, P],
        "mm_vmscan_memcg_reclaim_begin" | "mm_vmscan_direct_reclaim_begin" => vec![S, S, P],
        "sched_process_exit" => vec![P, S],
        "cgroup_notify_populated" => vec![P, P, S],
        "cgroup_attach_task" => vec![P, P, P, S],
        "mark_victim" => vec![P, S],
        _ => vec![P, P],
    };
    let n = size_of::<abi::Offsets>() / 4;
    let mut words: Vec<u32> = (0..n).map(|it| u32::try_from(it).unwrap() * 8).collect();
    words[n - 3..].fill(1);
    KernelSupport {
        tracepoints: tracepoints.iter().map(|it| (*it, passes(it))).collect(),
        functions: BTreeSet::from(["oom_kill_process"]),
        offsets: abi::Offsets::read_from_bytes(words.as_bytes()).unwrap(),
        locks_memory: false,
        hook_types: Vec::new(),
    }
}

fn all() -> Vec<&'static str> {
    let programs = DUTIES.iter().flat_map(|it| it.programs);
    programs.map(|it| it.name).collect()
}

/// First choice per duty.
fn chosen(support: &KernelSupport) -> Vec<&'static str> {
    let mut chosen = Vec::new();
    for duty in DUTIES {
        let plan = plan(duty, support, &chosen);
        chosen.extend(plan.fit.first().map(|it| it.name));
    }
    chosen
}

#[test]
fn a_full_kernel_gets_the_first_program_of_every_duty() {
    let firsts: Vec<_> = DUTIES.iter().map(|it| it.programs[0].name).collect();
    assert_eq!(chosen(&full()), firsts);
}

#[test]
fn without_a_tracepoint_its_duties_alone_are_off() {
    for name in full().tracepoints.keys() {
        let mut support = full();
        support.tracepoints.remove(name);
        for duty in DUTIES {
            let uses_it = duty
                .programs
                .iter()
                .all(|it| matches!(it.hook, Hook::Typed(n) | Hook::Raw(n) if n == *name));
            let plan = plan(duty, &support, &all());
            assert_eq!(plan.fit.is_empty(), uses_it, "{name}: {duty:?}");
            for (_, reason) in plan.unfit.iter().filter(|_| uses_it) {
                assert_eq!(*reason, format!("the kernel has no tracepoint {name}"));
            }
        }
    }
}

#[test]
fn without_a_field_the_duties_that_read_it_are_off_and_name_it() {
    for (index, (name, _)) in full().offsets.fields().enumerate() {
        let mut support = full();
        let mut words: Vec<u32> = support.offsets.fields().map(|it| it.1).collect();
        words[index] = abi::ABSENT;
        support.offsets = abi::Offsets::read_from_bytes(words.as_bytes()).unwrap();
        for duty in DUTIES {
            let plan = plan(duty, &support, &all());
            if duty.needs.contains(&name) {
                assert!(plan.fit.is_empty(), "{name}");
                assert!(plan.unfit.iter().all(|it| it.1.contains(name)), "{plan:?}");
            } else {
                assert!(!plan.fit.is_empty(), "{name}: {duty:?}");
            }
        }
    }
}

#[test]
fn without_traceable_functions_the_limit_is_derived() {
    let mut support = full();
    support.functions.clear();
    let chosen = chosen(&support);
    assert!(chosen.contains(&"oom_victim"));
    assert!(!chosen.contains(&"oom_reason"));
}

#[test]
fn mark_victim_with_a_pid_is_joined_with_the_signal() {
    let mut support = full();
    support.tracepoints.insert("mark_victim", vec![S]);
    let victim = DUTIES
        .iter()
        .find(|it| it.programs[0].name == "oom_victim")
        .unwrap();
    let joined = plan(victim, &support, &["oom_signal_raw"]).fit;
    let names: Vec<_> = joined.iter().map(|it| it.name).collect();
    assert_eq!(names, ["oom_victim_pid", "oom_victim_pid_raw"]);
    let alone = plan(victim, &support, &[]);
    assert_eq!(alone.fit, Vec::<&Program>::new());
    let told = alone
        .unfit
        .iter()
        .filter(|it| it.1 == "useless without oom_signal");
    assert_eq!(told.count(), 2);
}

#[test]
fn the_bare_program_needs_counters_that_can_be_read_by_type() {
    let victim = DUTIES
        .iter()
        .find(|it| it.programs[0].name == "oom_victim")
        .unwrap();
    let mut support = full();
    let names = |it: &KernelSupport| {
        plan(victim, it, &[])
            .fit
            .iter()
            .map(|it| it.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&support),
        ["oom_victim", "oom_victim_bare", "oom_victim_raw"]
    );
    support.offsets.mm_counters_are_typed = 0;
    assert_eq!(names(&support), ["oom_victim", "oom_victim_raw"]);
}

#[test]
fn reordered_arguments_are_refused() {
    let mut support = full();
    support
        .tracepoints
        .insert("mm_vmscan_memcg_reclaim_end", vec![P, S]);
    let chosen = chosen(&support);
    for name in ["stall_memcg_end", "stall_memcg_begin"] {
        assert!(!chosen.contains(&name), "{name}");
    }
    for name in ["stall_direct_end", "stall_direct_begin"] {
        assert!(chosen.contains(&name), "{name}");
    }
}

#[test]
fn every_need_is_a_field_and_every_name_is_used_once() {
    let fields: BTreeSet<_> = full().offsets.fields().map(|it| it.0).collect();
    let mut names = BTreeSet::new();
    for duty in DUTIES {
        for need in duty.needs {
            assert!(fields.contains(need), "{need}");
        }
        for program in duty.programs {
            assert!(names.insert(program.name), "{}", program.name);
            // Longer names are cut by the kernel and cannot be told apart in its lists.
            assert!(program.name.len() < 32, "{}", program.name);
        }
        for after in duty.programs.iter().flat_map(|it| it.after) {
            assert!(names.contains(after), "{after} comes later");
        }
    }
}
