//! An agent of the benchmark's own, and the pods that it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ballast::model::status::{EntryState, Status};
use ballast_tests::agent::Agent;
use ballast_tests::exposition::Exposition;
use ballast_tests::scrape;

/// How long anything may take before a measurement is given up.
const PATIENCE: Duration = Duration::from_secs(180);

/// Asking the agent costs CPU time that the measured shares; where it matters nothing is asked.
const POLL: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Fleet {
    pub(crate) agent: Agent,
}

impl Fleet {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::with(Ok, name)
    }

    /// With an agent that is prepared in some way.
    pub(crate) fn with(prepare: impl Fn(Agent) -> Result<Agent>, name: &str) -> Result<Self> {
        // More pods than kubelet takes by default.
        let agent = Agent::new(&format!("bench-{name}"))?.with_kubelet("maxPods: 1000");
        let mut agent = prepare(agent)?;
        agent.metrics = scrape::free_address()?;
        Ok(Self { agent })
    }

    /// Starts the agent; from the start of the process until `/readyz` says yes.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.agent.spawn()?;
        let address = self.agent.metrics.clone();
        while !scrape::get(&address, "/readyz", &[]).is_ok_and(|it| it.status == 200) {
            if started.elapsed() > PATIENCE {
                bail!("not ready; log:\n{}", self.agent.log_tail());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(started.elapsed())
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.agent.pid().context("the agent does not run")
    }

    pub(crate) fn scrape(&self) -> Result<Exposition> {
        scrape::page(&self.agent.metrics, "/metrics")
    }

    /// A pod that runs this program's load with `args`, once.
    pub(crate) fn put_load(&self, name: &str, args: &[&str], memory: &str) -> Result<()> {
        let program = std::env::current_exe()?;
        let mut command = vec![program.display().to_string(), "load".to_owned()];
        command.extend(args.iter().map(|it| (*it).to_owned()));
        let command = serde_json::to_string(&command)?;
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: bench}}\n\
             spec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
             - name: load\n    image: none\n    command: {command}\n    \
             resources: {{limits: {{memory: {memory}}}}}\n"
        );
        self.agent.put_file(&format!("{name}.yaml"), &text)
    }

    /// A pod of `n_containers` that only exist; one that is ended stays so.
    pub(crate) fn put_idle(&self, name: &str, n_containers: usize) -> Result<()> {
        let containers: String = (0..n_containers)
            .map(|n| {
                format!(
                    "  - name: c{n}\n    image: none\n    command: [/bin/sleep, infinity]\n    \
                     resources: {{requests: {{cpu: 1m, memory: 1Mi}}, limits: {{memory: 64Mi}}}}\n"
                )
            })
            .collect();
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: bench}}\n\
             spec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 1\n  containers:\n{containers}"
        );
        self.agent.put_file(&format!("{name}.yaml"), &text)
    }

    /// A pod whose container leaves a line in `file` and ends.
    pub(crate) fn put_short(&self, name: &str, file: &Path) -> Result<()> {
        let script = format!("echo {name} >> {}", file.display());
        let command = serde_json::to_string(&["/bin/sh", "-c", &script])?;
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: bench}}\n\
             spec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
             - name: short\n    image: none\n    command: {command}\n"
        );
        self.agent.put_file(&format!("{name}.yaml"), &text)
    }

    /// The output of a load so far.
    pub(crate) fn output(&self, pod: &str) -> Result<String> {
        let logs = self.agent.state().join("logs");
        let prefix = format!("bench_{pod}_");
        let Ok(entries) = fs::read_dir(logs) else {
            return Ok(String::new());
        };
        let dir: Option<PathBuf> = entries
            .filter_map(Result::ok)
            .find(|it| it.file_name().to_string_lossy().starts_with(&prefix))
            .map(|it| it.path());
        let text = dir.and_then(|it| fs::read_to_string(it.join("load/0.log")).ok());
        Ok(text.unwrap_or_default())
    }

    /// Waits, without asking the agent, until a load has printed `line`.
    pub(crate) fn wait_output(&self, pod: &str, line: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.output(pod)?;
            if output.lines().any(|it| it == line) {
                return Ok(output);
            }
            if Instant::now() > deadline {
                bail!(
                    "pod {pod} did not print {line:?}, but {output:?}; log:\n{}",
                    self.agent.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the status satisfies `is_it`.
    pub(crate) fn wait(&self, what: &str, is_it: impl Fn(&Status) -> bool) -> Result<Status> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(status) = self.agent.status()
                && is_it(&status)
            {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("not {what}; log:\n{}", self.agent.log_tail());
            }
            thread::sleep(POLL);
        }
    }
}

/// Running containers in a status document.
pub(crate) fn n_running(status: &Status) -> usize {
    status
        .pods
        .iter()
        .flat_map(|pod| &pod.containers)
        .filter(|it| matches!(it.state, EntryState::Running { .. }))
        .count()
}
