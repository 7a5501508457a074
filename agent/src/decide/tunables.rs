//! Kernel settings: which to write, or which to complain of.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::sysctl::Sysctl;

/// `protectKernelDefaults`: what to do about a setting that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TunablePolicy {
    /// Set it (kubelet's default).
    Write,
    /// Leave it, and do not start.
    Protect,
}

/// A setting that is not as it must be and will not be set. Any one is fatal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase", tag = "fault")]
pub enum TunableFault {
    #[error("{sysctl} cannot be read, expected {}", sysctl.wanted())]
    Unknown { sysctl: Sysctl },
    #[error("{sysctl} is {found}, expected {}: set it, or set protectKernelDefaults to false", sysctl.wanted())]
    Differs { sysctl: Sysctl, found: i64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TunablePlan {
    /// In the order of [`Sysctl::ALL`].
    pub writes: BTreeMap<Sysctl, i64>,
    pub faults: Vec<TunableFault>,
}

/// Compares the settings with what is wanted. `None`, or no entry, is a setting that could not be
/// read: a fault under either policy, since a value that is not known is not overwritten.
pub fn plan_tunables(
    current: &BTreeMap<Sysctl, Option<i64>>,
    policy: TunablePolicy,
) -> TunablePlan {
    let mut plan = TunablePlan::default();
    for sysctl in Sysctl::ALL {
        let found = current.get(&sysctl).copied().flatten();
        match (found, policy) {
            (None, _) => plan.faults.push(TunableFault::Unknown { sysctl }),
            (Some(found), _) if found == sysctl.wanted() => {}
            (Some(_), TunablePolicy::Write) => {
                plan.writes.insert(sysctl, sysctl.wanted());
            }
            (Some(found), TunablePolicy::Protect) => {
                plan.faults.push(TunableFault::Differs { sysctl, found });
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> BTreeMap<Sysctl, Option<i64>> {
        Sysctl::ALL
            .into_iter()
            .map(|it| (it, Some(it.wanted())))
            .collect()
    }

    #[test]
    fn settings_as_wanted_need_nothing() {
        for policy in [TunablePolicy::Write, TunablePolicy::Protect] {
            assert_eq!(plan_tunables(&wanted(), policy), TunablePlan::default());
        }
    }

    #[test]
    fn a_setting_that_differs_is_written_or_complained_of() {
        let mut current = wanted();
        current.insert(Sysctl::Panic, Some(0));
        let plan = plan_tunables(&current, TunablePolicy::Write);
        assert_eq!(plan.writes, BTreeMap::from([(Sysctl::Panic, 10)]));
        assert_eq!(plan.faults, []);

        let plan = plan_tunables(&current, TunablePolicy::Protect);
        assert_eq!(plan.writes, BTreeMap::new());
        let message = plan.faults.first().map(ToString::to_string);
        assert_eq!(
            message.as_deref(),
            Some("kernel.panic is 0, expected 10: set it, or set protectKernelDefaults to false")
        );
    }

    #[test]
    fn what_cannot_be_read_is_a_fault_and_never_written() {
        let mut current = wanted();
        current.insert(Sysctl::PanicOnOops, None);
        current.remove(&Sysctl::RootMaxKeys);
        for policy in [TunablePolicy::Write, TunablePolicy::Protect] {
            let plan = plan_tunables(&current, policy);
            assert_eq!(plan.writes, BTreeMap::new());
            assert_eq!(
                plan.faults,
                [Sysctl::PanicOnOops, Sysctl::RootMaxKeys]
                    .map(|sysctl| TunableFault::Unknown { sysctl })
            );
        }
    }
}
