//! Manifests as they come from elsewhere: exported from a cluster, or written for another runtime. What they say that
//! has no effect here is told, and what they cannot have is refused by name.

use std::fs;

use anyhow::{Context, Result};
use ballast::model::check::{CheckLevel, CheckReport};
use ballast::model::container::PodPhase;
use ballast::model::status::Status;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use serde_json::json;

use super::look::{container_path, is_running, pod_path};

/// The memory limit of a cgroup, as the file has it.
fn memory_limit(path: &str) -> Result<String> {
    let file = cgroup::memory_limit_file();
    cgroup::read("memory", path, file)
}

/// As long as the machine has no limit of its own: the largest number of pages, or `max`.
fn is_unlimited(limit: &str) -> bool {
    limit == "max" || limit.parse::<u64>().is_ok_and(|it| it > 1 << 62)
}

fn warned(status: &Status, of: &[&str]) -> bool {
    let has = |text: &String| of.iter().all(|it| text.contains(it));
    status.warnings.iter().any(has)
}

/// `kubectl get pod -o yaml` has the status of the pod as it was. With the class of another definition it would get a
/// limit of 0, in which nothing starts.
#[cfg_attr(feature = "privileged", test)]
fn an_exported_pod_runs_whatever_its_status_said() -> Result<()> {
    for (compat, class) in [("ballast", "BestEffort"), ("kubelet", "Guaranteed")] {
        let mut agent = Agent::new(&format!("moved-{compat}"))?.with_kubelet("failCgroupV1: false");
        agent.sections = format!("compat: {compat}\n");
        agent.start()?;
        let exported = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "exported", "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "77"},
            "spec": {
                "containers": [{
                    "name": "app",
                    "image": "registry.example/app:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true,
                "nodeName": "elsewhere",
                "preemptionPolicy": "PreemptLowerPriority",
                "priority": 0,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.7", "qosClass": "Guaranteed"},
        });
        agent.put_file("exported.yaml", &exported.to_string())?;
        let pod = agent.wait_pod("exported", "runs", is_running)?;
        assert_eq!(pod.qos.to_string(), class, "compat {compat}");
        for path in [pod_path(&pod)?, &container_path(&pod, "app")?] {
            let limit = memory_limit(path)?;
            assert!(is_unlimited(&limit), "{path}: {limit}");
        }
        let status = agent.status()?;
        let is_told = warned(&status, &["default/exported", "status: is ignored"]);
        assert_eq!(is_told, compat == "ballast", "{:#?}", status.warnings);
        assert_eq!(
            status.warnings.len(),
            usize::from(is_told),
            "{:#?}",
            status.warnings
        );
        agent.stop()?;
    }
    Ok(())
}

/// Each at its field, in the status document and once in the log, what makes no difference last; and where the pod is
/// explained.
#[cfg_attr(feature = "privileged", test)]
fn what_a_manifest_asks_for_in_vain_is_told() -> Result<()> {
    let mut agent = Agent::new("moved-told")?
        .with_quick_passes()
        .with_kubelet("featureGates: {PodLevelResources: false}");
    agent.start()?;
    let odd = Container::idle("app")
        .with("livenessProbe", json!({"exec": {"command": ["true"]}}))
        .with(
            "volumeMounts",
            json!([{"name": "shared", "mountPath": "/cache", "readOnly": true}]),
        )
        .resources(json!({}), json!({"memory": "128m"}));
    agent.put(
        &Manifest::new("odd")
            .container(odd)
            .with("hostname", json!("web"))
            .with("priorityClassName", json!("of-a-cluster"))
            .with("resources", json!({"limits": {"memory": "64Mi"}}))
            .with("schedulerName", json!("another")),
    )?;
    let minor = [
        "spec.containers[0].resources.limits[memory]",
        "spec.schedulerName",
    ];
    let fields = [
        "spec.hostname",
        "spec.priorityClassName",
        "spec.resources",
        "spec.containers[0].livenessProbe",
        "spec.containers[0].volumeMounts[0].mountPath",
        "spec.containers[0].volumeMounts[0].readOnly",
        minor[0],
        minor[1],
    ];
    let status = agent.wait("all is told", |status| {
        fields
            .iter()
            .all(|it| warned(status, &["odd.yaml", "default/odd", it]))
    })?;
    assert_eq!(status.manifest_faults, []);
    let is_minor = |it: &&String| minor.iter().any(|field| it.contains(field));
    let last: Vec<&String> = status.warnings.iter().rev().take(2).collect();
    assert!(last.iter().all(is_minor), "{:#?}", status.warnings);
    let explained = agent.command(&["explain", "pod", "odd"])?;
    for field in fields {
        assert!(explained.contains(field), "no {field} in {explained}");
    }
    // A page, which is what it gets, is too little for a cgroup in it.
    agent.wait_pod("odd", "fails", |it| it.phase == PodPhase::Failed)?;
    // Once each, however often the manifests are read.
    agent.wait_full_passes(2)?;
    let log = fs::read_to_string(agent.dir.join("agent.log"))?;
    let told: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("ManifestWarning"))
        .collect();
    assert_eq!(told.len(), status.warnings.len(), "{told:#?}");
    for warning in &status.warnings {
        assert!(told.iter().any(|it| it.contains(warning)), "{warning}");
    }
    Ok(())
}

/// What only an API server has. The others of the directory run, and so does the pod once it is another.
#[cfg_attr(feature = "privileged", test)]
fn a_manifest_that_refers_to_objects_of_a_cluster_is_refused_by_field() -> Result<()> {
    let mut agent = Agent::new("moved-refused")?;
    agent.start()?;
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    let pod = || Manifest::new("web").container(Container::idle("app"));
    agent.put(&pod().with(
        "volumes",
        json!([
            {"name": "shared", "emptyDir": {}},
            {"name": "certs", "secret": {"secretName": "tls"}},
        ]),
    ))?;
    agent.wait_pod("other", "runs", is_running)?;
    let status = agent.wait("the fault is shown", |it| !it.manifest_faults.is_empty())?;
    let [fault] = &status.manifest_faults[..] else {
        anyhow::bail!("{:#?}", status.manifest_faults);
    };
    assert_eq!(fault.pod.as_deref(), Some("default/web"));
    assert_eq!(fault.field.as_deref(), Some("spec.volumes[1].secret"));
    assert!(fault.message.contains("secrets"), "{fault:?}");
    assert!(
        status.pods.iter().all(|it| it.name != "web"),
        "it runs without them"
    );
    agent.put(&pod())?;
    agent.wait_pod("web", "runs", is_running)?;
    agent.wait("the fault is gone", |it| it.manifest_faults.is_empty())?;
    Ok(())
}

/// Before the agent is started, in the words of the status that it has then; and the start waits for none of it.
#[cfg_attr(feature = "privileged", test)]
fn what_is_wrong_with_manifests_is_told_by_check_as_by_status() -> Result<()> {
    let mut agent = Agent::new("moved-checked")?;
    let pod = |name: &str| Manifest::new(name).container(Container::idle("app"));
    agent.put(
        &pod("taken")
            .with("hostname", json!("web"))
            .with("schedulerName", json!("another")),
    )?;
    agent.put(&pod("refused").with(
        "volumes",
        json!([{"name": "certs", "secret": {"secretName": "tls"}}]),
    ))?;
    agent.put_file("broken.yaml", "kind: [")?;
    agent.put_file("notes.txt", "no manifest")?;
    let output = agent.check_command()?.args(["-o", "json"]).output()?;
    assert!(output.status.success(), "{output:?}");
    let report: CheckReport = serde_json::from_slice(&output.stdout)?;
    let item = report.items.iter().find(|it| it.name == "manifests");
    let item = item.with_context(|| format!("{report}"))?;
    assert_eq!(item.level, CheckLevel::Degraded, "{report}");
    assert!(!agent.state().exists(), "it has begun");

    agent.start()?;
    let status = agent.wait("the faults are shown", |it| it.manifest_faults.len() == 2)?;
    let directory = agent.dir.join("pods").display().to_string();
    assert_eq!(status.pods.len(), 1);
    assert_eq!(item.found, format!("1 pod in {directory}"));
    let (faults, warnings) = item.details.split_at(2);
    for (line, fault) in faults.iter().zip(&status.manifest_faults) {
        let parts = [Some(&fault.file), fault.pod.as_ref(), fault.field.as_ref()];
        let mut parts = parts.into_iter().flatten().chain([&fault.message]);
        assert!(parts.all(|it| line.contains(it)), "{line}: {fault:?}");
    }
    // What makes no difference to what runs is in the status alone.
    let told = status.warnings.iter();
    let told = told.filter(|it| it.contains(&directory) && !it.contains("spec.schedulerName"));
    let told: Vec<String> = told.map(|it| format!("warning: {it}")).collect();
    assert_eq!(warnings, told);
    assert_eq!(told.len(), 2, "{told:#?}");
    Ok(())
}
