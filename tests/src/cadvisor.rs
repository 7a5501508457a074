//! cAdvisor beside the agent: the program that says what the agent has to say.
//!
//! `BALLAST_CADVISOR` names the one of Debian 11 (0.38), whose home is cgroup v1; the runner sets
//! it where the package can be had.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::exposition::Exposition;
use crate::figures::{self, Reading};
use crate::scrape;
use crate::wait::until;

const VARIABLE: &str = "BALLAST_CADVISOR";

/// Ended when it is dropped.
pub struct Cadvisor {
    child: Child,
    address: String,
}

/// Why there is none where that is no fault: `BALLAST_WITHOUT_CADVISOR`.
pub fn without() -> Option<String> {
    let why = std::env::var_os("BALLAST_WITHOUT_CADVISOR")?;
    Some(why.to_string_lossy().into_owned())
}

/// The error says why there is none.
pub fn program() -> Result<PathBuf> {
    let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        match without() {
            Some(why) => bail!("{why}"),
            None => bail!("{VARIABLE} is not set"),
        }
    };
    ensure!(path.exists(), "{VARIABLE}: {} is not there", path.display());
    Ok(path)
}

impl Cadvisor {
    /// Reads every cgroup of the machine once per `interval`; what it has to tell of itself goes to
    /// a file in `directory`.
    pub fn start(interval: Duration, directory: &Path) -> Result<Self> {
        let address = scrape::free_address()?;
        let (ip, port) = address.split_once(':').context("an address has a port")?;
        let log = File::create(directory.join("cadvisor.log"))?;
        let millis = format!("{}ms", interval.as_millis());
        let child = Command::new(program()?)
            .args(["-listen_ip", ip, "-port", port])
            .args(["-housekeeping_interval", &millis])
            // It looks at what changes little less and less often otherwise.
            .arg("-allow_dynamic_housekeeping=false")
            .args(["-global_housekeeping_interval", "1s"])
            .arg("-docker_only=false")
            .args(["-disable_metrics", ""])
            .arg("-store_container_labels=false")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start cAdvisor")?;
        let this = Self { child, address };
        until("cAdvisor answers", || this.page())?;
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn page(&self) -> Result<Exposition> {
        scrape::page(&self.address, "/metrics")
    }
}

impl Drop for Cadvisor {
    fn drop(&mut self) {
        // Best effort: it may be gone.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What a page of cAdvisor's says about each cgroup, at the time that it says it read it.
pub fn readings(page: &Exposition, ids: &BTreeSet<String>) -> BTreeMap<String, Reading> {
    let mut times: BTreeMap<&str, i64> = BTreeMap::new();
    for (series, sample) in &page.samples {
        // The time of this one is that of the scrape.
        if series.name == "container_last_seen" {
            continue;
        }
        if let (Some(id), Some(at)) = (series.labels.get("id"), sample.at_ms) {
            times.insert(id, at);
        }
    }
    figures::readings(page, ids, |id| Some(*times.get(id)? as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_has_the_time_that_its_samples_have() {
        let text = "a{id=\"/x\"} 1 1500\na{id=\"/y\"} 2 2500\nspec{id=\"/y\"} 3\n\
                    container_last_seen{id=\"/y\"} 2 9000\na{id=\"/z\"} 4\n";
        let page = Exposition::parse(text).expect("good text");
        let ids = ["/x", "/y", "/z"].map(str::to_owned).into();
        let found = readings(&page, &ids);
        let times: Vec<(&str, f64)> = found.iter().map(|(id, it)| (&**id, it.begun)).collect();
        assert_eq!(times, [("/x", 1.5), ("/y", 2.5)]);
        assert_eq!(found["/y"].figures.len(), 3);
    }
}
