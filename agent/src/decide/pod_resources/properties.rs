//! What holds of the resources of any pod, on random pods and settings.

use super::*;
use crate::config::{SwapBehavior, ThrottlingFactor};
use crate::decide::container_resources::{container_resources, oom_score_adj};
use crate::decide::qos::compute_qos_class;
use crate::decide::resource_settings::{MemoryQos, OomScope};
use crate::decide::testing::{pod, settings};
use crate::model::random::Random;
use crate::model::status::CgroupVersion;

impl Random {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let n = u64::try_from(choices.len()).expect("a short list");
        choices[usize::try_from(self.below(n)).expect("an index")]
    }

    fn resource_list(&mut self) -> String {
        let mut text = String::new();
        for (name, amounts) in [
            ("cpu", &["0", "1n", "0.5m", "100m", "2", "1e30", "300"]),
            (
                "memory",
                &["0", "1", "1500m", "64Mi", "1.5Gi", "1e30", "8Ei"],
            ),
            (
                "hugepages-2Mi",
                &["0", "2Mi", "3", "1Gi", "1e30", "8Ei", "1n"],
            ),
        ] {
            if self.below(3) > 0 {
                text += &format!(" {name}={}", self.of(amounts));
            }
        }
        text
    }

    fn any_pod(&mut self) -> Pod {
        let mut spec = String::new();
        for _ in 0..=self.below(4) {
            let kind = self.of(&["app", "app", "init", "sidecar", "pod", "overhead"]);
            spec += &format!(
                "{kind} {{req {} lim {}}} ",
                self.resource_list(),
                self.resource_list()
            );
        }
        pod(&(spec + "app {}"))
    }

    fn settings(&mut self) -> ResourceSettings {
        let compat = self.of(&[Compat::Ballast, Compat::Kubelet]);
        let mut settings = settings(compat);
        settings.node.version =
            self.of(&[CgroupVersion::V1, CgroupVersion::V2, CgroupVersion::Hybrid]);
        settings.node.memory = Bytes(self.of(&[0, 1, 16 << 30, u64::MAX]));
        settings.node.page_size = Bytes(self.of(&[0, 4096, 65_536]));
        settings.node.allocatable_memory = self.of(&[None, Some(Bytes(0)), Some(Bytes(u64::MAX))]);
        settings.cpu_limits = self.of(&[CpuLimits::Enforced, CpuLimits::Ignored]);
        settings.swap_behavior = self.of(&[SwapBehavior::NoSwap, SwapBehavior::LimitedSwap]);
        settings.oom_scope = self.of(&[OomScope::Process, OomScope::Container]);
        let policy = self.of(&[
            MemoryReservationPolicy::None,
            MemoryReservationPolicy::TieredReservation,
        ]);
        let qos = MemoryQos {
            policy,
            throttling_factor: ThrottlingFactor(self.of(&[0.1, 0.9, 1.0])),
        };
        settings.memory_qos = (settings.is_v2() && self.below(2) == 0).then_some(qos);
        settings
    }
}

#[track_caller]
fn check_kernel_takes(resources: &CgroupResources, settings: &ResourceSettings) {
    let shares = resources
        .cpu_shares
        .expect("every pod and container has a weight");
    assert!((2..=262_144).contains(&shares), "{shares} shares");
    if let Some(CpuBandwidth {
        quota: Limit::At(quota),
        ..
    }) = resources.cpu_bandwidth
    {
        assert!(quota >= 1000, "quota of {quota} us");
    }
    assert!(
        settings.is_v2() || resources.unified.is_empty(),
        "{:?}",
        resources.unified
    );
    assert!(!settings.is_v2() || resources.memory_and_swap_max.is_none());
    for (file, value) in &resources.unified {
        assert!(
            value == "max" || value.parse::<u64>().is_ok(),
            "{file} = {value}"
        );
    }
}

#[test]
fn every_figure_is_one_that_the_kernel_takes() {
    let mut random = Random(5);
    for round in 0..5000 {
        let (pod, settings) = (random.any_pod(), random.settings());
        let class = compute_qos_class(&pod);
        let pinning = random.of(&[CpuPinning::Shared, CpuPinning::Exclusive]);
        let own = pod_resources(&pod, class, &settings, pinning);
        check_kernel_takes(&own, &settings);
        for container in pod.all_containers() {
            let resources = container_resources(&pod, class, container, &settings, pinning);
            check_kernel_takes(&resources, &settings);
            let score = oom_score_adj(
                &pod,
                class,
                container,
                settings.node.memory,
                Compat::Ballast,
            );
            assert!(
                (-997..=1000).contains(&score),
                "round {round}: oom_score_adj {score}"
            );
        }
        assert_eq!(
            pod_resources(&pod, class, &settings, pinning),
            own,
            "round {round}: the same pod gives the same resources"
        );
    }
}
