use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::parse::MAX_FINDINGS;
use super::*;
use crate::model::pod::QosClass;
use crate::model::quantity::Quantity;
use crate::sys::clock;
use crate::sys::scratch::Scratch;
use crate::sys::watch::DirWatch;

/// A directory of manifests that goes with the test.
struct Fixture {
    path: PathBuf,
    _scratch: Scratch,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let path = scratch.path("manifests");
        fs::create_dir(&path).expect("the directory can be made");
        Self {
            path,
            _scratch: scratch,
        }
    }

    /// Replaces the file in one step, so it always has another version.
    fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path.join(name);
        let temporary = self.path.join(format!(".{name}.new"));
        fs::write(&temporary, text).expect("the fixture can be written");
        fs::rename(temporary, path).expect("the fixture can be renamed");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path.join(name)).expect("the fixture was there");
    }

    fn directory(&self) -> ManifestDirectory {
        ManifestDirectory::new(&self.path)
    }

    fn scan(&self) -> ManifestScan {
        self.directory().scan()
    }
}

/// A pod with one container, as a flow mapping on one line.
fn pod(name: &str) -> String {
    pod_with(name, "")
}

/// `more` goes into the container, with a comma in front.
fn pod_with(name: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, \
         spec: {{containers: [{{name: c, image: i, command: [sleep]{more}}}]}}}}\n"
    )
}

fn names(scan: &ManifestScan) -> Vec<String> {
    let mut names: Vec<String> = scan.pods.values().map(|pod| pod.name.clone()).collect();
    names.sort();
    names
}

/// Faults with only the last part of the path.
fn faults(scan: &ManifestScan) -> Vec<String> {
    scan.faults.iter().map(short).collect()
}

fn short(fault: &ManifestFault) -> String {
    let text = fault.to_string();
    let directory = fault
        .file
        .parent()
        .unwrap_or(Path::new(""))
        .display()
        .to_string();
    text.replace(&format!("{directory}/"), "")
}

#[track_caller]
fn check_fault(text: &str, right: &str) {
    let fixture = Fixture::new("fault");
    fixture.put("a.yaml", text);
    fixture.put("b.yaml", pod("other"));
    let scan = fixture.scan();
    assert_eq!(faults(&scan), [right], "{text}");
    assert!(
        names(&scan).contains(&"other".into()),
        "the other file went with it"
    );
    assert!(!scan.is_complete);
}

#[test]
fn a_port_that_another_pod_names_is_told_unless_both_ask_for_it_of_the_host() {
    let fixture = Fixture::new("ports");
    for (file, ports) in [
        ("a", "{containerPort: 80}, {containerPort: 81}"),
        ("b", "{containerPort: 82}, {containerPort: 80}"),
        ("c", "{containerPort: 80, protocol: UDP}"),
        (
            "d",
            "{containerPort: 81, hostPort: 81}, {containerPort: 83, hostPort: 83}",
        ),
        ("e", "{containerPort: 83, hostPort: 83}"),
    ] {
        let text = pod_with(file, &format!(", ports: [{ports}]"));
        fixture.put(&format!("{file}.yaml"), text);
    }
    let scan = fixture.scan();
    let ports = scan
        .warnings
        .iter()
        .filter(|it| it.of_field().contains("too"));
    let told: Vec<String> = ports.map(short).collect();
    let why = Because::Network;
    let field = "spec.containers[0].ports";
    assert_eq!(
        told,
        [
            format!(
                "b.yaml: document 1: pod default/b: {field}[1].containerPort: pod default/a names 80 too: {why}"
            ),
            format!(
                "d.yaml: document 1: pod default/d: {field}[0].containerPort: pod default/a names 81 too: {why}"
            ),
        ]
    );
}

/// Its record could not be read back.
#[test]
fn a_pod_with_more_text_than_a_record_may_have_is_refused() {
    let fixture = Fixture::new("text");
    let value = "x".repeat(600_000);
    let env = |n| {
        format!(
            ", env: [{{name: A, value: &long {value}}}{}]",
            ", {name: B, value: *long}".repeat(n)
        )
    };
    fixture.put("a.yaml", pod_with("fits", &env(2)));
    fixture.put("b.yaml", pod_with("large", &env(3)));
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["fits"]);
    let faults = faults(&scan);
    assert!(
        matches!(&faults[..], [it] if it.contains("b.yaml") && it.contains("too much text")),
        "{faults:?}"
    );
}

/// Waits for a word at each file, as a server does that is away for a while.
#[derive(Debug)]
struct Slow(Mutex<Receiver<()>>);

impl Witness for Slow {
    fn begins(&self, _thing: &str) -> bool {
        self.0.lock().is_ok_and(|it| it.recv().is_ok())
    }

    fn ends(&self) {}
}

#[test]
fn a_file_that_hangs_is_not_waited_for_and_is_taken_when_it_is_read() {
    let fixture = Fixture::new("hangs");
    fixture.put("a.yaml", pod("a"));
    let (go, told) = channel();
    let (to_test, done) = channel();
    let slow = fixture
        .directory()
        .with_witness(Arc::new(Slow(Mutex::new(told))));
    let mut directory = PatientDirectory::new(slow, move || {
        to_test.send(()).ok();
    });
    go.send(()).expect("it is read");
    assert_eq!(names(&directory.scan()), ["a"]);
    fixture.put("b.yaml", pod("b"));
    for _ in 0..2 {
        let scan = directory.scan();
        assert_eq!(names(&scan), ["a"]);
        let faults = faults(&scan);
        assert!(
            matches!(&faults[..], [it] if it.contains("was not read within 1 s")),
            "{faults:?}"
        );
        assert!(!scan.is_complete);
    }
    go.send(()).expect("it is read");
    done.recv().expect("it is told");
    let mut scans = (0..100).map(|_| directory.scan());
    let scan = scans.find(|it| it.is_complete).expect("it is taken");
    assert_eq!(names(&scan), ["a", "b"]);
    assert_eq!(scan.faults, []);
}

#[test]
fn many_documents_lists_and_json_make_pods() {
    let fixture = Fixture::new("forms");
    fixture.put(
        "a.yaml",
        format!("# head\n---\n{}---\n---\n{}", pod("one"), pod("two")),
    );
    let untyped = pod("three").replace("apiVersion: v1, kind: Pod, ", "");
    fixture.put(
        "b.yml",
        format!("{{apiVersion: v1, kind: PodList, items: [{untyped}]}}"),
    );
    fixture.put(
        "c.yaml",
        format!("{{apiVersion: v1, kind: List, items: [{}]}}", pod("four")),
    );
    let json = |name: &str| {
        format!(
            "{{\n\t\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\"}},\n\
             \t\"spec\": {{\"containers\": [{{\"name\": \"c\", \"image\": \"i\", \"command\": [\"sleep\"]}}]}}}}\n"
        )
    };
    fixture.put("d.json", json("five") + &json("six"));
    fixture.put("e.manifest", json("seven"));
    fixture.put("f.yaml", "{apiVersion: v1, kind: List, items: []}");
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    assert_eq!(scan.warnings, []);
    assert_eq!(
        names(&scan),
        ["five", "four", "one", "seven", "six", "three", "two"]
    );
    assert_eq!((scan.n_files, scan.is_complete), (6, true));
    assert!(scan.pods.values().all(|pod| pod.namespace == "default"));
    let mut places: Vec<(&str, usize, &str)> = Vec::new();
    for (uid, origin) in &scan.origins {
        let name = scan.pods[uid].name.as_str();
        places.push((origin.file.as_str(), origin.place, name));
    }
    places.sort_unstable();
    let names: Vec<&str> = places.iter().map(|(.., name)| *name).collect();
    assert_eq!(
        names,
        ["one", "two", "three", "four", "five", "six", "seven"]
    );
}

/// As `kubectl get pod -o yaml` writes it of a pod that has run elsewhere.
#[test]
fn the_status_of_a_manifest_counts_only_where_it_is_believed() {
    let fixture = Fixture::new("status");
    fixture.put(
        "a.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, command: [run]}]}, \
         status: {qosClass: Guaranteed, phase: Running}}",
    );
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    let told: Vec<String> = scan.warnings.iter().map(ToString::to_string).collect();
    let told: Vec<&str> = told.iter().filter_map(|it| it.rsplit('/').next()).collect();
    assert_eq!(
        told,
        ["web: status: is ignored: only who runs a pod knows it"]
    );
    let class = |scan: &ManifestScan| {
        scan.pods
            .values()
            .map(|it| it.recorded_qos)
            .collect::<Vec<_>>()
    };
    assert_eq!(class(&scan), [None]);
    let believed = fixture.directory().with_believed_status(true).scan();
    assert_eq!(believed.warnings, []);
    assert_eq!(class(&believed), [Some(QosClass::Guaranteed)]);
    // An empty one says nothing.
    fixture.put(
        "a.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, command: [run]}]}, status: {}}",
    );
    assert_eq!(fixture.scan().warnings, []);
}

/// The first is how OpenShift's static pods of keepalived have it.
#[test]
fn a_pod_ends_in_the_grace_of_its_deletion_unless_it_was_deleted_elsewhere() {
    let of = |more: &str, spec: &str| {
        let fixture = Fixture::new("deletion");
        let text = pod("one").replace("name: one", &format!("name: one{more}"));
        fixture.put(
            "a.yaml",
            text.replace("spec: {", &format!("spec: {{{spec}")),
        );
        let scan = fixture.scan();
        assert_eq!(scan.faults, []);
        let fields = scan.warnings.into_iter().filter_map(|it| it.field);
        let pod = scan.pods.values().next().expect("the pod is good");
        let grace = pod.termination_grace.as_secs();
        (grace, pod.uid.clone(), fields.collect::<Vec<_>>())
    };
    let (grace, uid, told) = of(", deletionGracePeriodSeconds: 65", "");
    assert_eq!((grace, told), (65, vec![]));
    // An edit of it is one of the pod.
    assert_ne!(of(", deletionGracePeriodSeconds: 66", "").1, uid);
    let spec = "terminationGracePeriodSeconds: 7, ";
    assert_eq!(of(", deletionGracePeriodSeconds: 65", spec).0, 65);
    assert_eq!(of(", deletionGracePeriodSeconds: 0", spec).0, 0);
    // It is no time, and an API server leaves it out.
    assert_eq!(of(", deletionGracePeriodSeconds: -1", spec).0, 7);
    let deleted = ", deletionGracePeriodSeconds: 1, deletionTimestamp: \"2026-01-01T00:00:00Z\"";
    let (grace, _, told) = of(deleted, spec);
    let right = vec!["metadata.deletionTimestamp".to_owned()];
    assert_eq!((grace, told), (7, right));
}

#[test]
fn what_is_wrong_in_a_status_is_told_only_where_it_is_believed() {
    let fixture = Fixture::new("status-wrong");
    let put = |status: &str| {
        let spec = "{containers: [{name: c, command: [run]}]}";
        let rest = format!("metadata: {{name: web}}, spec: {spec}, status: {status}");
        fixture.put("a.yaml", format!("{{apiVersion: v1, kind: Pod, {rest}}}"));
    };
    let told = |findings: &[ManifestFault]| findings.iter().map(short).collect::<Vec<_>>();
    let of = |what: &str| [format!("a.yaml: document 1: pod default/web: status{what}")];
    for status in ["{phases: [Running]}", "{phase: 5}"] {
        put(status);
        let scan = fixture.scan();
        assert_eq!(scan.faults, []);
        assert_eq!(
            told(&scan.warnings),
            of(": is ignored: only who runs a pod knows it")
        );
    }
    let believing = || fixture.directory().with_believed_status(true).scan();
    let unlike = of(".phase: invalid type: integer `5`, expected a string");
    assert_eq!(told(&believing().faults), unlike);
    for (status, unknown) in [
        ("{phases: [Running]}", ".phases: unknown field, ignored"),
        (
            "{qosClass: Best}",
            ".qosClass: is ignored: \"Best\" is no class",
        ),
    ] {
        put(status);
        let scan = believing();
        assert_eq!(scan.faults, []);
        assert_eq!(told(&scan.warnings), of(unknown));
    }
}

#[test]
fn resources_of_a_pod_that_are_left_out_are_told() {
    let fixture = Fixture::new("pod-resources");
    fixture.put(
        "a.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {resources: {limits: {memory: 1Gi}}, \
         containers: [{name: c, command: [run]}]}}",
    );
    let has_resources = |scan: &ManifestScan| scan.pods.values().all(|it| it.resources.is_some());
    let taken = fixture.scan();
    assert_eq!(taken.faults, []);
    assert_eq!(taken.warnings, []);
    assert!(taken.pods.len() == 1 && has_resources(&taken), "{taken:?}");
    let left_out = fixture.directory().with_pod_level_resources(false).scan();
    assert_eq!(left_out.faults, []);
    let told: Vec<String> = left_out.warnings.iter().map(short).collect();
    let right = "spec.resources: is ignored: the feature gate PodLevelResources is off";
    assert_eq!(
        told,
        [format!("a.yaml: document 1: pod default/web: {right}")]
    );
    assert!(!has_resources(&left_out), "{left_out:?}");
    let uids = |scan: &ManifestScan| scan.pods.keys().cloned().collect::<Vec<_>>();
    assert_eq!(uids(&left_out), uids(&taken), "it is the same pod");
    // Nor has a variable a limit that nobody keeps.
    fixture.put(
        "a.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {resources: {limits: {memory: 1Gi}}, \
         containers: [{name: c, command: [run], \
         env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]}]}}",
    );
    assert_eq!(fixture.scan().faults, []);
    let left_out = fixture.directory().with_pod_level_resources(false).scan();
    let field = "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource";
    let right = format!(
        "a.yaml: document 1: pod default/web: {field}: Invalid value: \"limits.memory\": container c has no such limit"
    );
    assert_eq!(faults(&left_out), [right]);
}

#[test]
fn what_the_node_has_for_pods_is_in_variables_and_in_no_uid() {
    let fixture = Fixture::new("allocatable");
    let limit = "{resourceFieldRef: {resource: limits.cpu}}";
    let env = format!(", env: [{{name: CPUS, valueFrom: {limit}}}]");
    fixture.put("a.yaml", pod_with("one", &env));
    fixture.put("b.yaml", pod_of_uid("two", &env));
    let read = |cpus: &str| {
        let cpus = cpus.parse::<Quantity>().expect("a quantity");
        let allocatable = ResourceList::from([("cpu".to_owned(), cpus)]);
        fixture.directory().with_allocatable(allocatable).scan()
    };
    let (small, large) = (read("2"), read("64"));
    for (scan, cpus) in [(&small, "2"), (&large, "64")] {
        assert_eq!(scan.faults, []);
        assert_eq!(names(scan), ["one", "two"]);
        let mut pods = scan.pods.values();
        assert!(pods.all(|it| it.containers[0].env[0].value == cpus));
    }
    assert!(small.pods.keys().eq(large.pods.keys()));
    assert_eq!(small.origins, large.origins, "each is the same definition");
}

#[test]
fn a_fault_names_file_document_pod_and_field() {
    for (text, right) in [
        (
            "a: [",
            "a.yaml: document 1: line 2, column 1: did not find expected node content, while parsing a flow node",
        ),
        (
            "5",
            "a.yaml: document 1: is not a mapping of fields; right would be a v1 Pod",
        ),
        (
            "a: 1",
            "a.yaml: document 1: kind: is missing; right would be Pod",
        ),
        (
            "{apiVersion: v1, kind: pod, metadata: {name: web, namespace: shop}, spec: {containers: []}}",
            "a.yaml: document 1: pod shop/web: kind: \"pod\" is not a pod; right would be Pod, PodList or List",
        ),
        (
            "apiVersion: v1\nkind: Po",
            "a.yaml: document 1: kind: \"Po\" is not a pod; right would be Pod, PodList or List",
        ),
        (
            "{apiVersion: v1, kind: podlist}",
            "a.yaml: document 1: kind: \"podlist\" is not a pod; right would be Pod, PodList or List",
        ),
        (
            "{apiVersion: v1, kind: Pods, items: []}",
            "a.yaml: document 1: kind: \"Pods\" is not a pod; right would be Pod, PodList or List",
        ),
        (
            "{apiVersion: v1, kind: List, items: 5}",
            "a.yaml: document 1: items: is not a list",
        ),
        (
            "{apiVersion: v1, kind: List, items: [{kind: List}]}",
            "a.yaml: document 1: items[0].kind: \"List\" is not a pod; right would be Pod",
        ),
        (
            "{kind: List, items: []}",
            "a.yaml: document 1: apiVersion: right would be v1",
        ),
    ] {
        check_fault(text, right);
    }
    let fixture = Fixture::new("field");
    let bad = pod_with("web", ", env: [{name: A, value: 5}]");
    fixture.put(
        "a.yaml",
        format!("{}---\n{bad}---\n{}", pod("one"), pod("two")),
    );
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["one", "two"]);
    assert_eq!(
        faults(&scan),
        [
            "a.yaml: document 2: pod default/web: spec.containers[0].env[0].value: \
          invalid type: integer `5`, expected a string"
        ]
    );
    let bad = pod_with("web", ", resources: {limits: {cpu: lots}}");
    fixture.put(
        "a.yaml",
        format!("{{apiVersion: v1, kind: PodList, items: [{bad}]}}"),
    );
    let found = faults(&fixture.scan());
    assert_eq!(found.len(), 1, "{found:?}");
    let right = "a.yaml: document 1: pod default/web: items[0].spec.containers[0].resources.limits[cpu]: `lots`";
    assert!(found[0].starts_with(right), "{found:?}");
}

#[test]
fn a_long_value_is_told_by_its_begin() {
    let fixture = Fixture::new("long");
    let long = "\u{e4}".repeat(100_000);
    fixture.put("a.yaml", pod(&long));
    let container = format!("{{\"name\": \"c\", \"command\": [\"x\"], \"{long}\": 1}}");
    let rest =
        format!("\"metadata\": {{\"name\": \"one\"}}, \"spec\": {{\"containers\": [{container}]}}");
    fixture.put(
        "b.json",
        format!("{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", {rest}}}"),
    );
    fixture.put("c.yaml", format!("{{apiVersion: v1, kind: {long}}}"));
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["one"]);
    let (faults, warnings) = (&scan.faults, &scan.warnings);
    assert_eq!((faults.len(), warnings.len()), (1, 2));
    let rule = "\": must be a lowercase RFC 1123 subdomain: labels joined by dots";
    let message = &faults[0].message;
    assert!(message.starts_with("Invalid value: \"\u{e4}") && message.ends_with(rule));
    for it in faults.iter().chain(warnings) {
        assert!(short(it).len() < 1_000, "{it}");
    }
}

#[test]
fn what_is_of_another_kind_beside_a_pod_is_told_and_no_fault() {
    let fixture = Fixture::new("beside");
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: []}}";
    fixture.put("a.yaml", format!("{service}\n---\n{}", pod("one")));
    let items = format!("{}, {service}", pod("two").trim_end());
    fixture.put(
        "b.yaml",
        format!("{{apiVersion: v1, kind: List, items: [{items}]}}"),
    );
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    assert_eq!(names(&scan), ["one", "two"]);
    assert!(scan.is_complete);
    let warnings: Vec<String> = scan.warnings.iter().map(short).collect();
    assert_eq!(
        warnings,
        [
            "a.yaml: document 1: kind: \"Service\" is not a pod, and is ignored",
            "b.yaml: document 1: items[1].kind: \"Service\" is not a pod, and is ignored",
        ]
    );
}

#[test]
fn syntax_faults_tell_the_line_of_the_file() {
    let fixture = Fixture::new("line");
    fixture.put(
        "a.yaml",
        format!("{}---\n\nkind: Pod\nkind: Pod\n", pod("one")),
    );
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["one"]);
    let found = faults(&scan);
    assert!(
        found[0].starts_with("a.yaml: document 2: line 4, "),
        "{found:?}"
    );
}

#[test]
fn unknown_fields_warn_and_do_not_stop_the_pod() {
    let fixture = Fixture::new("unknown");
    fixture.put("a.yaml", pod_with("one", ", imge: x"));
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["one"]);
    assert_eq!(scan.faults, []);
    let warnings: Vec<String> = scan.warnings.iter().map(short).collect();
    assert_eq!(
        warnings,
        ["a.yaml: document 1: pod default/one: spec.containers[0].imge: unknown field, ignored"]
    );
}

#[test]
fn what_keeps_a_container_from_its_start_is_told_first() {
    let fixture = Fixture::new("first");
    let text = pod_with("one", ", livenessProbe: {exec: {command: [run]}}");
    fixture.put("a.yaml", text.replace("command: [sleep], ", ""));
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    let told = scan.warnings.iter();
    let told: Vec<_> = told.map(|it| (it.field.as_deref(), it.weight)).collect();
    let right = [
        (Some("spec.containers[0].command"), Weight::Stops),
        (Some("spec.containers[0].livenessProbe"), Weight::Differs),
    ];
    assert_eq!(told, right);
}

#[test]
fn what_is_told_of_several_fields_is_told_once() {
    let fixture = Fixture::new("several");
    let probe = "{exec: {command: [run]}}";
    let fields =
        format!(", livenessProbe: {probe}, tty: true, readinessProbe: {probe}, a: 1, b: 2");
    fixture.put("a.yaml", pod_with("one", &fields));
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    let warnings: Vec<String> = scan.warnings.iter().map(short).collect();
    let of = "a.yaml: document 1: pod default/one: ";
    let told = [
        "spec.containers[0].a, spec.containers[0].b: unknown field, ignored",
        "spec.containers[0].livenessProbe, spec.containers[0].readinessProbe: is ignored: containers are not probed",
        "spec.containers[0].tty: is ignored: processes have no standard input and no terminal",
    ];
    assert_eq!(warnings, told.map(|it| format!("{of}{it}")));
}

#[test]
fn bare_numbers_are_quantities_and_octal_modes_are_numbers() {
    let fixture = Fixture::new("numbers");
    let numbers = pod_with("one", ", resources: {limits: {cpu: 0.5, memory: 1048576}}");
    let volumes = "volumes: [{name: v, downwardAPI: {defaultMode: 0644}}], containers";
    fixture.put("a.yaml", numbers.replace("containers", volumes));
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    let pod = scan.pods.values().next().expect("the pod is good");
    let limits = &pod.containers[0].resources.limits;
    assert_eq!(
        (limits["cpu"].millis(), limits["memory"].units()),
        (500, 1 << 20)
    );
}

#[test]
fn a_mode_that_kubernetes_reads_as_a_text_stays_one() {
    let fixture = Fixture::new("modes");
    let volume = "{name: v, flexVolume: {driver: example/d, options: {mode: \"0755\"}}}";
    let volumes = format!("volumes: [{volume}], containers");
    fixture.put("a.yaml", pod("one").replace("containers", &volumes));
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    assert_eq!(names(&scan), ["one"]);
}

#[test]
fn where_nothing_is_written_an_entry_is_empty_or_zero() {
    let fixture = Fixture::new("nulls");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: one, labels: {a: }, annotations: {b: ~}}, \
               spec: {nodeSelector: {c: }, overhead: {cpu: }, securityContext: {supplementalGroups: [ ~ ]}, \
               imagePullSecrets: [ ~ ], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
               {nodeSelectorTerms: [ ~ ]}}}, containers: [{name: app, image: none, \
               command: [run, null], args: [ ~ ], resources: {limits: {memory: }}, \
               livenessProbe: {exec: {command: [run, ~]}}, \
               restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [ ~ ]}}]}], \
               hostAliases: [{ip: 192.0.2.1, hostnames: [ ~ ]}], dnsConfig: {nameservers: [ ~ ], options: [ ~ ]}, \
               topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, \
               labelSelector: {matchLabels: {d: }}}]}}";
    fixture.put("a.yaml", pod);
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    let pod = scan.pods.values().next().expect("the pod is good");
    assert_eq!((&*pod.labels["a"], &*pod.annotations["b"]), ("", ""));
    let app = &pod.containers[0];
    assert_eq!(
        (&*app.command, &*app.args),
        (&["run".to_owned(), String::new()][..], &[String::new()][..])
    );
    assert_eq!(app.resources.limits["memory"].units(), 0);
    assert_eq!(pod.supplemental_groups, [0]);
    assert_eq!(pod.node_requirements.node_affinity, Some(Vec::new()));
}

#[test]
fn a_time_has_the_form_that_the_api_reads() {
    let of = |time: &str| {
        let fixture = Fixture::new("time");
        let metadata = format!("name: one, creationTimestamp: '{time}'");
        fixture.put("a.yaml", pod("one").replace("name: one", &metadata));
        let faults = fixture.scan().faults.into_iter();
        faults.map(|it| it.field).collect::<Vec<_>>()
    };
    for time in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.25+01:00"] {
        assert!(of(time).is_empty(), "{time}");
    }
    for time in [
        "2026-01-01t00:00:00Z",
        "2026-01-01T00:00:00z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00Z",
    ] {
        let right = Some("metadata.creationTimestamp".to_owned());
        assert_eq!(of(time), [right], "{time}");
    }
}

#[test]
fn a_uid_is_stable_and_follows_the_definition() {
    let uid = |text: &str| {
        let fixture = Fixture::new("uid");
        fixture.put("a.yaml", text);
        let scan = fixture.scan();
        assert_eq!(scan.faults, []);
        scan.pods.keys().next().expect("the pod is good").0.clone()
    };
    let base = uid(&pod("one"));
    // A new agent must find the pods of the one before it.
    assert_eq!(base, "d6e334d7044f7f89d09c26ce966a48d3");
    assert_eq!(uid(&format!("# comment\n---\n{}", pod("one"))), base);
    assert_ne!(uid(&pod("two")), base);
    assert_ne!(uid(&pod_with("one", ", args: [\"1\"]")), base);
    assert_ne!(
        uid(&pod("one").replace("name: one", "name: one, labels: {a: b}")),
        base
    );
    let given = pod("one").replace("name: one", "name: one, uid: 1234-abcd");
    assert_eq!(uid(&given), "1234-abcd");

    let fixture = Fixture::new("uid-node");
    fixture.put("a.yaml", pod("one"));
    let scan = fixture.directory().with_node_name("node-1").scan();
    let (found, pod) = scan.pods.first_key_value().expect("the pod is good");
    assert_eq!(
        (found.0.as_str(), pod.node_name.as_deref()),
        (base.as_str(), Some("node-1"))
    );
}

#[test]
fn a_manifest_runs_where_it_lies_whatever_node_it_names() {
    let fixture = Fixture::new("other-node");
    let elsewhere = pod("one").replace("spec: {", "spec: {nodeName: node-2, ");
    fixture.put("a.yaml", elsewhere);
    let scan = fixture.directory().with_node_name("node-1").scan();
    let pod = scan.pods.values().next().expect("the pod is good");
    assert_eq!(pod.node_name.as_deref(), Some("node-1"));
}

#[test]
fn of_two_pods_with_one_name_or_uid_the_first_file_wins() {
    let fixture = Fixture::new("twice");
    fixture.put("a.yaml", pod("one"));
    fixture.put("b.yaml", pod_with("one", ", args: [\"1\"]"));
    let with_uid =
        |name: &str| pod(name).replace(&format!("name: {name}"), &format!("name: {name}, uid: u"));
    fixture.put(
        "c.yaml",
        format!("{}---\n{}", with_uid("two"), with_uid("three")),
    );
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["one", "two"]);
    let one = scan
        .pods
        .values()
        .find(|pod| pod.name == "one")
        .expect("it is named above");
    assert!(one.containers[0].args.is_empty());
    assert_eq!(
        faults(&scan),
        [
            "b.yaml: document 1: pod default/one: is already defined in a.yaml",
            "c.yaml: document 2: pod default/three: another pod has the UID u already",
        ]
    );
    assert!(scan.is_complete);
}

/// With a UID that it names itself.
fn pod_of_uid(name: &str, args: &str) -> String {
    pod_with(name, args).replace(&format!("name: {name}"), &format!("name: {name}, uid: u"))
}

/// The arguments of a pod.
fn args_of(scan: &ManifestScan, name: &str) -> Vec<String> {
    let mut pods = scan.pods.values();
    let pod = pods.find(|it| it.name == name).expect("it is there");
    pod.containers[0].args.clone()
}

/// As an agent gives it that finds the pods of a scan running.
fn running(scan: &ManifestScan) -> BTreeMap<String, Running> {
    let one = |it: &Arc<Pod>| {
        let (uid, origin) = (it.uid.clone(), scan.origins[&it.uid].clone());
        let (file, digest) = (Some(origin.file), origin.digest);
        (it.full_name(), Running { uid, file, digest })
    };
    scan.pods.values().map(one).collect()
}

const COPY: &str = ", args: [\"1\"]";

/// Backups mostly sort before what they are a copy of.
#[test]
fn a_copy_that_comes_later_ends_no_pod() {
    let fixture = Fixture::new("copy");
    let mut directory = fixture.directory();
    fixture.put("web.yaml", pod("one"));
    fixture.put("with-uid.yaml", pod_of_uid("two", ""));
    let good = directory.scan();
    fixture.put("web-old.yaml", pod_with("one", COPY));
    fixture.put("with-uid-old.yaml", pod_of_uid("two", COPY));
    fixture.put("a.yaml", pod_of_uid("three", ""));
    let told = [
        "a.yaml: document 1: pod default/three: another pod has the UID u already",
        "web-old.yaml: document 1: pod default/one: is already defined in web.yaml",
        "with-uid-old.yaml: document 1: pod default/two: is already defined in with-uid.yaml",
    ];
    let check = |directory: &mut ManifestDirectory| {
        let scan = directory.scan();
        assert_eq!((&scan.pods, &scan.origins), (&good.pods, &good.origins));
        assert_eq!(faults(&scan), told);
    };
    check(&mut directory);
    check(&mut directory);
    // The next agent knows no file, but what runs.
    let mut next = fixture.directory();
    next.prefer(running(&good));
    check(&mut next);
    // What is edited where it was is still that one.
    fixture.put("web.yaml", pod_with("one", ", args: [\"2\"]"));
    assert_eq!(args_of(&next.scan(), "one"), ["2"]);
    fixture.remove("web.yaml");
    assert_eq!(args_of(&next.scan(), "one"), ["1"]);
}

#[test]
fn a_copy_does_not_take_the_place_of_a_file_with_a_fault() {
    let fixture = Fixture::new("copy-fault");
    let mut directory = fixture.directory();
    fixture.put("web.yaml", pod("one"));
    directory.scan();
    for copy in ["web-old.yaml", "web.copy.yaml", "z.yaml"] {
        fixture.put(copy, pod_with("one", COPY));
    }
    for (text, args) in [
        ("", &[][..]),
        ("a: [", &[]),
        (&pod_with("one", ", args: [\"2\"]"), &["2"]),
    ] {
        directory.scan();
        fixture.put("web.yaml", text);
        for _ in 0..2 {
            assert_eq!(args_of(&directory.scan(), "one"), args, "{text:?}");
        }
    }
    // A file of another name that has what runs is the one that was renamed.
    fs::rename(fixture.path.join("web.yaml"), fixture.path.join("zeb.yaml")).expect("it is there");
    for _ in 0..2 {
        assert_eq!(args_of(&directory.scan(), "one"), ["2"]);
    }
}

/// `cp` and `git checkout` remove a file before they write it.
#[test]
fn a_copy_does_not_take_the_place_of_a_file_that_is_written_anew() {
    let fixture = Fixture::new("copy-missing");
    let mut directory = fixture.directory();
    fixture.put("web.yaml", pod("one"));
    directory.scan();
    fixture.put("web-old.yaml", pod_with("one", COPY));
    directory.scan();
    fixture.remove("web.yaml");
    let missed = directory.look();
    assert_eq!(args_of(&missed, "one"), [""; 0]);
    fixture.put("web.yaml", pod_with("one", ", args: [\"2\"]"));
    assert_eq!(args_of(&directory.scan(), "one"), ["2"]);
    // That it is gone is believed after all.
    fixture.remove("web.yaml");
    assert_eq!(args_of(&directory.scan(), "one"), ["1"]);
}

/// What an agent finds running keeps its place while the file that has it cannot be read, or was missed.
#[test]
fn a_copy_does_not_take_the_place_of_a_file_that_is_not_read_at_a_start() {
    let fixture = Fixture::new("copy-start");
    fixture.put("web.yaml", pod("one"));
    let before = fixture.scan();
    fixture.put("web-old.yaml", pod_with("one", COPY));
    for is_missing in [false, true] {
        let mut directory = fixture.directory();
        directory.prefer(running(&before));
        if is_missing {
            fixture.remove("web.yaml");
            directory.look();
        } else {
            fixture.put("web.yaml", "a: [");
            assert!(!directory.scan().is_complete);
        }
        fixture.put("web.yaml", pod("one"));
        assert_eq!(directory.scan().pods, before.pods);
    }
}

/// The first by its name is the copy that somebody has made before an edit.
#[test]
fn a_restart_does_not_put_a_copy_in_the_place_of_what_runs() {
    for is_edited_before in [false, true] {
        for uid in ["", "u"] {
            let fixture = Fixture::new("copy-same");
            let with = |rest: &str| match uid {
                "" => pod_with("one", rest),
                _ => pod_of_uid("one", rest),
            };
            fixture.put("web.yaml", with(""));
            let before = fixture.scan();
            fixture.put("web-old.yaml", with(""));
            let edited = with(", args: [\"2\"]");
            if is_edited_before {
                fixture.put("web.yaml", &edited);
            }
            let mut directory = fixture.directory();
            directory.prefer(running(&before));
            let scan = directory.scan();
            assert_eq!(
                args_of(&scan, "one"),
                ["2"][..usize::from(is_edited_before)]
            );
            assert!(scan.origins.values().all(|it| it.file == "web.yaml"));
            fixture.put("web.yaml", &edited);
            assert_eq!(args_of(&directory.scan(), "one"), ["2"]);
        }
    }
}

#[test]
fn what_was_renamed_while_no_agent_ran_is_still_that_pod() {
    let fixture = Fixture::new("copy-renamed");
    fixture.put("web.yaml", pod("one"));
    let before = fixture.scan();
    fixture.put("a.yaml", pod_with("one", COPY));
    fs::rename(fixture.path.join("web.yaml"), fixture.path.join("zeb.yaml")).expect("it is there");
    let mut directory = fixture.directory();
    directory.prefer(running(&before));
    let scan = directory.scan();
    assert_eq!(scan.pods, before.pods);
    assert!(scan.origins.values().all(|it| it.file == "zeb.yaml"));
}

/// An earlier version of the agent has not noted where a pod is from.
#[test]
fn what_runs_counts_wherever_it_is_from() {
    let fixture = Fixture::new("copy-unknown");
    fixture.put("web.yaml", pod("one"));
    let before = fixture.scan();
    fixture.put("a.yaml", pod_with("one", COPY));
    let mut of_no_file = running(&before);
    for it in of_no_file.values_mut() {
        it.file = None;
    }
    let mut directory = fixture.directory();
    directory.prefer(of_no_file);
    assert_eq!(directory.scan().pods, before.pods);
}

/// What it was before the start nobody knows.
#[test]
fn a_file_that_was_never_good_and_is_missed_ends_nothing() {
    let fixture = Fixture::new("missed");
    fixture.put("web.yaml", "a: [");
    let mut directory = fixture.directory();
    assert!(!directory.scan().is_complete);
    fixture.remove("web.yaml");
    let missed = directory.look();
    assert!(!missed.is_complete && directory.lacks_a_file());
    // That it is gone is believed in the end.
    assert!(directory.scan().is_complete);
}

/// Other files have faults for as long as they like.
#[test]
fn an_edited_definition_is_there_first_while_another_file_is_broken() {
    let fixture = Fixture::new("copy-broken");
    fixture.put("web.yaml", pod("one"));
    let before = fixture.scan();
    fixture.put("bad.yaml", "a: [");
    fixture.put("web.yaml", pod_with("one", ", args: [\"2\"]"));
    let mut directory = fixture.directory();
    directory.prefer(running(&before));
    assert_eq!(args_of(&directory.scan(), "one"), ["2"]);
    fixture.put("a.yaml", pod_with("one", COPY));
    for args in [&["2"][..], &["3"]] {
        let text = pod_with("one", &format!(", args: [\"{}\"]", args[0]));
        fixture.put("web.yaml", text);
        assert_eq!(args_of(&directory.scan(), "one"), args);
    }
}

#[test]
fn an_edited_pod_does_not_take_the_uid_of_one_that_runs() {
    let fixture = Fixture::new("taken");
    let with_uid = |name: &str, uid: &str| {
        pod(name).replace(
            &format!("name: {name}"),
            &format!("name: {name}, uid: {uid}"),
        )
    };
    let mut directory = fixture.directory();
    for (edited, other) in [("a.yaml", "z.yaml"), ("z.yaml", "a.yaml")] {
        fixture.put(edited, with_uid("one", "u"));
        fixture.put(other, with_uid("two", "v"));
        assert_eq!(names(&directory.scan()), ["one", "two"]);
        fixture.put(edited, with_uid("one", "v"));
        assert_eq!(names(&directory.scan()), ["two"]);
        fixture.remove(edited);
        fixture.remove(other);
        assert!(directory.scan().pods.is_empty());
    }
}

/// As a full disk leaves one behind when the node comes up again.
#[test]
fn what_an_empty_file_had_before_the_start_is_not_known() {
    let fixture = Fixture::new("empty");
    let mut directory = fixture.directory();
    for text in ["", "\n", "\u{feff}", "---\n# nothing\n"] {
        fixture.put("a.yaml", text);
        let scan = directory.scan();
        assert!(
            !scan.is_complete && scan.faults.is_empty(),
            "{text:?}: {scan:?}"
        );
        assert_eq!(scan.warnings.len(), 1, "{text:?}: {:?}", scan.warnings);
    }
    fixture.put("a.yaml", "{apiVersion: v1, kind: PodList, items: []}");
    let scan = directory.scan();
    assert!(scan.is_complete && scan.warnings.is_empty(), "{scan:?}");
}

#[test]
fn a_fault_never_ends_a_pod() {
    let fixture = Fixture::new("hold");
    let mut directory = fixture.directory();
    let three = format!("{}---\n{}---\n{}", pod("one"), pod("two"), pod("three"));
    fixture.put("a.yaml", &three);
    let good = directory.scan();
    assert_eq!(names(&good), ["one", "three", "two"]);

    // The second document breaks, the first is edited, the third is taken away.
    fixture.put(
        "a.yaml",
        format!("{}---\na: [\n", pod_with("one", ", args: [\"1\"]")),
    );
    let broken = directory.scan();
    assert_eq!(names(&broken), ["one", "three", "two"]);
    assert_eq!(broken.faults.len(), 1);
    assert_eq!(broken.warnings.len(), 2, "{:?}", broken.warnings);
    assert!(broken.is_complete);
    let one = broken
        .pods
        .values()
        .find(|pod| pod.name == "one")
        .expect("it is named above");
    assert_eq!(one.containers[0].args, ["1"]);
    assert_eq!(directory.scan(), broken);

    for (text, fault) in [
        (
            &b""[..],
            "a.yaml: became empty and counts as half written; remove it to remove its pods",
        ),
        (
            b" \n",
            "a.yaml: became empty and counts as half written; remove it to remove its pods",
        ),
        (
            b"\xef\xbb\xbf---\n# web is being moved\n---\n",
            "a.yaml: became empty and counts as half written; remove it to remove its pods",
        ),
        (b"\xff", "a.yaml: is not UTF-8: byte 0 is wrong"),
    ] {
        fixture.put("a.yaml", text);
        let scan = directory.scan();
        assert_eq!(scan.pods, broken.pods);
        assert_eq!(faults(&scan), [fault]);
    }
    fixture.put(
        "a.yaml",
        vec![b'#'; 1 + usize::try_from(MAX_FILE_BYTES).expect("it fits")],
    );
    let scan = directory.scan();
    assert_eq!(scan.pods, broken.pods);
    assert_eq!(faults(&scan), ["a.yaml: is larger than 1048576 bytes"]);

    fixture.put("a.yaml", pod("two"));
    let mended = directory.scan();
    assert_eq!(
        (names(&mended), mended.faults.len()),
        (vec!["two".to_owned()], 0)
    );
    fixture.remove("a.yaml");
    assert_eq!(directory.scan().pods.len(), 0);
}

#[test]
fn a_pod_that_moved_out_of_a_broken_file_is_the_new_one() {
    let fixture = Fixture::new("move");
    let mut directory = fixture.directory();
    fixture.put("a.yaml", pod("one"));
    directory.scan();
    fixture.put("a.yaml", "a: [");
    fixture.put("z.yaml", pod_with("one", ", args: [\"1\"]"));
    let scan = directory.scan();
    let one = scan.pods.values().next().expect("the pod is there");
    assert_eq!((scan.pods.len(), one.containers[0].args.len()), (1, 1));
}

#[test]
fn a_directory_that_goes_away_ends_no_pod() {
    let fixture = Fixture::new("gone");
    let mut directory = fixture.directory();
    fixture.put("a.yaml", pod("one"));
    let good = directory.scan();
    let away = fixture.path.with_extension("away");
    fs::rename(&fixture.path, &away).expect("the directory can be renamed");
    let scan = directory.scan();
    assert_eq!(scan.pods, good.pods);
    assert!(
        scan.is_complete
            && scan.faults[0]
                .message
                .starts_with("the directory is not there")
    );
    let never = fixture.directory().scan();
    assert!(!never.is_complete && never.pods.is_empty() && never.faults.len() == 1);
    fs::rename(&away, &fixture.path).expect("the directory can be renamed back");
    assert_eq!(directory.scan(), good);
}

#[test]
fn only_regular_manifests_are_read_and_nothing_blocks() {
    let fixture = Fixture::new("kinds");
    for name in [
        ".hidden.yaml",
        "a.yaml~",
        "#a.yaml#",
        ".a.yaml.swp",
        "a.yaml.swp",
    ] {
        fixture.put(name, pod("temporary"));
    }
    fixture.put("a.yaml.bak", pod("backup"));
    for name in ["d.yaml", "old"] {
        fs::create_dir(fixture.path.join(name)).expect("the fixture can be made");
    }
    let fifo = fixture.path.join("f.yaml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("the fixture can be made");
    symlink("nowhere", fixture.path.join("g.yaml")).expect("the fixture can be made");
    let scan = fixture.scan();
    assert_eq!(scan.pods.len(), 0);
    assert_eq!(
        faults(&scan),
        ["g.yaml: is a symlink to something that is not there",]
    );
    let warnings: Vec<String> = scan.warnings.iter().map(short).collect();
    assert_eq!(
        warnings,
        [
            "a.yaml.bak: is not read: its name ends in none of .yaml, .yml, .json, .manifest",
            "old: is not read: it is a directory",
            "d.yaml: is not read: it is not a regular file",
            "f.yaml: is not read: it is not a regular file",
        ]
    );
}

/// Else no pod of an earlier agent would ever go.
#[test]
fn what_is_no_file_keeps_nothing_back_unless_it_took_the_place_of_one() {
    let fixture = Fixture::new("no-file");
    let path = fixture.path.join("a.yaml");
    fs::create_dir(&path).expect("the fixture can be made");
    let mut directory = fixture.directory();
    assert!(directory.scan().is_complete);
    fs::remove_dir(&path).expect("it is empty");
    fixture.put("a.yaml", "kind: [");
    assert!(!directory.scan().is_complete);
    fixture.put("a.yaml", pod("one"));
    assert_eq!(names(&directory.scan()), ["one"]);
    fs::remove_file(&path).expect("it is there");
    fs::create_dir(&path).expect("the fixture can be made");
    let scan = directory.scan();
    assert_eq!(names(&scan), ["one"]);
    assert_eq!(faults(&scan), ["a.yaml: is not a regular file"]);
}

/// Kubernetes publishes a ConfigMap by swapping the link `..data`.
#[test]
fn an_atomic_volume_is_followed() {
    let fixture = Fixture::new("atomic");
    let mut directory = fixture.directory();
    let publish = |version: &str, text: &str| {
        let data = fixture.path.join(version);
        fs::create_dir(&data).expect("the fixture can be made");
        fs::write(data.join("a.yaml"), text).expect("the fixture can be made");
        let link = fixture.path.join("..data_tmp");
        symlink(version, &link).expect("the fixture can be made");
        fs::rename(link, fixture.path.join("..data")).expect("the fixture can be made");
    };
    publish("..1", &pod("one"));
    symlink("..data/a.yaml", fixture.path.join("a.yaml")).expect("the fixture can be made");
    assert_eq!(names(&directory.scan()), ["one"]);
    let watch = DirWatch::new(directory.path()).expect("the directory can be watched");
    publish("..2", &pod("two"));
    assert!(watch.drain().expect("the watch works").changed);
    assert_eq!(names(&directory.scan()), ["two"]);
}

#[test]
fn a_second_scan_gives_the_same_and_parses_nothing() {
    let fixture = Fixture::new("same");
    for index in 0..50 {
        fixture.put(&format!("{index}.yaml"), pod(&format!("pod-{index}")));
    }
    fixture.put("bad.yaml", "a: [");
    let mut directory = fixture.directory();
    let first = directory.scan();
    let second = directory.scan();
    assert_eq!(first, second);
    let same = |(a, b): (&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(a, b);
    assert!(first.pods.values().zip(second.pods.values()).all(same));
    assert_eq!(fixture.scan(), first);
}

#[test]
fn a_watch_wakes_on_a_whole_file_and_tells_a_lost_directory() {
    let fixture = Fixture::new("watch");
    let watch = DirWatch::new(&fixture.path).expect("the directory can be watched");
    let is_readable = |timeout: Duration| {
        let milliseconds = u16::try_from(timeout.as_millis()).expect("timeouts are short");
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(milliseconds)).expect("poll works") == 1
    };
    assert!(!is_readable(Duration::ZERO));
    fixture.put("a.yaml", pod("one"));
    assert!(is_readable(Duration::from_secs(5)));
    let right = crate::sys::watch::WatchNews {
        changed: true,
        lost: false,
    };
    assert_eq!(watch.drain().expect("the watch works"), right);
    assert!(!is_readable(Duration::ZERO));
    fs::remove_dir_all(&fixture.path).expect("the directory can be removed");
    assert!(watch.drain().expect("the watch works").lost);
    assert!(DirWatch::new(fixture.directory().path()).is_err());
}

#[test]
fn hostile_files_are_bounded() {
    let fixture = Fixture::new("bomb");
    let megabyte = usize::try_from(MAX_FILE_BYTES).expect("it fits");
    let aliases = ["*a"; 5_000].join(", ");
    let bomb = format!("a: &a [{}]\nb: [{aliases}]\n", ["x"; 1_000].join(", "));
    fixture.put("bomb.yaml", format!("{bomb}---\n").repeat(4));
    fixture.put("brackets.yaml", "{a: ".repeat(megabyte / 4));
    fixture.put("documents.yaml", "---\nx\n".repeat(20_000));
    let directives: String = (0..40_000)
        .map(|i| format!("%TAG !a{i}! tag:a,2000:\n"))
        .collect();
    fixture.put("directives.yaml", format!("{directives}---\na: 1\n"));
    fixture.put("good.yaml", pod("good"));
    let cpu = || clock::thread_cpu().expect("Linux says");
    let before = cpu();
    let scan = fixture.scan();
    let took = cpu() - before;
    // Generous for a build without optimization; unbounded it takes minutes.
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(names(&scan), ["good"]);
    // Of the last there is the number of documents, and how many of them are not told.
    assert_eq!(scan.faults.len(), 4 + 1 + 1 + MAX_FINDINGS + 2);
    let more = format!(
        "documents.yaml: and {} more faults",
        MAX_DOCUMENTS - MAX_FINDINGS
    );
    assert!(faults(&scan).contains(&more));
}

#[test]
fn of_many_findings_of_one_file_the_first_are_told_and_how_many_more_there_are() {
    let fixture = Fixture::new("many-findings");
    let all =
        |n: usize, of: &dyn Fn(usize) -> String| (0..n).map(of).collect::<Vec<_>>().join(", ");
    let mounts = all(103, &|i| format!("{{name: none, mountPath: /{i}}}"));
    fixture.put(
        "a.yaml",
        pod_with("bad", &format!(", volumeMounts: [{mounts}]")),
    );
    let variables = all(102, &|i| {
        let reference = "{name: s, key: k, optional: true}";
        format!("{{name: V{i}, valueFrom: {{secretKeyRef: {reference}}}}}")
    });
    let probes = all(101, &|i| {
        let of_pod = "{resourceFieldRef: {resource: requests.cpu}}";
        format!("{{name: W{i}, unknown{i}: 1, valueFrom: {of_pod}}}")
    });
    let devices = all(105, &|i| {
        format!("{{name: v, mountPath: /other/{i}, subPath: '{i}'}}")
    });
    let good = pod_with(
        "good",
        &format!(", env: [{variables}, {probes}], volumeMounts: [{devices}]"),
    );
    let volumes = "spec: {volumes: [{name: v, hostPath: {path: /v}}], ";
    fixture.put("b.yaml", good.replacen("spec: {", volumes, 1));
    let scan = fixture.scan();
    assert_eq!(names(&scan), ["good"]);
    let found = faults(&scan);
    assert_eq!(found.len(), MAX_FINDINGS + 1);
    assert_eq!(found[MAX_FINDINGS], "a.yaml: and 3 more faults");
    let told: Vec<String> = scan.warnings.iter().map(short).collect();
    // One of all fields that are not known, and one of all variables; of the mounts each has its own.
    assert_eq!(told.len(), 1 + MAX_FINDINGS + 1);
    assert!(
        told[0].ends_with(" and 1 more: unknown field, ignored"),
        "{}",
        told[0]
    );
    assert!(
        told[MAX_FINDINGS + 1].ends_with(" more warnings"),
        "{told:?}"
    );
}

#[test]
fn a_long_document_among_many_is_read_as_one_alone_is() {
    let fixture = Fixture::new("uneven");
    let variables: Vec<String> = (0..3_000)
        .map(|i| format!("{{name: V{i}, value: x}}"))
        .collect();
    let mut documents = vec![pod_with(
        "long",
        &format!(", env: [{}]", variables.join(", ")),
    )];
    documents.extend((0..30).map(|i| pod(&format!("short-{i}"))));
    fixture.put("a.yaml", documents.join("---\n"));
    let scan = fixture.scan();
    assert_eq!(scan.faults, []);
    assert_eq!(scan.pods.len(), documents.len());
}

#[test]
fn a_manifest_whose_name_is_no_text_is_told() {
    let fixture = Fixture::new("no-text");
    let name = OsStr::from_bytes(b"w\xffb.yaml");
    fs::write(fixture.path.join(name), pod("web")).expect("the fixture can be written");
    let scan = fixture.scan();
    assert_eq!(names(&scan), [""; 0]);
    assert_eq!(
        faults(&scan),
        ["w\u{fffd}b.yaml: is not read: its name is not UTF-8"]
    );
}

#[test]
fn pods_of_a_file_and_containers_of_a_pod_are_bounded() {
    let fixture = Fixture::new("bounds");
    let pods: Vec<String> = (0..MAX_PODS + 5)
        .map(|i| pod(&format!("p{i}")).trim_end().to_owned())
        .collect();
    let list = format!(
        "{{apiVersion: v1, kind: List, items: [{}]}}\n",
        pods.join(", ")
    );
    fixture.put("list.yaml", list);
    let containers: Vec<String> = (0..3_000)
        .map(|i| format!("{{name: c{i}, image: i, command: [sleep]}}"))
        .collect();
    let many = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: many}}, spec: {{containers: [{}]}}}}\n",
        containers.join(", ")
    );
    fixture.put("many.yaml", many);
    let scan = fixture.scan();
    assert_eq!(scan.pods.len(), MAX_PODS);
    assert_eq!(
        faults(&scan),
        [
            "list.yaml: has 1005 pods; those after the first 1000 are not read",
            "many.yaml: document 1: pod default/many: spec.containers: Too many: 3000: must have at most 200 items, with \
             spec.initContainers",
        ]
    );
}

/// A listing made while a file is renamed may have neither name, and a file that was listed may have
/// the other name before it is read. One that was never read may be missed, and the scan then says that it
/// has not seen everything.
#[test]
fn a_file_that_is_renamed_all_the_time_is_never_missing() {
    let fixture = Fixture::new("renamed");
    fixture.put("a.yaml", pod("web"));
    let (a, b) = (fixture.path.join("a.yaml"), fixture.path.join("b.yaml"));
    let mut directory = fixture.directory();
    assert_eq!(names(&directory.scan()), ["web"]);
    let mut unread = fixture.directory();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&a, &b).expect("it is there");
                fs::rename(&b, &a).expect("it is there");
            }
        });
        let begin = Instant::now();
        let mut is_there = true;
        while is_there && begin.elapsed() < Duration::from_secs(1) {
            is_there = names(&directory.scan()) == ["web"];
        }
        let first = unread.scan();
        is_over.store(true, Ordering::Relaxed);
        assert!(is_there);
        assert!(!first.is_complete || names(&first) == ["web"]);
    });
    fixture.remove("a.yaml");
    let scan = directory.scan();
    assert_eq!(names(&scan), [""; 0]);
    assert!(scan.is_complete);
}

#[test]
fn damaged_manifests_never_panic() {
    let text = pod_with(
        "web",
        ", env: [{name: A, value: b}], resources: {limits: {cpu: 1, memory: 64Mi}}, volumeMounts: [{name: v, mountPath: /v}]",
    );
    let mut state: u64 = 7;
    let mut next = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).expect("31 bits fit") % bound
    };
    let path = Path::new("a.yaml");
    for _ in 0..3_000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = b"-0%9:{}[]\"' \n#aZ\xff"[next(17)],
                1 => drop(bytes.drain(at..(at + next(10)).min(bytes.len()))),
                _ => bytes.insert(at, b"-0%9:{}[]\"' \n#aZ"[next(16)]),
            }
        }
        let first = parse::file(path, &bytes, &Reading::default());
        let second = parse::file(path, &bytes, &Reading::default());
        assert_eq!(first.faults, second.faults);
        assert_eq!(first.pods.len(), second.pods.len());
    }
}

#[test]
fn the_shipped_examples_are_good_and_cover_every_class() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let scan = ManifestDirectory::new(examples).scan();
    assert_eq!(scan.faults, []);
    assert_eq!(scan.warnings, []);
    assert_eq!(
        names(&scan),
        ["best-effort", "burstable", "guaranteed", "init", "oom"]
    );
    let limits = |name: &str| {
        let pod = scan
            .pods
            .values()
            .find(|pod| pod.name == name)
            .expect("it is named above");
        let resources = &pod.containers[0].resources;
        (resources.requests.len(), resources.limits.len())
    };
    assert_eq!(limits("guaranteed"), (2, 2));
    assert_eq!(limits("best-effort"), (0, 0));
    assert_eq!(limits("oom"), (2, 1));
}
