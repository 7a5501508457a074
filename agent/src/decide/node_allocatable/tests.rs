use super::*;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

fn list(text: &str) -> ResourceList {
    text.split_whitespace()
        .map(|it| {
            let (name, amount) = it.split_once('=').expect("name=amount");
            (name.to_owned(), amount.parse().expect("a quantity"))
        })
        .collect()
}

fn shown(list: &ResourceList) -> String {
    list.iter()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn threshold(text: &str) -> Option<Amount> {
    Amount::parse_threshold(text).expect("a threshold")
}

fn machine(n_cpus: u32, memory: u64) -> Machine {
    Machine {
        n_cpus,
        memory: Bytes(memory),
        ..Machine::default()
    }
}

#[test]
fn reservations_add_up_and_thresholds_do_not_limit_cgroups() {
    for (hard, reserved) in [
        (None, "cpu=150m memory=150Mi"),
        (threshold("100Mi"), "cpu=150m memory=250Mi"),
        (threshold("5%"), "cpu=150m memory=694157320"),
        (threshold("0%"), "cpu=150m memory=150Mi"),
    ] {
        let reservations = Reservations {
            kube: list("cpu=100m memory=100Mi"),
            system: list("cpu=50m memory=50Mi"),
            hard_memory: hard,
            hard_nodefs: None,
        };
        let figures = NodeAllocatable::new(&machine(10, 10 * GI), &reservations);
        assert_eq!(shown(&figures.reservation), reserved);
        assert_eq!(shown(&figures.absolute), "cpu=9850m memory=10090Mi");
        assert!(figures.overcommitted().is_empty());
    }
}

#[test]
fn kubepods_is_limited_to_capacity_less_reservations() {
    let machine = Machine {
        hugepages: BTreeMap::from([(2 * MI, 512)]),
        max_pid: Some(514_000),
        ..machine(16, 64 * GI)
    };
    let reservations = Reservations {
        kube: list("cpu=500m memory=1Gi"),
        system: list("cpu=500m memory=1Gi"),
        hard_memory: threshold("100Mi"),
        hard_nodefs: None,
    };
    let figures = NodeAllocatable::new(&machine, &reservations);
    let kubepods = node_resources(&figures.cgroup_absolute, Part::All);
    assert_eq!(kubepods.cpu_shares, Some(15_360));
    assert_eq!(kubepods.memory_max, Some(Limit::At(66_571_993_088)));
    assert_eq!(kubepods.pids_max, Some(Limit::At(514_000)));
    assert_eq!(
        kubepods.hugetlb,
        Some(BTreeMap::from([(2 * MI, Limit::At(GI))]))
    );
    // Without the pool, which is no memory any more: 66467135488 of the same node in 10.3.
    let scheduler = figures.node_allocatable(110);
    assert_eq!(scheduler["memory"].value(), 66_467_135_488 - (1 << 30));
}

#[test]
fn huge_pages_that_were_given_back_are_memory_once_they_are_free() {
    for (held_hugepages, memory) in [(Bytes(0), 8), (Bytes(3 * GI), 5), (Bytes(10 * GI), 0)] {
        let machine = Machine {
            hugepages: BTreeMap::from([(2 * MI, 512)]),
            held_hugepages,
            ..machine(2, 9 * GI)
        };
        let figures = NodeAllocatable::new(&machine, &Reservations::default());
        let left = figures.node_allocatable(110);
        assert_eq!(left["memory"].value() >> 30, memory, "{held_hugepages:?}");
        assert_eq!(left["hugepages-2Mi"].value() >> 30, 1);
    }
}

#[test]
fn a_reservation_above_the_capacity_is_named() {
    let reservations = Reservations {
        kube: list("memory=10Gi cpu=1"),
        system: list("memory=2Gi"),
        ..Reservations::default()
    };
    let figures = NodeAllocatable::new(&machine(1, 11 * GI), &reservations);
    let names: Vec<&str> = figures
        .overcommitted()
        .into_iter()
        .map(|(name, ..)| name)
        .collect();
    assert_eq!(names, ["memory"], "cpu is all reserved, which is allowed");
    assert_eq!(shown(&figures.absolute), "cpu=0 memory=0");
    let kubepods = node_resources(&figures.cgroup_absolute, Part::All);
    assert_eq!(
        without_zero_memory(kubepods).memory_max,
        None,
        "0 would let nothing live"
    );
}

#[test]
fn reserved_cgroups_keep_hugepages_that_nobody_mentioned() {
    let reserved = list("cpu=500m memory=1Gi pid=1000");
    let all = reserved_resources(&reserved, Part::All, true, Compat::Ballast);
    assert_eq!(all.hugetlb, None);
    assert_eq!(all.pids_max, Some(Limit::At(1000)));
    assert_eq!(all.unified["memory.min"], GI.to_string());
    let kubelets = reserved_resources(&reserved, Part::Compressible, false, Compat::Kubelet);
    assert_eq!(kubelets.hugetlb, Some(BTreeMap::new()));
    assert_eq!(
        (kubelets.cpu_shares, kubelets.memory_max),
        (Some(512), None)
    );
}

#[test]
fn pods_are_bounded_by_cores_only_where_asked() {
    assert_eq!(n_pods(4, 110, 0), 110);
    assert_eq!(n_pods(4, 110, 10), 40);
    assert_eq!(n_pods(4, 110, u32::MAX), 110);
}
