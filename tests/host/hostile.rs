//! Manifests that are small and ask for much: each costs its own pod, with a word that names it, and
//! never the agent.

use std::fs;

use anyhow::{Context, Result};
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};
use serde_json::{Value, json};

use super::look::{end_of, is_running};

/// `VmHWM`: the most that a process ever had in memory, MiB.
fn peak_mib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let kib = line.context("VmHWM")?.trim().trim_end_matches(" kB");
    Ok(kib.parse::<u64>()? >> 10)
}

/// Eight variables, each ten times the one before, in 1.7 kB: 100 GB. In the environment, and in the
/// arguments of another pod. An agent that starts with both there comes up as well.
#[cfg_attr(feature = "privileged", test)]
fn an_environment_that_grows_without_end_costs_its_own_pod() -> Result<()> {
    let mut agent = Agent::new("bomb")?;
    let variables = |n: usize| -> Value {
        let value = |i: usize| match i {
            0 => "x".repeat(1000),
            _ => format!("$(A{})", i - 1).repeat(10),
        };
        (0..n)
            .map(|i| json!({"name": format!("A{i}"), "value": value(i)}))
            .collect()
    };
    let by_env = Container::idle("app").with("env", variables(9));
    let by_args = Container::new("app", &["echo", &"$(A3)".repeat(10)]);
    let pods = [
        ("env", by_env, "env[4].value"),
        ("args", by_args.with("env", variables(4)), "command[1]"),
    ];
    for (name, container, _) in &pods {
        agent.put(&Manifest::new(name).container(container.clone()))?;
    }
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    agent.start()?;
    let as_they_should = |agent: &Agent| -> Result<()> {
        agent.wait_pod("other", "runs", is_running)?;
        for (name, _, _) in &pods {
            let pod = agent.wait_pod(name, "fails", |it| it.phase.to_string() == "Failed")?;
            let end = end_of(&pod, "app").context("it ended")?;
            assert_eq!(end, ("StartError".to_owned(), Some(128)));
        }
        let pid = agent.pid().context("the agent runs")?;
        let peak = peak_mib(pid)?;
        assert!(peak < 200, "{peak} MiB");
        Ok(())
    };
    as_they_should(&agent)?;
    for (name, _, field) in &pods {
        let fault = format!("with {field} expanded, arguments and environment are longer");
        agent.wait_events(&format!("the fault of {name}"), "container", |it| {
            it.iter().any(|it| it.event.message.contains(&fault))
        })?;
    }
    agent.kill()?;
    agent.start()?;
    as_they_should(&agent)
}

/// 253 bytes: with namespace and UID more than a directory's name may have.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_of_the_longest_name_runs_and_goes() -> Result<()> {
    let mut agent = Agent::new("name")?;
    agent.start()?;
    let label = "a".repeat(62);
    let name = [&*label; 4].join(".") + ".a";
    assert_eq!(name.len(), 253);
    let pod = Manifest::new(&name).container(Container::sh("app", "echo here; exec sleep 3600"));
    agent.put_file("long.yaml", &pod.to_string())?;
    agent.wait_pod(&name, "runs", is_running)?;
    agent.wait_for("its output", || has_log(&agent))?;
    agent.remove_pod("long")?;
    agent.wait("it is gone", |it| it.pods.is_empty())?;
    agent.wait_for("nothing of it is left", || {
        let left = fs::read_dir(agent.state().join("logs"))?.count()
            + fs::read_dir(agent.state().join("pods"))?.count();
        Ok(left == 0)
    })
}

fn has_log(agent: &Agent) -> Result<bool> {
    let directory = fs::read_dir(agent.state().join("logs"))?.next();
    let directory = directory.context("logs of the pod")??.path();
    let text = fs::read_to_string(directory.join("app/0.log")).unwrap_or_default();
    Ok(text.contains("here"))
}
