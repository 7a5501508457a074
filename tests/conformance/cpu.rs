//! Suites `cpu_take`, `cpu_static_policy` and `cpu_hints`, on the machines of `topologies`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, anyhow, bail};
use ballast::config::{Compat, TopologyManagerPolicy};
use ballast::decide::placement::cpu::{
    CpuConfigError, CpuError, CpuGates, CpuManager, CpuOptionError, CpuOptions, CpuOrder,
    CpuReservation, CpuRow, CpuSettings, CpuStateError, CpuTopology, Spreading, TakeError,
    TakeRule, take,
};
use ballast::decide::placement::hints::Hints;
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::numa::Hint;
use ballast::model::placement::CpuState;
use ballast::model::pod::{Pod, PodUid};
use ballast::model::topology::NumaNodeId;
use ballast_tests::timing::decision;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resources::{number, pod, text};

/// The machines of the directory with the vectors, or else of our own.
fn topology(name: &str) -> anyhow::Result<Arc<CpuTopology>> {
    type Topologies = BTreeMap<String, Arc<CpuTopology>>;
    static ALL: OnceLock<Result<Topologies, String>> = OnceLock::new();
    let all = ALL.get_or_init(|| read_topologies().map_err(|error| format!("{error:#}")));
    let all = all.as_ref().map_err(|error| anyhow!("{error}"))?;
    all.get(name)
        .cloned()
        .with_context(|| format!("no topology {name}"))
}

fn read_topologies() -> anyhow::Result<BTreeMap<String, Arc<CpuTopology>>> {
    #[derive(Deserialize)]
    struct Machine {
        name: String,
        cpus: Vec<[u32; 5]>,
    }
    let mut all = BTreeMap::new();
    for line in crate::lines(&crate::file_of("topologies")?)? {
        let machine: Machine = serde_json::from_str(&line?).context("read a topology")?;
        let rows = machine
            .cpus
            .iter()
            .map(|[cpu, node, package, core, llc]| CpuRow {
                cpu: CpuId(*cpu),
                numa_node: NumaNodeId(*node),
                package: *package,
                core: *core,
                llc: *llc,
            });
        all.insert(machine.name, Arc::new(CpuTopology::new(rows)?));
    }
    Ok(all)
}

fn cpus(input: &Value, field: &str) -> anyhow::Result<CpuSet> {
    text(input, field)?
        .parse()
        .with_context(|| format!("{field} is no CPU set"))
}

fn size(input: &Value, field: &str) -> anyhow::Result<usize> {
    Ok(usize::try_from(number(input, field)?)?)
}

fn error(kind: &str, error: &dyn std::error::Error) -> Value {
    json!({"error": kind, "message": error.to_string()})
}

fn take_kind(error: &TakeError) -> &'static str {
    match error {
        TakeError::NotEnough { .. } => "not-enough-cpus",
        TakeError::Failed => "failed",
        TakeError::Accounting { .. } => "accounting",
    }
}

pub(crate) fn run_take(input: &Value) -> anyhow::Result<Value> {
    let spreading = match text(input, "algorithm")? {
        "packed" => Spreading::Packed {
            align_by_llc: input["prefer_align_uncore"] == true,
        },
        "distributed" => Spreading::AcrossNumaNodes {
            group_size: size(input, "cpu_group_size")?,
        },
        other => bail!("algorithm {other}"),
    };
    let order = match text(input, "sorting")? {
        "packed" => CpuOrder::Packed,
        "spread" => CpuOrder::Spread,
        other => bail!("sorting {other}"),
    };
    let rule = TakeRule {
        spreading,
        order,
        compat: Compat::Kubelet,
    };
    let topology = topology(text(input, "topology")?)?;
    let (available, n) = (cpus(input, "available")?, size(input, "num_cpus")?);
    let taken = decision(|| take(&topology, &available, n, rule));
    Ok(match taken {
        Ok(taken) => json!({"cpus": taken, "size": taken.len()}),
        Err(fault) => error(take_kind(&fault), &fault),
    })
}

fn config_kind(error: &CpuConfigError) -> &'static str {
    match error {
        CpuConfigError::Option(CpuOptionError::Unknown { .. }) => "unknown-option",
        CpuConfigError::Option(CpuOptionError::GateOff { .. }) => "option-gate-disabled",
        CpuConfigError::Option(CpuOptionError::BadValue { .. }) => "bad-option-value",
        CpuConfigError::Option(CpuOptionError::Incompatible { .. }) => "incompatible-options",
        CpuConfigError::AlignBySocketPolicy => "align-by-socket-vs-single-numa-node",
        CpuConfigError::AlignBySocketTopology { .. } => "align-by-socket-vs-topology",
        CpuConfigError::ReservedCount { .. } => "reserve-size-mismatch",
        CpuConfigError::ReservedUnknown { .. } => "reserved-unknown-cpu",
        CpuConfigError::Topology(_) => "topology",
        CpuConfigError::NothingReserved => "nothing-reserved",
    }
}

fn state_kind(error: &CpuStateError) -> &'static str {
    match error {
        CpuStateError::EmptyPool => "default-empty-with-assignments",
        CpuStateError::ReservedNotInPool { .. } => "reserved-not-in-default",
        CpuStateError::ReservedInPool { .. } => "strict-reserved-in-default",
        CpuStateError::InPool { .. } => "assignment-overlaps-default",
        CpuStateError::OtherCpus { .. } => "cpus-mismatch",
    }
}

fn allocation_kind(error: &CpuError) -> &'static str {
    match error {
        CpuError::SmtSize { .. } => "smt-alignment",
        CpuError::SmtFree { .. } => "smt-alignment-not-enough-physical",
        CpuError::EmptyPodSharedPool | CpuError::EmptyPodInitPool => "empty-pod-shared-pool",
        // Kubelet has no such kind.
        CpuError::LastShared { .. } => "last-shared",
        CpuError::Take(error) => take_kind(error),
    }
}

/// What stays the same over a restart.
struct Node {
    topology: Arc<CpuTopology>,
    gates: CpuGates,
    pod_level: bool,
    topology_policy: TopologyManagerPolicy,
}

impl Node {
    fn read(input: &Value) -> anyhow::Result<Self> {
        let gate = |name: &str, default| input["feature_gates"][name].as_bool().unwrap_or(default);
        let gates = CpuGates::default();
        Ok(Self {
            topology: topology(text(input, "topology")?)?,
            gates: CpuGates {
                alpha_options: gate("CPUManagerPolicyAlphaOptions", gates.alpha_options),
                beta_options: gate("CPUManagerPolicyBetaOptions", gates.beta_options),
            },
            pod_level: gate("PodLevelResourceManagers", false) && gate("PodLevelResources", true),
            topology_policy: match text(input, "topology_policy")? {
                "none" => TopologyManagerPolicy::None,
                "best-effort" => TopologyManagerPolicy::BestEffort,
                "restricted" => TopologyManagerPolicy::Restricted,
                "single-numa-node" => TopologyManagerPolicy::SingleNumaNode,
                other => bail!("topology policy {other}"),
            },
        })
    }

    /// With the reservation and options of a case or of a restart within it.
    fn manager(&self, given: &Value) -> anyhow::Result<Result<CpuManager, CpuConfigError>> {
        let options = BTreeMap::deserialize(&given["options"]).context("read the options")?;
        let options = match CpuOptions::parse(&options, self.gates) {
            Ok(options) => options,
            Err(faults) => {
                let first = faults.into_iter().next().context("an error is a fault")?;
                return Ok(Err(first.into()));
            }
        };
        let cpus = cpus(given, "reserved_cpus")?;
        Ok(CpuManager::new(CpuSettings {
            topology: self.topology.as_ref().clone(),
            options,
            topology_policy: self.topology_policy,
            reservation: CpuReservation {
                n: size(given, "num_reserved")?,
                cpus: (!cpus.is_empty()).then_some(cpus),
            },
            manages_pod_level: self.pod_level,
            compat: Compat::Kubelet,
        }))
    }
}

fn show_state(state: &CpuState) -> Value {
    let mut shown = json!({
        "assignments": state.containers,
        "default_cpuset": state.shared_pool,
    });
    if !state.pods.is_empty() {
        shown["pod_assignments"] = json!(state.pods);
    }
    shown
}

fn with_error(mut state: Value, kind: &str, fault: &dyn std::error::Error) -> Value {
    state["error"] = json!(kind);
    state["message"] = json!(fault.to_string());
    state
}

fn show_hints(hints: Option<Hints>) -> Value {
    json!({"hints": hints.map(|it| json!({"cpu": it.list()}))})
}

pub(crate) fn run_policy(input: &Value) -> anyhow::Result<Value> {
    let node = Node::read(input)?;
    let mut manager = match node.manager(input)? {
        Ok(manager) => manager,
        Err(fault) => return Ok(json!({"construct": error(config_kind(&fault), &fault)})),
    };
    let mut got = json!({"construct": {
        "reserved": manager.reserved(),
        "reserved_physical": manager.reserved_cores(),
        "cpu_group_size": manager.cpus_per_core(),
        "allocatable": manager.allocatable(),
    }});

    #[derive(Default, Deserialize)]
    struct Initial {
        default_cpuset: CpuSet,
        assignments: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
    }
    let initial = match &input["initial_state"] {
        Value::Null => Initial::default(),
        given => Initial::deserialize(given).context("read the initial state")?,
    };
    let restored = CpuState {
        shared_pool: initial.default_cpuset,
        containers: initial.assignments,
        pods: BTreeMap::new(),
    };
    if let Err(fault) = manager.start(restored) {
        got["start"] = error(state_kind(&fault), &fault);
        return Ok(got);
    }
    got["start"] = show_state(manager.state());
    got["start"]["available"] = json!(manager.available());

    let Some(ops) = input["ops"].as_array() else {
        return Ok(got);
    };
    let pods: Vec<Pod> = input["pods"]
        .as_array()
        .context("pods")?
        .iter()
        .map(pod)
        .collect::<anyhow::Result<_>>()?;
    let mut results = Vec::new();
    for op in ops {
        let result = run_op(&node, &mut manager, &pods, op);
        results.push(result.with_context(|| format!("operation {op}"))?);
    }
    got["ops"] = json!(results);
    Ok(got)
}

fn run_op(
    node: &Node,
    manager: &mut CpuManager,
    pods: &[Pod],
    op: &Value,
) -> anyhow::Result<Value> {
    let name = text(op, "op")?;
    if name == "restart" {
        return restart(node, manager, op);
    }
    let uid = text(op, "pod")?;
    let pod = pods.iter().find(|it| it.uid.0 == uid);
    if name == "remove" {
        manager.release(&PodUid(uid.to_owned()), text(op, "container")?);
        return Ok(show_state(manager.state()));
    }
    let pod = pod.context("no such pod")?;
    let container = || {
        let name = text(op, "container")?;
        let mut all = pod.all_containers();
        all.find(|it| it.name == name).context("no such container")
    };
    let hint = || Hint::deserialize(&op["hint"]).context("read the hint");
    let done = match name {
        "allocate" => {
            let (container, hint) = (container()?, hint()?);
            decision(|| manager.allocate(pod, container, hint))
        }
        "allocate_pod" => {
            let hint = hint()?;
            decision(|| manager.allocate_pod(pod, hint))
        }
        "container_hints" => {
            let container = container()?;
            return Ok(show_hints(decision(|| manager.hints(pod, container))));
        }
        "pod_hints" => return Ok(show_hints(decision(|| manager.pod_hints(pod)))),
        other => bail!("operation {other}"),
    };
    let state = show_state(manager.state());
    Ok(match done {
        Ok(()) => state,
        Err(fault) => with_error(state, allocation_kind(&fault), &fault),
    })
}

fn restart(node: &Node, manager: &mut CpuManager, op: &Value) -> anyhow::Result<Value> {
    let before = manager.state().clone();
    let mut state = show_state(&before);
    Ok(match node.manager(op)? {
        Err(fault) => with_error(state, config_kind(&fault), &fault),
        Ok(mut fresh) => match fresh.start(before) {
            Err(fault) => with_error(state, state_kind(&fault), &fault),
            Ok(()) => {
                *manager = fresh;
                state = show_state(manager.state());
                state["reserved"] = json!(manager.reserved());
                state
            }
        },
    })
}
