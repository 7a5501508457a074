//! The loop's hold on the cgroups of daemons: limited like the agent's own, but never made.

use std::collections::{BTreeMap, BTreeSet};

use super::Loop;
use super::pods::CgroupFault;
use crate::decide::reserved::reserved_cgroups;
use crate::model::cgroup::{CgroupStep, DesiredCgroup, Existence, ObservedCgroup};
use crate::model::cgroup_name::CgroupName;

impl Loop {
    pub(super) fn reserved_cgroups(&self) -> Vec<DesiredCgroup> {
        let kubelet = &self.config.kubelet;
        let rules = &self.node.plan.rules;
        let reserved = reserved_cgroups(kubelet, self.config.compat, rules);
        reserved.into_iter().map(|it| it.cgroup).collect()
    }
}

/// Leaves out the cgroups of `reserved` that are not there; they are faults of the node until somebody
/// makes them.
pub(super) fn leave_out_absent(
    reserved: &BTreeSet<CgroupName>,
    wanted: &mut Vec<DesiredCgroup>,
    observed: &BTreeMap<CgroupName, ObservedCgroup>,
    faults: &mut BTreeMap<CgroupName, CgroupFault>,
) {
    wanted.retain(|cgroup| {
        let seen = observed.get(&cgroup.name);
        let is_absent = seen.is_some_and(|it| it.existence == Existence::Absent);
        let is_left_out = is_absent && reserved.contains(&cgroup.name);
        if is_left_out {
            let why = format!(
                "cgroup {} is not there: what is reserved for it is not enforced",
                cgroup.name
            );
            let fault = CgroupFault {
                text: why,
                is_lack: false,
            };
            faults.insert(cgroup.name.clone(), fault);
        }
        !is_left_out
    });
}

/// Nothing but limits is written to a cgroup of others.
pub(super) fn only_write(reserved: &BTreeSet<CgroupName>, steps: &mut Vec<CgroupStep>) {
    steps.retain(|step| match step {
        CgroupStep::Create { name } | CgroupStep::Repair { name, .. } => !reserved.contains(name),
        CgroupStep::Write { .. } => true,
    });
}
