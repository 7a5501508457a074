//! What can be loaded here: facts about the running kernel, and the pure function that turns them
//! into an order of trying.
//!
//! Invariants: facts come from BTF, never from a version number, since distributions backport; and
//! what BTF allows can still be refused, so each duty lists its programs best first and the loader
//! goes down the list.

use std::collections::{BTreeMap, BTreeSet};

use ebpf_abi as abi;

use super::super::btf::{Argument, Btf, BtfError};
use super::{Stream, offsets};

/// What a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// A tracepoint whose arguments the verifier knows.
    Typed(&'static str),
    /// A tracepoint whose arguments are bare words.
    Raw(&'static str),
    FunctionEntry(&'static str),
    FunctionExit(&'static str),
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Typed(name) => write!(f, "tp_btf/{name}"),
            Self::Raw(name) => write!(f, "raw_tp/{name}"),
            Self::FunctionEntry(name) => write!(f, "fentry/{name}"),
            Self::FunctionExit(name) => write!(f, "fexit/{name}"),
        }
    }
}

/// One program of `ebpf/src/bin`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) hook: Hook,
    /// How the arguments must begin.
    arguments: &'static [Argument],
    /// The programs without one of which this one tells nothing, or does harm.
    after: &'static [&'static str],
}

/// A thing to know, with the programs that can find it out, best first; one of them is attached.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Duty {
    pub(super) stream: Stream,
    pub(super) programs: &'static [Program],
    /// Names of [`abi::Offsets`] that each of the programs reads.
    needs: &'static [&'static str],
    /// A program that makes this duty needless.
    pub(super) unless: Option<&'static str>,
    /// What is left when none can be attached.
    pub(super) fallback: &'static str,
}

/// Without a program that tells of OOM kills.
pub(super) const OOM_FALLBACK: &str = "kills in containers are known from the kernel's counts, without \
                                       their victims, on cgroup v1 but for those in cgroups that \
                                       containers make; in mode observe those of a container that is \
                                       gone before a walk finds it are known of its pod alone, on v1 \
                                       and before Linux 5.17 not at all; kills outside \
                                       pods are not seen; that it was the node that had no memory is \
                                       known on cgroup v2 to an agent that sees the whole tree and has \
                                       run for half a minute, unless some limit was reached within half a \
                                       minute before, and on v1 not at all";

const P: Argument = Argument::Pointer;
const S: Argument = Argument::Scalar;

const fn typed(
    name: &'static str,
    tracepoint: &'static str,
    arguments: &'static [Argument],
) -> Program {
    Program {
        name,
        hook: Hook::Typed(tracepoint),
        arguments,
        after: &[],
    }
}

const fn raw(
    name: &'static str,
    tracepoint: &'static str,
    arguments: &'static [Argument],
) -> Program {
    Program {
        name,
        hook: Hook::Raw(tracepoint),
        arguments,
        after: &[],
    }
}

impl Program {
    const fn after(mut self, programs: &'static [&'static str]) -> Self {
        self.after = programs;
        self
    }
}

/// What every lineage needs.
macro_rules! with_lineage {
    ($($name:literal),* $(,)?) => {
        &[
            "task_cgroups", "css_set_dfl_cgrp", "css_set_memory", "css_cgroup", "cgroup_kn",
            "cgroup_level", "cgroup_root", "root_hierarchy_id", "kn_id", "kn_parent",
            $($name),*
        ]
    };
}

/// They tell which process has the PID that the kernel names.
const SIGNALS: &[&str] = &["oom_signal", "oom_signal_raw"];

const PROCESS_NEEDS: &[&str] = with_lineage![
    "task_tgid",
    "task_pid",
    "task_comm",
    "task_start_boottime",
    "task_group_leader",
    "task_real_parent",
    "task_signal",
    "task_exit_code",
    "signal_oom_mm",
    "signal_live",
    "signal_flags",
    "signal_group_exit_code",
];

/// In the order of attaching: what others rely on first.
pub(super) const DUTIES: &[Duty] = &[
    Duty {
        stream: Stream::Oom,
        programs: &[
            typed("oom_signal", "signal_generate", &[S, P, P]),
            raw("oom_signal_raw", "signal_generate", &[S, P, P]),
        ],
        needs: &["task_tgid"],
        unless: None,
        fallback: "a victim that was exiting already is reported as killed",
    },
    Duty {
        stream: Stream::Oom,
        programs: &[Program {
            name: "oom_reason_done",
            hook: Hook::FunctionExit("oom_kill_process"),
            arguments: &[],
            after: &[],
        }],
        needs: &[],
        unless: None,
        fallback: REASON_FALLBACK,
    },
    Duty {
        stream: Stream::Oom,
        programs: &[Program {
            name: "oom_reason",
            hook: Hook::FunctionEntry("oom_kill_process"),
            arguments: &[],
            after: &["oom_reason_done"],
        }],
        needs: &["oom_control_memcg", "oom_control_constraint"],
        unless: None,
        fallback: REASON_FALLBACK,
    },
    Duty {
        stream: Stream::Oom,
        programs: &[raw(
            "oom_direct_reclaim",
            "mm_vmscan_direct_reclaim_begin",
            &[],
        )],
        needs: &[],
        unless: Some("oom_reason"),
        fallback: RECLAIM_FALLBACK,
    },
    Duty {
        stream: Stream::Oom,
        programs: &[
            typed("oom_reclaim", "mm_vmscan_memcg_reclaim_end", &[S])
                .after(&["oom_direct_reclaim"]),
            raw("oom_reclaim_raw", "mm_vmscan_memcg_reclaim_end", &[S])
                .after(&["oom_direct_reclaim"]),
            raw("oom_reclaim_bare", "mm_vmscan_memcg_reclaim_end", &[])
                .after(&["oom_direct_reclaim"]),
        ],
        needs: &[
            "task_cgroups",
            "css_set_memory",
            "css_parent",
            "mem_cgroup_css",
            "mem_cgroup_usage",
            "mem_cgroup_max",
        ],
        unless: Some("oom_reason"),
        fallback: RECLAIM_FALLBACK,
    },
    Duty {
        stream: Stream::Oom,
        programs: &[
            typed("oom_victim", "mark_victim", &[P]),
            typed("oom_victim_bare", "mark_victim", &[P]),
            raw("oom_victim_raw", "mark_victim", &[P]),
            typed("oom_victim_pid", "mark_victim", &[S]).after(SIGNALS),
            raw("oom_victim_pid_raw", "mark_victim", &[S]).after(SIGNALS),
        ],
        needs: with_lineage![
            "task_tgid",
            "task_pid",
            "task_comm",
            "task_start_boottime",
            "task_group_leader",
            "task_real_parent",
            "task_signal",
            "task_mm",
            "task_cred",
            "cred_uid",
            "signal_oom_score_adj",
            "mm_total_vm",
            "mm_file_pages",
            "mm_anon_pages",
            "mm_swap_pages",
            "mm_shmem_pages",
            "mem_cgroup_css",
            "mem_cgroup_usage",
            "mem_cgroup_max",
        ],
        unless: None,
        fallback: OOM_FALLBACK,
    },
    Duty {
        stream: Stream::Process,
        programs: &[
            typed("process_fork", "sched_process_fork", &[P, P]),
            raw("process_fork_raw", "sched_process_fork", &[P, P]),
        ],
        needs: PROCESS_NEEDS,
        unless: None,
        fallback: PROCESS_FALLBACK,
    },
    Duty {
        stream: Stream::Process,
        programs: &[
            typed("process_exec", "sched_process_exec", &[P]),
            raw("process_exec_raw", "sched_process_exec", &[P]),
        ],
        needs: PROCESS_NEEDS,
        unless: None,
        fallback: PROCESS_FALLBACK,
    },
    Duty {
        stream: Stream::Process,
        programs: &[
            typed("process_exit", "sched_process_exit", &[P]),
            raw("process_exit_raw", "sched_process_exit", &[P]),
        ],
        needs: PROCESS_NEEDS,
        unless: None,
        fallback: "ends of processes are not seen; mode own has those of first processes from its runtime, but not how \
                   those ended that an earlier agent had started, on Linux 6.15 or newer if no agent ran then",
    },
    Duty {
        stream: Stream::Cgroup,
        programs: &[
            typed("cgroup_created", "cgroup_mkdir", &[P]),
            raw("cgroup_created_raw", "cgroup_mkdir", &[P]),
        ],
        needs: with_lineage!["kn_name"],
        unless: None,
        fallback: CGROUP_FALLBACK,
    },
    Duty {
        stream: Stream::Cgroup,
        programs: &[
            typed("cgroup_removed", "cgroup_rmdir", &[P]),
            raw("cgroup_removed_raw", "cgroup_rmdir", &[P]),
        ],
        needs: with_lineage![],
        unless: None,
        fallback: "not seen; in mode own the next full pass makes a missing cgroup again, in observe the next walk lets go of it",
    },
    Duty {
        stream: Stream::Cgroup,
        programs: &[
            typed("cgroup_attached", "cgroup_attach_task", &[P, P, P]),
            raw("cgroup_attached_raw", "cgroup_attach_task", &[P, P, P]),
        ],
        needs: with_lineage!["task_tgid"],
        unless: None,
        fallback: "not seen",
    },
    Duty {
        stream: Stream::Cgroup,
        programs: &[
            typed("cgroup_populated", "cgroup_notify_populated", &[P, P, S]),
            raw(
                "cgroup_populated_raw",
                "cgroup_notify_populated",
                &[P, P, S],
            ),
        ],
        needs: with_lineage![],
        unless: None,
        fallback: "not seen; in mode own a cgroup on its way out is tried again until it is empty, in observe there is \
                   no last reading of a container",
    },
    Duty {
        stream: Stream::Stall,
        programs: &[
            typed("stall_cgroup_removed", "cgroup_rmdir", &[P]),
            raw("stall_cgroup_removed_raw", "cgroup_rmdir", &[P]),
        ],
        needs: with_lineage![],
        unless: None,
        fallback: "stall totals of removed cgroups stay until the agent restarts",
    },
    // The end first: a begin without one fills the map of those who wait.
    Duty {
        stream: Stream::Stall,
        programs: &[
            typed("stall_memcg_end", "mm_vmscan_memcg_reclaim_end", &[S]),
            raw("stall_memcg_end_raw", "mm_vmscan_memcg_reclaim_end", &[S]),
        ],
        needs: with_lineage![],
        unless: None,
        fallback: STALL_FALLBACK,
    },
    Duty {
        stream: Stream::Stall,
        programs: &[
            raw("stall_memcg_begin", "mm_vmscan_memcg_reclaim_begin", &[])
                .after(&["stall_memcg_end", "stall_memcg_end_raw"]),
        ],
        needs: &[],
        unless: None,
        fallback: STALL_FALLBACK,
    },
    Duty {
        stream: Stream::Stall,
        programs: &[
            typed("stall_direct_end", "mm_vmscan_direct_reclaim_end", &[S]),
            raw("stall_direct_end_raw", "mm_vmscan_direct_reclaim_end", &[S]),
        ],
        needs: with_lineage![],
        unless: None,
        fallback: STALL_FALLBACK,
    },
    Duty {
        stream: Stream::Stall,
        programs: &[
            raw("stall_direct_begin", "mm_vmscan_direct_reclaim_begin", &[])
                .after(&["stall_direct_end", "stall_direct_end_raw"]),
        ],
        needs: &[],
        unless: None,
        fallback: STALL_FALLBACK,
    },
];

const REASON_FALLBACK: &str = "the limiting cgroup is derived from page counters, and that it was the node from what the \
                               task reclaimed before; a NUMA memory policy counts as the node";

/// The same where no program notes what a task reclaims; what is left without these is said of them.
pub(super) const REASON_WITHOUT_RECLAIM: &str = "the limiting cgroup is derived from page counters; a NUMA memory policy \
                                                 counts as the node";

/// The same where the victim's program cannot look at page counters.
pub(super) const REASON_WITHOUT_LIMITS: &str = "that it was the node is derived from what the task reclaimed before; a NUMA \
                                                memory policy counts as the node";

const RECLAIM_FALLBACK: &str = "of kills at the same time in one cgroup, some name no limit; that it was the node that \
                                had no memory is known only where no cgroup of the task is full, and from the count of \
                                tasks that had to free memory of it within two seconds before (allocstall of /proc/vmstat), \
                                and of kills while no agent ran not at all";

pub(super) const CGROUP_FALLBACK: &str = "not seen; cgroups that nobody knows are looked for every minute in mode own, \
                                          every second in observe, or less often where that takes more than \
                                          a twentieth of a CPU";

pub(super) const PROCESS_FALLBACK: &str = "processes are not seen; containers are: mode own has them from its runtime, observe \
                                from the programs that tell of cgroups, at once, or where there are none from walks over the \
                                cgroups";

pub(super) const STALL_FALLBACK: &str = "stalls are read from memory.pressure where PSI is on: of the node, and of pods \
                                         where these have cgroups of v2";

/// The structure that notes for a map how much it has locked (include/linux/bpf.h of 5.10).
const LOCKED_MEMORY: &str = "bpf_map_memory";

/// What this kernel's BTF says about the hooks and fields that the programs use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSupport {
    /// The tracepoints that exist, with what they pass.
    pub tracepoints: BTreeMap<&'static str, Vec<Argument>>,
    /// The functions that exist. That a program may be attached shows only in loading it.
    pub functions: BTreeSet<&'static str>,
    pub offsets: abi::Offsets,
    /// Maps and programs count as locked memory, up to Linux 5.10.
    pub locks_memory: bool,
    /// BTF in which the hooks have their ids in the kernel, for attaching.
    pub(super) hook_types: Vec<u8>,
}

impl KernelSupport {
    /// `btf`: the bytes of `/sys/kernel/btf/vmlinux`. `memory_is_unified`: the memory controller
    /// lives on cgroup v2.
    pub fn from_btf(btf: &[u8], memory_is_unified: bool) -> Result<Self, BtfError> {
        let tracepoints = hooks(|hook| match hook {
            Hook::Typed(name) | Hook::Raw(name) => Some(name),
            _ => None,
        });
        let functions = hooks(|hook| match hook {
            Hook::FunctionEntry(name) | Hook::FunctionExit(name) => Some(name),
            _ => None,
        });
        let typedefs: Vec<String> = tracepoints
            .iter()
            .map(|it| format!("btf_trace_{it}"))
            .collect();
        let names: Vec<&str> = typedefs
            .iter()
            .map(String::as_str)
            .chain(functions.iter().copied())
            .chain(offsets::TYPES.iter().copied())
            .chain([LOCKED_MEMORY])
            .collect();
        let btf = Btf::parse(btf, &names)?;
        Ok(Self {
            tracepoints: tracepoints
                .iter()
                .filter_map(|name| Some((*name, btf.tracepoint(name).ok()?)))
                .collect(),
            functions: functions
                .into_iter()
                .filter(|name| btf.has_function(name))
                .collect(),
            offsets: offsets::resolve(&btf, memory_is_unified),
            locks_memory: btf.field(LOCKED_MEMORY, "pages").is_ok(),
            hook_types: btf.abridged(),
        })
    }
}

fn hooks(of: impl Fn(Hook) -> Option<&'static str>) -> BTreeSet<&'static str> {
    let programs = DUTIES.iter().flat_map(|it| it.programs);
    programs.filter_map(|it| of(it.hook)).collect()
}

/// The programs of a duty that fit this kernel and those that are `attached`, in the order of trying; or, for each that
/// does not fit, why.
pub(super) fn plan(duty: &'static Duty, support: &KernelSupport, attached: &[&str]) -> Plan {
    let fields: BTreeMap<_, _> = support.offsets.fields().collect();
    let missing: Vec<_> = duty
        .needs
        .iter()
        .copied()
        .filter(|it| fields.get(it) == Some(&abi::ABSENT))
        .collect();
    let mut plan = Plan::default();
    for program in duty.programs {
        let is_met =
            program.after.is_empty() || program.after.iter().any(|it| attached.contains(it));
        match fits(program, support) {
            _ if !missing.is_empty() => plan.unfit.push((
                program,
                format!("the kernel's BTF lacks {}", missing.join(", ")),
            )),
            Ok(()) if !is_met => {
                let reason = format!("useless without {}", program.after[0]);
                plan.unfit.push((program, reason));
            }
            Ok(()) => plan.fit.push(program),
            Err(reason) => plan.unfit.push((program, reason)),
        }
    }
    plan
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) fit: Vec<&'static Program>,
    pub(super) unfit: Vec<(&'static Program, String)>,
}

fn fits(program: &Program, support: &KernelSupport) -> Result<(), String> {
    match program.hook {
        Hook::Typed(name) | Hook::Raw(name) => {
            let passed = support
                .tracepoints
                .get(name)
                .ok_or_else(|| format!("the kernel has no tracepoint {name}"))?;
            if !passed.starts_with(program.arguments) {
                return Err(format!(
                    "tracepoint {name} passes {passed:?}, not {:?}",
                    program.arguments
                ));
            }
        }
        Hook::FunctionEntry(name) | Hook::FunctionExit(name) => {
            if !support.functions.contains(name) {
                return Err(format!("the kernel has no traceable function {name}"));
            }
        }
    }
    // Without helpers there is no other way to these counters, and a kill with wrong amounts is
    // worse than one reported by its exit.
    if program.name == "oom_victim_bare" && support.offsets.mm_counters_are_typed != 1 {
        return Err("this kernel's memory counters cannot be read by type".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
