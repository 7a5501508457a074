use super::*;

/// A pod that requests and uses so much memory, MiB; `None`: it was not read.
fn pod(name: &str, priority: i32, request: u64, usage: Option<u64>) -> PodReading {
    let quantity = |mib: u64| format!("{mib}Mi").parse().expect("a quantity");
    let pod = PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: PodUid(name.to_owned()),
    };
    let definition = Definition {
        memory_request: quantity(request),
        priority,
        is_critical: priority >= 2_000_000_000,
        ..Definition::default()
    };
    let figures = usage.map(|mib| PodFigures {
        memory_working_set: Some(mib << 20),
        ..PodFigures::default()
    });
    reading(&pod, &definition, QosClass::Burstable, figures.as_ref())
}

#[test]
fn the_order_is_that_of_kubelet_by_usage_above_requests_then_priority_then_how_far_above() {
    let pods = [
        pod("within", -10, 100, Some(100)),
        pod("above-a-little", 0, 10, Some(20)),
        pod("vital", 2_000_000_000, 0, Some(900)),
        pod("above-far", 0, 100, Some(200)),
        pod("above-and-urgent", 1000, 0, Some(500)),
        pod("not-read", 0, 0, None),
    ];
    let order = order(&pods);
    let names: Vec<&str> = order.iter().map(|it| it.uid.0.as_str()).collect();
    let right = ["above-far", "above-a-little", "above-and-urgent", "within"];
    assert_eq!(names, right);
    let first = &order[0];
    assert_eq!(
        (
            first.pod.as_str(),
            first.priority,
            first.request_bytes,
            first.working_set_bytes
        ),
        ("default/above-far", 0, 100 << 20, Some(200 << 20))
    );
    let critical: Vec<PodUid> = standings::critical(&pods).into_iter().collect();
    assert_eq!(critical, [PodUid("vital".to_owned())]);
}
