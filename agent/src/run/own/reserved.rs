//! The loop's hold on the cgroups of daemons: limited like the agent's own, but never made.

use std::collections::{BTreeMap, BTreeSet};

use super::Loop;
use super::pods::CgroupFault;
use crate::decide::reserved::reserved_cgroups;
use crate::model::cgroup::{CgroupStep, DesiredCgroup, Existence, ObservedCgroup};
use crate::model::cgroup_path::CgroupPath;

impl Loop {
    pub(super) fn reserved_cgroups(&self) -> Vec<DesiredCgroup> {
        let kubelet = &self.config.kubelet;
        let rules = &self.hands.plan.rules;
        let reserved = reserved_cgroups(kubelet, self.own.compat, rules);
        reserved.into_iter().map(|it| it.cgroup).collect()
    }
}

/// Leaves out the cgroups of `reserved` that are not there; they are faults of the node until somebody
/// makes them.
pub(super) fn leave_out_absent(
    reserved: &BTreeSet<CgroupPath>,
    wanted: &mut Vec<DesiredCgroup>,
    observed: &BTreeMap<CgroupPath, ObservedCgroup>,
    faults: &mut BTreeMap<CgroupPath, CgroupFault>,
) {
    wanted.retain(|cgroup| {
        let seen = observed.get(&cgroup.path);
        let is_absent = seen.is_some_and(|it| it.existence == Existence::Absent);
        let is_left_out = is_absent && reserved.contains(&cgroup.path);
        if is_left_out {
            let why = format!(
                "cgroup {} is not there: what is reserved for it is not enforced",
                cgroup.path
            );
            let fault = CgroupFault {
                text: why,
                is_lack: false,
                is_there: false,
            };
            faults.insert(cgroup.path.clone(), fault);
        }
        !is_left_out
    });
}

/// Nothing but limits is written to a cgroup of others.
pub(super) fn only_write(reserved: &BTreeSet<CgroupPath>, steps: &mut Vec<CgroupStep>) {
    steps.retain(|step| match step {
        CgroupStep::Create { path } | CgroupStep::Repair { path, .. } => !reserved.contains(path),
        CgroupStep::Write { .. } => true,
    });
}
