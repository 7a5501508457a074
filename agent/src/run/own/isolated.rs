//! CPUs that the kernel isolates (`isolcpus=`) in the pool of containers without CPUs of their own. They are in no
//! scheduling domain (Documentation/admin-guide/kernel-parameters.txt), so a process that comes to one stays on it.
//! Kubelet's pool has them too; here that is told.

use crate::model::cpuset::CpuSet;

/// What is told as long as the pool has some.
pub(super) fn shared(pool: &CpuSet, isolated: &CpuSet) -> Option<String> {
    let shared = pool.intersection(isolated);
    (!shared.is_empty()).then(|| {
        format!(
            "containers without CPUs of their own share {shared}, which isolcpus isolates: no load is balanced there, and \
             what comes to one stays on it; right would be to boot without isolcpus"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolated_cpus_are_told_while_the_pool_has_them() {
        let set = |text: &str| text.parse::<CpuSet>().expect("a set");
        for (pool, isolated, told) in [
            ("0-3", "", None),
            ("0-1", "2-3", None),
            ("", "2-3", None),
            ("0-2", "2-3", Some("share 2, which")),
            ("0-3", "2-3", Some("share 2-3, which")),
        ] {
            let found = shared(&set(pool), &set(isolated));
            assert_eq!(found.is_some(), told.is_some(), "{pool} {isolated}");
            assert!(found.unwrap_or_default().contains(told.unwrap_or_default()));
        }
    }
}
