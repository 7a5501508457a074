use serde_json::{Value, json};

use super::*;
use crate::decide::node_allocatable::{Machine, Reservations};
use crate::model::pod::PodOrigin;
use crate::units::Bytes;

/// A pod of one container, with more fields in its `spec`. Not static.
fn pod_with(spec: Value) -> Pod {
    let mut source = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "app"}]},
    });
    let fields = spec.as_object().expect("fields");
    for (name, value) in fields {
        source["spec"][name] = value.clone();
    }
    let source = serde_json::from_value(source).expect("a v1.Pod");
    Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod")
}

fn pod(requests: Value) -> Pod {
    pod_with(json!({"containers": [{"name": "app", "resources": {"requests": requests}}]}))
}

fn list(amounts: &[(&str, &str)]) -> ResourceList {
    let amount = |(name, text): &(&str, &str)| {
        let amount = text.parse().expect("a quantity");
        ((*name).to_owned(), amount)
    };
    amounts.iter().map(amount).collect()
}

fn node() -> Node {
    let labels = [("zone", "a"), ("generation", "7")];
    Node {
        name: "node-1".to_owned(),
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        allocatable: list(&[
            ("pods", "3"),
            ("cpu", "1900m"),
            ("memory", "1Gi"),
            ("ephemeral-storage", "10Gi"),
            ("hugepages-2Mi", "4Mi"),
            ("vendor.example/dev", "0"),
        ]),
        ..Node::default()
    }
}

/// What speaks against the pod on an otherwise empty node, by reason.
fn reasons(node: Node, pod: &Pod) -> Vec<String> {
    let failures = NodeInfo::new(node, []).failures(pod, None);
    let reasons = failures.iter().map(|it| it.reason().into_owned());
    reasons.collect()
}

fn required(terms: Value) -> Pod {
    let required = json!({"nodeSelectorTerms": terms});
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
    pod_with(json!({"affinity": {"nodeAffinity": affinity}}))
}

#[test]
fn a_pod_in_the_place_of_another_counts_as_far_as_it_asks_for_more() {
    let cpu = |amount: &str| pod(json!({"cpu": amount}));
    for (edited, left) in [("500m", 1000), ("900m", 1000), ("1200m", 700)] {
        let before = cpu("900m");
        let mut info = NodeInfo::new(node(), [&before]);
        info.take_after(&cpu(edited), &before);
        info.take(&cpu("0"));
        // Two pods of three.
        let fits = |milli: u32| info.refusal(&cpu(&format!("{milli}m"))).is_none();
        assert!(fits(left) && !fits(left + 1), "{edited}");
    }
}

#[test]
fn a_pod_of_which_only_its_requests_are_known_takes_them_and_its_place() {
    let cpu = |amount: &str| pod(json!({"cpu": amount}));
    let mut info = NodeInfo::new(node(), []);
    info.take_requests(&cpu("900m").counted_requests());
    let fits = |info: &NodeInfo, amount: &str| info.refusal(&cpu(amount)).is_none();
    assert!(fits(&info, "1") && !fits(&info, "1001m"));
    info.take(&cpu("0"));
    assert!(fits(&info, "0"), "the third of three pods");
    info.take(&cpu("0"));
    assert!(!fits(&info, "0"));
}

#[test]
fn a_resource_that_is_short_is_told_in_kubelets_words() {
    let short = |what: &str, requested: u64, used: u64, capacity: u64| {
        format!(
            "Node didn't have enough resource: {what}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        )
    };
    let one = pod(json!({"cpu": "900m", "memory": "512Mi", "hugepages-2Mi": "2Mi"}));
    let info = NodeInfo::new(node(), [&one]);
    for (requests, expected) in [
        (json!({}), None),
        (json!({"cpu": "1", "memory": "512Mi"}), None),
        (
            json!({"cpu": "1001m", "memory": "2Gi"}),
            Some(("OutOfcpu", short("cpu", 1001, 900, 1900))),
        ),
        (
            // Rounded up to thousandths.
            json!({"cpu": "1000.1m"}),
            Some(("OutOfcpu", short("cpu", 1001, 900, 1900))),
        ),
        (
            json!({"cpu": "1", "memory": "536870913"}),
            Some((
                "OutOfmemory",
                short("memory", 536_870_913, 1 << 29, 1 << 30),
            )),
        ),
        (
            json!({"ephemeral-storage": "11Gi"}),
            Some((
                "OutOfephemeral-storage",
                short("ephemeral-storage", 11 << 30, 0, 10 << 30),
            )),
        ),
        (
            json!({"hugepages-1Gi": "1Gi", "memory": "1"}),
            Some(("OutOfhugepages-1Gi", short("hugepages-1Gi", 1 << 30, 0, 0))),
        ),
        (
            json!({"hugepages-2Mi": "4Mi", "memory": "1"}),
            Some((
                "OutOfhugepages-2Mi",
                short("hugepages-2Mi", 4 << 20, 2 << 20, 4 << 20),
            )),
        ),
        (
            json!({"vendor.example/dev": "1"}),
            Some((
                "OutOfvendor.example/dev",
                short("vendor.example/dev", 1, 0, 0),
            )),
        ),
    ] {
        let failures = info.failures(&pod(requests.clone()), None);
        let first = failures.first();
        let got = first.map(|it| (it.reason().into_owned(), it.to_string()));
        let expected = expected.map(|(reason, message)| (reason.to_owned(), message));
        assert_eq!(got, expected, "{requests}");
    }
}

#[test]
fn the_agents_own_reasons_are_a_fixed_list() {
    let reason = |resource: &str| {
        let shortage = Shortage {
            resource: resource.to_owned(),
            requested: 1,
            used: 0,
            capacity: 0,
        };
        Failure::InsufficientResource(shortage).refusal().reason
    };
    assert_eq!(reason("pods"), RefusalReason::OutOfPods);
    assert_eq!(reason("cpu"), RefusalReason::OutOfCpu);
    assert_eq!(reason("hugepages-2Mi"), RefusalReason::OutOfHugepages);
    assert_eq!(
        reason("gpu.example/a"),
        RefusalReason::OutOfExtendedResources
    );
}

#[test]
fn pods_are_counted_before_anything_else() {
    let empty = pod(json!({}));
    let mut info = NodeInfo::new(node(), [&empty, &empty]);
    assert_eq!(info.refusal(&empty), None);
    info.take(&empty);
    let refusal = info.refusal(&pod(json!({"cpu": "1000"}))).expect("no room");
    assert_eq!(refusal.reason, RefusalReason::OutOfPods);
    assert_eq!(
        refusal.message,
        "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
}

#[test]
fn only_names_that_kubernetes_counts_can_be_short() {
    for (name, is_counted) in [
        ("hugepages-1Gi", true),
        ("attachable-volumes-csi-a", true),
        ("kubernetes.io/batteries", true),
        ("unlisted.example/dev", false),
        ("requests.example/dev", false),
        ("-/dev", false),
        ("widgets", false),
    ] {
        let is_short = !reasons(node(), &pod(json!({name: "1"}))).is_empty();
        assert_eq!(is_short, is_counted, "{name}");
    }
}

#[test]
fn overhead_of_a_resource_that_the_node_lacks_counts() {
    let spec = json!({"overhead": {"unlisted.example/dev": "1"}});
    assert_eq!(
        reasons(node(), &pod_with(spec)),
        ["OutOfunlisted.example/dev"]
    );
}

#[test]
fn a_disk_of_unknown_size_and_amounts_beyond_64_bits_are_no_surprise() {
    let mut unknown = node();
    unknown.allocatable.remove("ephemeral-storage");
    let disk = pod(json!({"ephemeral-storage": "1Ei"}));
    assert_eq!(reasons(unknown.clone(), &disk), ["OutOfephemeral-storage"]);
    unknown.unknown.insert("ephemeral-storage".to_owned());
    assert_eq!(reasons(unknown.clone(), &disk), [""; 0]);

    let huge = pod(json!({"cpu": "12E"}));
    assert_eq!(reasons(unknown.clone(), &huge), ["OutOfcpu"]);
    let full = NodeInfo::new(unknown, [&huge, &huge]);
    assert_eq!(full.refusal(&pod(json!({}))), None);
}

#[test]
fn a_pod_that_is_being_resized_counts_with_what_it_holds() {
    let source = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": {"requests": {"cpu": "1500m"}},
        }]},
    });
    let source = serde_json::from_value(source).expect("a v1.Pod");
    let resized = Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod");
    let info = NodeInfo::new(node(), [&resized]);
    let failures = info.failures(&pod(json!({"cpu": "500m"})), None);
    let [Failure::InsufficientResource(shortage)] = failures.as_slice() else {
        panic!("{failures:?}");
    };
    assert_eq!((shortage.used, shortage.missing()), (1500, 100));
}

#[test]
fn every_term_of_the_node_affinity_is_a_way_in() {
    let zone = |operator: &str, values: Value| json!({"key": "zone", "operator": operator, "values": values});
    let on = |expressions: Value| json!({"matchExpressions": expressions});
    let named = |operator: &str| {
        json!({"matchFields": [
            {"key": "metadata.name", "operator": operator, "values": ["node-1"]},
        ]})
    };
    let generation = |operator: &str, value: &str| {
        on(json!([{"key": "generation", "operator": operator, "values": [value]}]))
    };
    for (terms, is_in) in [
        (json!([]), false),
        (json!([{}]), false),
        (json!([on(json!([zone("In", json!(["a", "b"]))]))]), true),
        (json!([on(json!([zone("NotIn", json!(["a"]))]))]), false),
        (json!([on(json!([zone("Exists", json!([]))]))]), true),
        (json!([on(json!([zone("DoesNotExist", json!([]))]))]), false),
        (json!([generation("Gt", "6")]), true),
        (json!([generation("Lt", "7")]), false),
        (json!([generation("Gt", "six")]), false),
        (json!([generation("Near", "6")]), false),
        (json!([named("In")]), true),
        (json!([named("NotIn")]), false),
        (
            json!([named("NotIn"), on(json!([zone("Exists", json!([]))]))]),
            true,
        ),
        (
            json!([on(json!([
                zone("Exists", json!([])),
                zone("In", json!(["b"]))
            ]))]),
            false,
        ),
    ] {
        let is_refused = reasons(node(), &required(terms.clone())) == ["NodeAffinity"];
        assert_eq!(is_refused, !is_in, "{terms}");
    }
}

#[test]
fn a_label_of_another_system_is_put_right_where_the_node_has_labels() {
    let selecting = pod_with(json!({"nodeSelector": {"kubernetes.io/os": "linux"}}));
    let mut node = node();
    assert_eq!(reasons(node.clone(), &selecting), [""; 0]);
    node.labels = BTreeMap::from([(OS_LABEL.to_owned(), "windows".to_owned())]);
    assert_eq!(reasons(node.clone(), &selecting), [""; 0]);
    node.labels.clear();
    assert_eq!(reasons(node, &selecting), ["NodeAffinity"]);
}

#[test]
fn only_a_pod_that_labels_alone_keep_out_gets_a_second_look() {
    let fresh = Node {
        labels: BTreeMap::from([("zone".to_owned(), "b".to_owned())]),
        allocatable: list(&[("pods", "3"), ("cpu", "1")]),
        ..node()
    };
    let info = NodeInfo::new(node(), []);
    let wanted = |cpu: &str| {
        pod_with(json!({
            "nodeSelector": {"zone": "b"},
            "containers": [{"name": "app", "resources": {"requests": {"cpu": cpu}}}],
        }))
    };
    let failures = |cpu: &str| {
        let failures = info.failures(&wanted(cpu), Some(&fresh));
        let reasons = failures.iter().map(|it| it.reason().into_owned());
        reasons.collect::<Vec<_>>()
    };
    assert_eq!(failures("1"), [""; 0]);
    assert_eq!(failures("1500m"), ["OutOfcpu"], "the newer node is smaller");
    assert_eq!(failures("2"), ["OutOfcpu", "NodeAffinity"]);
}

#[test]
fn a_host_port_is_given_once_an_address() {
    let on = |port: Value| pod_with(json!({"containers": [{"name": "app", "ports": [port]}]}));
    let http = json!({"containerPort": 80, "hostPort": 80, "hostIP": "192.0.2.1"});
    let info = NodeInfo::new(node(), [&on(http)]);
    for (port, is_free) in [
        (json!({"containerPort": 80, "hostPort": 80}), false),
        (
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "0.0.0.0"}),
            false,
        ),
        (
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "192.0.2.1"}),
            false,
        ),
        (
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "192.0.2.2"}),
            true,
        ),
        (
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "::"}),
            true,
        ),
        (
            json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}),
            true,
        ),
        (json!({"containerPort": 80, "hostPort": 81}), true),
        (json!({"containerPort": 80}), true),
    ] {
        let failures = info.failures(&on(port.clone()), None);
        assert_eq!(failures.is_empty(), is_free, "{port}");
    }
}

#[test]
fn only_no_execute_taints_keep_out_and_no_static_pod() {
    let taint = |effect| Taint {
        key: "dedicated".to_owned(),
        value: "db".to_owned(),
        effect,
    };
    let mut node = node();
    let plain = pod(json!({}));
    node.taints = vec![taint(TaintEffect::NoSchedule)];
    assert_eq!(reasons(node.clone(), &plain), [""; 0]);
    node.taints = vec![taint(TaintEffect::NoExecute)];
    assert_eq!(reasons(node.clone(), &plain), ["TaintToleration"]);
    let tolerating = pod_with(json!({"tolerations": [{"key": "dedicated", "value": "db"}]}));
    assert_eq!(reasons(node.clone(), &tolerating), [""; 0]);
    let of_manifest = Pod {
        origin: PodOrigin::Manifest,
        ..plain
    };
    assert_eq!(reasons(node, &of_manifest), [""; 0]);
}

#[test]
fn what_nobodys_going_could_mend_stands_alone() {
    let full = json!([{"name": "app", "resources": {"requests": {"cpu": "100"}}}]);
    let strict = json!({"supplementalGroupsPolicy": "Strict"});
    for (spec, reason) in [
        (json!({"os": {"name": "windows"}}), "PodOSNotSupported"),
        (
            json!({"securityContext": strict}),
            "SupplementalGroupsPolicyNotSupported",
        ),
    ] {
        let mut spec = spec;
        spec["containers"] = full.clone();
        assert_eq!(reasons(node(), &pod_with(spec)), [reason]);
    }
    let mut labelled = pod(json!({"cpu": "100"}));
    labelled.labels = BTreeMap::from([(OS_LABEL.to_owned(), "windows".to_owned())]);
    assert_eq!(
        reasons(node(), &labelled),
        ["PodOSSelectorNodeLabelDoesNotMatch"]
    );
}

#[test]
fn a_standalone_node_has_kubelets_labels_and_refuses_nobody_for_an_unread_disk() {
    let machine = Machine {
        n_cpus: 2,
        memory: Bytes(1 << 30),
        ..Machine::default()
    };
    let allocatable = NodeAllocatable::new(&machine, &Reservations::default());
    let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";
    let config = crate::config::Config::from_yaml(text, None, &[]).expect("valid");
    let node = Node::standalone("node-1", &allocatable, &config.config.kubelet, 2);
    assert_eq!(node.labels["kubernetes.io/hostname"], "node-1");
    assert_eq!(node.labels["kubernetes.io/os"], "linux");
    let disk = pod(json!({"ephemeral-storage": "1Ei"}));
    assert_eq!(reasons(node.clone(), &disk), [""; 0]);
    let strict = pod_with(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
    assert_eq!(reasons(node, &strict), [""; 0]);
}
