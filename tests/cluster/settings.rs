//! What a real kubelet is run by, as its own process and files tell.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ballast::model::eviction::Signal;
use ballast::model::status::Status;
use ballast_tests::cluster::{cluster, new_agent, restart};
use ballast_tests::wait::until;
use serde_json::{Value, json};

/// The file that kubelet is started with; as it was, when it is dropped.
struct Configuration {
    path: PathBuf,
    text: String,
}

impl Configuration {
    fn new() -> Result<Self> {
        let path = cluster()?.join("kubelet.json");
        let text = fs::read_to_string(&path).context("kubelet's file")?;
        Ok(Self { path, text })
    }

    fn set(&self, field: &str, value: Value) -> Result<()> {
        let mut all: Value = serde_json::from_str(&self.text)?;
        all[field] = value;
        fs::write(&self.path, all.to_string())?;
        Ok(())
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        let restored = fs::write(&self.path, &self.text).map_err(anyhow::Error::from);
        if let Err(error) = restored.and_then(|()| restart("kubelet")) {
            eprintln!("restore kubelet: {error:#}");
        }
    }
}

/// Bytes of memory that are kept from pods for the hard threshold, which is shown, too.
fn check_memory(status: &Status, bytes: u64) -> Result<()> {
    let pressure = status.node.pressure.as_ref().context("not read yet")?;
    let mut signals = pressure.signals.iter();
    let memory = signals.find(|it| it.signal == Signal::MemoryAvailable);
    let memory = memory.context("no memory.available")?;
    let amounts: Vec<_> = memory
        .thresholds
        .iter()
        .map(|it| (it.is_hard, it.amount))
        .collect();
    ensure!(amounts == [(true, i64::try_from(bytes).ok())], "{memory:?}");
    let resource = status.node.resources.get("memory").context("no memory")?;
    let left = resource.capacity.checked_sub(bytes);
    ensure!(
        (resource.reserved, resource.allocatable) == (Some(bytes), left),
        "{resource:?}"
    );
    Ok(())
}

/// Nobody has told the agent of kubelet's file.
#[cfg_attr(feature = "privileged", test)]
fn what_kubelet_is_run_by_is_shown_and_followed_when_it_is_restarted() -> Result<()> {
    let configuration = Configuration::new()?;
    let mut agent = new_agent("cluster-settings")?;
    agent.eviction_hard = "{}".to_owned();
    agent.start()?;
    let file = configuration.path.display().to_string();
    let kubelet = until("its settings are shown", || {
        let status = agent.status()?;
        check_memory(&status, 100 << 20)?;
        status.node.kubelet.context("no kubelet")
    })?;
    ensure!(
        kubelet.files == [&*file] && kubelet.changed.is_empty(),
        "{kubelet:?}"
    );
    let text = agent.command(&["explain", "node"])?;
    let line = format!("kubelet (pid {}) goes by {file}", kubelet.pid);
    ensure!(text.lines().any(|it| it == line), "{text}");
    let warnings = agent.status()?.warnings;
    ensure!(
        !warnings.iter().any(|it| it.contains("threshold")),
        "{warnings:?}"
    );

    let thresholds = json!({"memory.available": "200Mi"});
    configuration.set("evictionHard", thresholds)?;
    let status = until("that the file is newer is told", || {
        let status = agent.status()?;
        let mut warnings = status.warnings.iter();
        let told = format!("{file} was written after it started");
        ensure!(
            warnings.any(|it| it.ends_with(&told)),
            "{:?}",
            status.warnings
        );
        Ok(status)
    })?;
    check_memory(&status, 100 << 20).context("until it is restarted")?;
    restart("kubelet")?;
    until("it goes by what it was started with", || {
        let status = agent.status()?;
        check_memory(&status, 200 << 20)?;
        let after = status.node.kubelet.context("no kubelet")?;
        ensure!(
            after.pid != kubelet.pid && after.changed.is_empty(),
            "{after:?}"
        );
        Ok(())
    })
}
