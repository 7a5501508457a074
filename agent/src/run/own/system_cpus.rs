//! `reservedSystemCPUs` of which some are offline. Kubelet does not start then (cmd/kubelet/app/server.go, v1.36:
//! `getReservedCPUs`). An agent that runs when it happens goes on, so the next one starts as well: the pods that are
//! there would have no manager. What the machine does not have at all is a fault of the configuration.

use super::SettingError;
use crate::config::KubeletConfig;
use crate::model::cpuset::CpuSet;
use crate::model::quantity::{Format, Quantity};
use crate::sources::sysfs;
use crate::sys::Root;

/// The settings as they are kept while these CPUs are online: what is offline is kept from nobody. Where none of those
/// that are named is online, as many others are chosen.
pub(super) fn while_online(kubelet: &KubeletConfig, online: &CpuSet) -> KubeletConfig {
    let mut kubelet = kubelet.clone();
    let Some(wanted) = kubelet.reserved_system_cpus.take() else {
        return kubelet;
    };
    let kept = wanted.intersection(online);
    if !kept.is_empty() {
        let n = i64::try_from(kept.len()).unwrap_or(i64::MAX);
        let n = Quantity::from_units(n, Format::DecimalSi);
        kubelet.system_reserved.insert("cpu".to_owned(), n);
        kubelet.reserved_system_cpus = Some(kept);
    }
    kubelet
}

/// What is told as long as some are offline.
pub(super) fn offline(kubelet: &KubeletConfig, online: &CpuSet) -> Option<String> {
    let wanted = kubelet.reserved_system_cpus.as_ref()?;
    let offline = wanted.difference(online);
    if offline.is_empty() {
        return None;
    }
    let kept = wanted.intersection(online);
    let kept = match kept.is_empty() {
        true => "as many others are".to_owned(),
        false => format!("{kept} alone is"),
    };
    Some(format!(
        "{offline} of {wanted} is offline, or not among the CPUs of cgroupRoot; until they have it, {kept} kept for the system"
    ))
}

/// The same at a start that nothing of it stands against.
pub(in crate::run) fn offline_at_start(root: &Root, kubelet: &KubeletConfig) -> Option<String> {
    let online = sysfs::online(root)?;
    check(root, kubelet, &online).ok()?;
    offline(kubelet, &online)
}

/// They must be CPUs that the machine has.
pub(super) fn check(
    root: &Root,
    kubelet: &KubeletConfig,
    online: &CpuSet,
) -> Result<(), SettingError> {
    let Some(wanted) = &kubelet.reserved_system_cpus else {
        return Ok(());
    };
    let present = sysfs::present(root).unwrap_or_default().union(online);
    match wanted.is_subset(&present) {
        true => Ok(()),
        false => Err(SettingError::ReservedCpus {
            wanted: wanted.clone(),
            present,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::sys::scratch::Scratch;

    fn kubelet(reserved: &str) -> KubeletConfig {
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubelet: {{reservedSystemCPUs: \"{reserved}\"}}\n"
        );
        let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
        loaded.config.kubelet
    }

    fn set(text: &str) -> CpuSet {
        text.parse().expect("a set")
    }

    #[test]
    fn of_what_is_named_those_that_are_online_are_kept() {
        let online = set("0-1,3");
        for (named, kept, n, told) in [
            ("", None, None, None),
            ("0,3", Some("0,3"), Some(2), None),
            (
                "2-3",
                Some("3"),
                Some(1),
                Some(
                    "2 of 2-3 is offline, or not among the CPUs of cgroupRoot; until they have it, 3 alone is kept for the system",
                ),
            ),
            (
                "2",
                None,
                Some(1),
                Some(
                    "2 of 2 is offline, or not among the CPUs of cgroupRoot; until they have it, as many others are kept for the system",
                ),
            ),
        ] {
            let kubelet = kubelet(named);
            let now = while_online(&kubelet, &online);
            assert_eq!(now.reserved_system_cpus, kept.map(set), "{named}");
            let cpu = now.system_reserved.get("cpu").map(Quantity::units);
            assert_eq!(cpu, n, "{named}");
            assert_eq!(offline(&kubelet, &online).as_deref(), told, "{named}");
        }
    }

    #[test]
    fn what_the_machine_does_not_have_is_a_fault_and_what_is_offline_is_told() {
        let machine = Scratch::new("reserved-cpus");
        let root = Root::at(machine.directory());
        let cpus = Path::new("sys/devices/system/cpu");
        root.create_dir_all(Path::new("/").join(cpus))
            .expect("made");
        machine.write(cpus.join("present"), "0-3\n");
        machine.write(cpus.join("online"), "0-1,3\n");
        let online = set("0-1,3");
        for (named, is_fault, is_told) in [
            ("0-1", false, false),
            ("2-3", false, true),
            ("4", true, false),
            ("2,4", true, false),
        ] {
            let kubelet = kubelet(named);
            let checked = check(&root, &kubelet, &online);
            assert_eq!(checked.is_err(), is_fault, "{named}");
            let told = offline_at_start(&root, &kubelet);
            assert_eq!(told.is_some(), is_told, "{named}");
        }
    }
}
