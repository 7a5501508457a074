//! cAdvisor's figures of a cgroup, computed from its interface files in the plainest way.
//!
//! The formulas are those of cAdvisor 0.56 (`container/libcontainer/handler.go` and
//! `container/common/helpers.go`), zeros included that it sends for want of a source. Nothing here
//! is the agent's: two ways to the same number are worth more than one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::figures::{Figure, Figures};

/// What cAdvisor takes for "no limit", and shows as 0.
const UNLIMITED: f64 = (1_u64 << 62) as f64;

/// Of `cpuacct.stat`: `USER_HZ`, the same on every machine that Kubernetes runs on.
const TICKS_PER_SECOND: f64 = 100.0;

const READ_AND_WRITE: [(&str, &str); 2] = [("Read", "reads"), ("Write", "writes")];

/// The files of a node, live or captured.
#[derive(Clone, Debug)]
pub struct Tree {
    base: PathBuf,
    is_unified: bool,
    /// Names of block devices by number.
    devices: BTreeMap<String, String>,
}

impl Tree {
    /// `base` stands for `/`.
    pub fn at(base: &Path) -> Self {
        let diskstats = fs::read_to_string(base.join("proc/diskstats")).unwrap_or_default();
        let devices = diskstats.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (major, minor) = (words.next()?, words.next()?);
            Some((
                format!("{major}:{minor}"),
                format!("/dev/{}", words.next()?),
            ))
        });
        Self {
            base: base.to_owned(),
            is_unified: base.join("sys/fs/cgroup/cgroup.controllers").exists(),
            devices: devices.collect(),
        }
    }

    pub fn is_unified(&self) -> bool {
        self.is_unified
    }

    /// What cAdvisor says about a cgroup; its path counts from the mount.
    pub fn figures(&self, id: &str) -> Result<Figures> {
        let mut cgroup = Cgroup {
            tree: self,
            id,
            figures: Figures::new(),
        };
        let name = if self.is_unified { "v2" } else { "v1" };
        cgroup
            .put_all()
            .with_context(|| format!("the files of {id} ({name})"))?;
        Ok(cgroup.figures)
    }
}

struct Cgroup<'a> {
    tree: &'a Tree,
    id: &'a str,
    figures: Figures,
}

impl Cgroup<'_> {
    fn put_all(&mut self) -> Result<()> {
        match self.tree.is_unified {
            true => {
                self.cpu_v2()?;
                self.memory_v2()?;
                self.io_v2()?;
                self.stalls()?;
            }
            false => {
                self.cpu_v1()?;
                self.memory_v1()?;
                self.io_v1()?;
                self.numa_v1()?;
            }
        }
        self.hugetlb()?;
        self.processes()
    }

    fn cpu_v1(&mut self) -> Result<()> {
        let usage = self.number("cpuacct", "cpuacct.usage")? / 1e9;
        let modes = self.keyed("cpuacct", "cpuacct.stat")?;
        self.cpu_time(
            usage,
            modes.get("user") / TICKS_PER_SECOND,
            modes.get("system") / TICKS_PER_SECOND,
        );
        let quota = self.text("cpu", "cpu.cfs_quota_us")?;
        let has_quota = quota.is_some_and(|it| it.trim() != "-1");
        self.put("spec_cpu_period", self.number("cpu", "cpu.cfs_period_us")?);
        self.put("spec_cpu_shares", self.number("cpu", "cpu.shares")?);
        if has_quota {
            let stat = self.keyed("cpu", "cpu.stat")?;
            self.put("spec_cpu_quota", self.number("cpu", "cpu.cfs_quota_us")?);
            self.bandwidth(&stat, stat.get("throttled_time"), stat.get("burst_time"));
        }
        Ok(())
    }

    fn cpu_v2(&mut self) -> Result<()> {
        let stat = self.keyed("cpu", "cpu.stat")?;
        let [usage, user, system] =
            ["usage_usec", "user_usec", "system_usec"].map(|it| stat.get(it) / 1e6);
        self.cpu_time(usage, user, system);
        let max = self.text("cpu", "cpu.max")?.unwrap_or_default();
        if let Some((quota, period)) = max.trim().split_once(' ') {
            self.put("spec_cpu_period", period.parse()?);
            if quota != "max" {
                self.put("spec_cpu_quota", quota.parse()?);
                let [throttled, burst] =
                    ["throttled_usec", "burst_usec"].map(|it| stat.get(it) * 1e3);
                self.bandwidth(&stat, throttled, burst);
            }
        }
        let weight = self.number("cpu", "cpu.weight")?;
        if weight > 0.0 {
            let shares = 2.0 + ((weight - 1.0) * 262_142.0 / 9_999.0).floor();
            self.put("spec_cpu_shares", shares);
        }
        Ok(())
    }

    fn cpu_time(&mut self, usage: f64, user: f64, system: f64) {
        self.put_with("cpu_usage_seconds_total", &[("cpu", "total")], usage);
        self.put("cpu_user_seconds_total", user);
        self.put("cpu_system_seconds_total", system);
    }

    fn bandwidth(&mut self, stat: &Keyed, throttled_ns: f64, burst_ns: f64) {
        self.put("cpu_cfs_periods_total", stat.get("nr_periods"));
        self.put("cpu_cfs_throttled_periods_total", stat.get("nr_throttled"));
        self.put("cpu_cfs_throttled_seconds_total", throttled_ns / 1e9);
        self.put("cpu_cfs_burst_periods_total", stat.get("nr_bursts"));
        self.put("cpu_cfs_burst_seconds_total", burst_ns / 1e9);
    }

    fn memory_v1(&mut self) -> Result<()> {
        let stat = self.keyed("memory", "memory.stat")?;
        let usage = self.number("memory", "memory.usage_in_bytes")?;
        let of = |key: &str| stat.get(&format!("total_{key}"));
        self.memory(&Memory {
            usage,
            cache: of("cache"),
            rss: of("rss"),
            swap: of("swap"),
            mapped: of("mapped_file"),
            active_file: of("active_file"),
            inactive_file: of("inactive_file"),
        });
        let files = [
            ("memory_max_usage_bytes", "memory.max_usage_in_bytes"),
            ("memory_failcnt", "memory.failcnt"),
            ("memory_kernel_usage", "memory.kmem.usage_in_bytes"),
        ];
        for (family, file) in files {
            self.put(family, self.number("memory", file)?);
        }
        self.faults(&stat, "total_");
        self.memory_limits([
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "memory.soft_limit_in_bytes",
        ])
    }

    fn memory_v2(&mut self) -> Result<()> {
        let stat = self.keyed("memory", "memory.stat")?;
        self.memory(&Memory {
            usage: self.number("memory", "memory.current")?,
            cache: stat.get("file"),
            rss: stat.get("anon"),
            swap: self.number("memory", "memory.swap.current")?,
            mapped: stat.get("file_mapped"),
            active_file: stat.get("active_file"),
            inactive_file: stat.get("inactive_file"),
        });
        self.put(
            "memory_max_usage_bytes",
            self.number("memory", "memory.peak")?,
        );
        // It has no source for these on v2.
        self.put("memory_failcnt", 0.0);
        self.put("memory_kernel_usage", 0.0);
        self.faults(&stat, "");
        self.memory_limits(["memory.max", "memory.swap.max", "memory.min"])
    }

    fn memory(&mut self, memory: &Memory) {
        let working_set = (memory.usage - memory.inactive_file).max(0.0);
        for (family, value) in [
            ("memory_usage_bytes", memory.usage),
            ("memory_cache", memory.cache),
            ("memory_rss", memory.rss),
            ("memory_swap", memory.swap),
            ("memory_mapped_file", memory.mapped),
            ("memory_total_active_file_bytes", memory.active_file),
            ("memory_total_inactive_file_bytes", memory.inactive_file),
            ("memory_working_set_bytes", working_set),
        ] {
            self.put(family, value);
        }
    }

    fn faults(&mut self, stat: &Keyed, hierarchy: &str) {
        for kind in ["pgfault", "pgmajfault"] {
            for (scope, prefix) in [("container", ""), ("hierarchy", hierarchy)] {
                self.put_with(
                    "memory_failures_total",
                    &[("failure_type", kind), ("scope", scope)],
                    stat.get(&format!("{prefix}{kind}")),
                );
            }
        }
    }

    fn memory_limits(&mut self, files: [&str; 3]) -> Result<()> {
        let kinds = ["", "swap_", "reservation_"];
        for (kind, file) in kinds.into_iter().zip(files) {
            let limit = self.number("memory", file)?;
            let shown = if limit > UNLIMITED { 0.0 } else { limit };
            self.put(&format!("spec_memory_{kind}limit_bytes"), shown);
        }
        Ok(())
    }

    fn io_v1(&mut self) -> Result<()> {
        for (what, ending) in [
            ("io_service_bytes", "_bytes_total"),
            ("io_serviced", "_total"),
        ] {
            let mut counts = Vec::new();
            for scheduler in ["bfq", "throttle"] {
                let file = format!("blkio.{scheduler}.{what}_recursive");
                let text = self.text("blkio", &file)?.unwrap_or_default();
                counts = blkio_counts(&text)?;
                if !counts.is_empty() {
                    break;
                }
            }
            for (number, operation, count) in counts {
                self.io(&number, &operation, ending, count);
            }
        }
        Ok(())
    }

    fn io_v2(&mut self) -> Result<()> {
        let text = self.text("io", "io.stat")?.unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let number = words.next().context("a line of io.stat is empty")?;
            for word in words {
                let (key, count) = word.split_once('=').context("io.stat")?;
                let (operation, ending) = match key {
                    "rbytes" => ("Read", "_bytes_total"),
                    "wbytes" => ("Write", "_bytes_total"),
                    "rios" => ("Read", "_total"),
                    "wios" => ("Write", "_total"),
                    _ => continue,
                };
                self.io(number, operation, ending, count.parse()?);
            }
        }
        Ok(())
    }

    fn io(&mut self, number: &str, operation: &str, ending: &str, count: f64) {
        let device = self.tree.devices.get(number).cloned().unwrap_or_default();
        if let Some((_, verb)) = READ_AND_WRITE.iter().find(|(it, _)| *it == operation) {
            self.put_with(&format!("fs_{verb}{ending}"), &[("device", &device)], count);
        }
        if ending == "_bytes_total" {
            let (major, minor) = number.split_once(':').unwrap_or((number, ""));
            let labels = [
                ("device", device.as_str()),
                ("major", major),
                ("minor", minor),
                ("operation", operation),
            ];
            self.put_with("blkio_device_usage_total", &labels, count);
        }
    }

    fn stalls(&mut self) -> Result<()> {
        for resource in ["cpu", "memory", "io"] {
            let Some(text) = self.text(resource, &format!("{resource}.pressure"))? else {
                continue;
            };
            for (kind, name) in [("some", "waiting"), ("full", "stalled")] {
                let line = text.lines().find(|it| it.starts_with(kind));
                let total = line.and_then(|it| it.split_once("total="));
                let Some((_, micros)) = total else { continue };
                let family = format!("pressure_{resource}_{name}_seconds_total");
                self.put(&family, micros.trim().parse::<f64>()? / 1e6);
            }
        }
        Ok(())
    }

    fn numa_v1(&mut self) -> Result<()> {
        let text = self.text("memory", "memory.numa_stat")?.unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (name, _) = words
                .next()
                .and_then(|it| it.split_once('='))
                .context("memory.numa_stat")?;
            let (kind, scope) = match name.strip_prefix("hierarchical_") {
                Some(kind) => (kind, "hierarchy"),
                None => (name, "container"),
            };
            if kind == "total" {
                continue;
            }
            for word in words {
                let (node, pages) = word.split_once('=').context("memory.numa_stat")?;
                let node = node.trim_start_matches('N');
                let labels = [("type", kind), ("scope", scope), ("node", node)];
                self.put_with("memory_numa_pages", &labels, pages.parse()?);
            }
        }
        Ok(())
    }

    fn hugetlb(&mut self) -> Result<()> {
        let (usage, max_usage) = match self.tree.is_unified {
            true => (".current", None),
            false => (".usage_in_bytes", Some(".max_usage_in_bytes")),
        };
        let Ok(entries) = fs::read_dir(self.directory("hugetlb")) else {
            return Ok(());
        };
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let Some(size) = name
                .strip_prefix("hugetlb.")
                .and_then(|it| it.strip_suffix(usage))
                .filter(|it| !it.contains('.'))
            else {
                continue;
            };
            let labels = [("pagesize", size)];
            let used = self.number("hugetlb", &name)?;
            let most = match max_usage {
                Some(file) => self.number("hugetlb", &format!("hugetlb.{size}{file}"))?,
                None => 0.0,
            };
            self.put_with("hugetlb_usage_bytes", &labels, used);
            self.put_with("hugetlb_max_usage_bytes", &labels, most);
        }
        Ok(())
    }

    fn processes(&mut self) -> Result<()> {
        let procs = self.text("cpu", "cgroup.procs")?.unwrap_or_default();
        self.put("processes", procs.lines().count() as f64);
        self.put("threads", self.number("pids", "pids.current")?);
        let most = self.text("pids", "pids.max")?.unwrap_or_default();
        self.put("threads_max", most.trim().parse().unwrap_or(0.0));
        let descriptors = procs.lines().filter_map(|pid| {
            let directory = self.tree.base.join("proc").join(pid).join("fd");
            Some(fs::read_dir(directory).ok()?.count())
        });
        let descriptors: usize = descriptors.sum();
        self.put("file_descriptors", descriptors as f64);
        Ok(())
    }

    fn directory(&self, controller: &str) -> PathBuf {
        let mount = self.tree.base.join("sys/fs/cgroup");
        let mount = match self.tree.is_unified {
            true => mount,
            false => mount.join(controller),
        };
        mount.join(self.id.trim_start_matches('/'))
    }

    /// `None`: there is no such file.
    fn text(&self, controller: &str, file: &str) -> Result<Option<String>> {
        let path = self.directory(controller).join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// 0 for no file, the largest number for `max`.
    fn number(&self, controller: &str, file: &str) -> Result<f64> {
        match self.text(controller, file)?.as_deref().map(str::trim) {
            None => Ok(0.0),
            Some("max") => Ok(u64::MAX as f64),
            Some(text) => text.parse().with_context(|| format!("{file}: {text:?}")),
        }
    }

    fn keyed(&self, controller: &str, file: &str) -> Result<Keyed> {
        let text = self.text(controller, file)?.unwrap_or_default();
        let lines = text.lines().map(|line| {
            let (key, value) = line.split_once(' ').with_context(|| file.to_owned())?;
            Ok((key.to_owned(), value.parse()?))
        });
        Ok(Keyed(lines.collect::<Result<_>>()?))
    }

    fn put(&mut self, family: &str, value: f64) {
        self.put_with(family, &[], value);
    }

    fn put_with(&mut self, family: &str, labels: &[(&str, &str)], value: f64) {
        let mut figure = Figure::new(&format!("container_{family}"), self.id, labels);
        // An empty label is none.
        figure.labels.retain(|_, it| !it.is_empty());
        self.figures.insert(figure, value);
    }
}

/// Bytes.
struct Memory {
    usage: f64,
    cache: f64,
    rss: f64,
    swap: f64,
    mapped: f64,
    active_file: f64,
    inactive_file: f64,
}

/// Lines of a key and a number.
struct Keyed(BTreeMap<String, f64>);

impl Keyed {
    /// 0 for a key that is not there.
    fn get(&self, key: &str) -> f64 {
        self.0.get(key).copied().unwrap_or(0.0)
    }
}

/// Device, operation, count; without the line of the total.
fn blkio_counts(text: &str) -> Result<Vec<(String, String, f64)>> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (number, operation, count) = (words.next()?, words.next()?, words.next()?);
        Some(
            count
                .parse()
                .map(|count| (number.to_owned(), operation.to_owned(), count))
                .with_context(|| format!("`{line}`")),
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_node::FakeNode;

    #[test]
    fn worked_examples_of_memory_on_v2() -> Result<()> {
        const MIB: f64 = 1_048_576.0;
        let mib = |n: u64| format!("{}\n", n << 20);
        let node = FakeNode::new()?;
        node.file("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")?
            .file("/sys/fs/cgroup/x/memory.current", &mib(500))?
            .file("/sys/fs/cgroup/x/memory.max", "max\n")?
            .file(
                "/sys/fs/cgroup/x/memory.stat",
                &format!(
                    "anon {}file {}inactive_file {}",
                    mib(200),
                    mib(280),
                    mib(150)
                ),
            )?
            .file("/sys/fs/cgroup/x/memory.events", "max 17\n")?
            .file(
                "/sys/fs/cgroup/x/memory.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
            )?;
        let figures = Tree::at(node.base()).figures("/x")?;
        for (family, expected) in [
            ("memory_usage_bytes", 500.0 * MIB),
            ("memory_rss", 200.0 * MIB),
            ("memory_cache", 280.0 * MIB),
            ("memory_working_set_bytes", 350.0 * MIB),
            ("spec_memory_limit_bytes", 0.0),
            ("memory_max_usage_bytes", 0.0),
            ("memory_failcnt", 0.0),
            ("pressure_memory_waiting_seconds_total", 1.5),
        ] {
            let figure = Figure::new(&format!("container_{family}"), "/x", &[]);
            assert_eq!(figures.get(&figure), Some(&expected), "{family}");
        }
        Ok(())
    }
}
