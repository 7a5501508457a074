//! Short questions to status documents, event records and the program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ballast::model::record::{EventDetail, EventRecord, OomDetail};
use ballast::model::status::{ContainerEntry, EntryState, PodEntry};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;

/// What the program says of a configuration that it refuses.
pub(super) fn refusal(program: &OsStr, verb: &str, config: &Path) -> Result<String> {
    let output = Command::new(program)
        .args([verb, "--config"])
        .arg(config)
        // Of a pod that the tests run in: the cluster is not theirs.
        .env_remove("NODE_NAME")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(2), "{verb}: {said}");
    Ok(said)
}

pub(super) fn container<'a>(pod: &'a PodEntry, name: &str) -> Option<&'a ContainerEntry> {
    pod.containers.iter().find(|it| it.name == name)
}

/// The main process of a container that runs.
pub(super) fn pid_of(pod: &PodEntry, name: &str) -> Option<u32> {
    match container(pod, name)?.state {
        EntryState::Running { pid, .. } => pid,
        _ => None,
    }
}

pub(super) fn is_running(pod: &PodEntry) -> bool {
    pod.containers
        .iter()
        .all(|it| matches!(it.state, EntryState::Running { .. }))
}

/// Reason and exit code of a container that has ended.
pub(super) fn end_of(pod: &PodEntry, name: &str) -> Option<(String, Option<i32>)> {
    match &container(pod, name)?.state {
        EntryState::Terminated {
            reason, exit_code, ..
        } => Some((reason.clone().unwrap_or_default(), *exit_code)),
        _ => None,
    }
}

pub(super) fn has_ended(pod: &PodEntry, name: &str) -> bool {
    end_of(pod, name).is_some()
}

pub(super) fn pod_path(pod: &PodEntry) -> Result<&str> {
    pod.cgroup_path
        .as_deref()
        .with_context(|| format!("pod {} has no cgroup", pod.name))
}

/// The path of a running container's cgroup from the mount.
pub(super) fn container_path(pod: &PodEntry, name: &str) -> Result<String> {
    let pod_path = pod_path(pod)?;
    let pid = pid_of(pod, name).with_context(|| format!("container {name} does not run"))?;
    let dir = cgroup::sub_dirs(&cgroup::dir_of("memory", pod_path))
        .into_iter()
        .find(|dir| cgroup::procs(dir).contains(&pid))
        .with_context(|| format!("process {pid} is in no cgroup of pod {}", pod.name))?;
    let leaf = dir
        .file_name()
        .and_then(|it| it.to_str())
        .context("a name")?;
    Ok(format!("{pod_path}/{leaf}"))
}

pub(super) fn oom_detail(record: &EventRecord) -> Result<&OomDetail> {
    match &record.event.detail {
        Some(EventDetail::Oom(detail)) => Ok(detail),
        other => anyhow::bail!("not an OOM kill: {other:?}"),
    }
}

/// Waits for `n` OOM kills in pods, and makes sure that there are no more. Those of the rest of the
/// node, which the agent tells too, are left out: a test does not own them.
pub(super) fn wait_kills(agent: &Agent, n: usize) -> Result<Vec<EventRecord>> {
    let what = format!("{n} OOM kills");
    let kills = agent.wait_events(&what, "oom", |it| of_pods(it.to_vec()).len() >= n)?;
    let kills = of_pods(kills);
    ensure!(kills.len() == n, "more kills than {n}: {kills:#?}");
    Ok(kills)
}

pub(super) fn of_pods(mut records: Vec<EventRecord>) -> Vec<EventRecord> {
    records.retain(|it| it.event.pod.is_some());
    records
}

/// Name of the pod and of the container that a record is about.
pub(super) fn whose(record: &EventRecord) -> (&str, &str) {
    (
        record.event.pod.as_ref().map_or("", |it| &it.name),
        record.event.container.as_deref().unwrap_or_default(),
    )
}

/// The directory of a pod, where its containers begin.
pub(super) fn pod_dir(state: &std::path::Path, pod: &PodEntry) -> PathBuf {
    state.join("pods").join(&pod.uid.0)
}
