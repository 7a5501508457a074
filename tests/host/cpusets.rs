//! Cpusets as the kernel keeps them, planned and written by the agent's own code in a tree of the
//! test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ballast::apply::cgroupfs::{ApplyError, CgroupWriter};
use ballast::decide::cgroup_files::{FileRules, WeightMap, files_for};
use ballast::decide::cgroup_plan::{CgroupPlan, plan_cgroups};
use ballast::model::cgroup::DesiredCgroup;
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::numa::NumaMask;
use ballast::model::resources::CgroupResources;
use ballast::model::topology::{NumaNodeId, Topology};
use ballast::sources::cgroupfs::CgroupReader;
use ballast::sources::{mounts, sysfs};
use ballast::sys::{Root, page_size};
use ballast_tests::agent::hog;
use ballast_tests::scratch::own_name;
use ballast_tests::wait::wait_for;
use ballast_tests::{cgroup, numa};

/// `/NAME/pod/app`, gone when dropped.
struct Cgroups {
    reader: CgroupReader,
    writer: CgroupWriter,
    topology: Topology,
    name: String,
    children: Vec<Child>,
}

impl Cgroups {
    fn new(test: &str) -> Result<Self> {
        let root = Root::host();
        let facts = mounts::cgroup_facts(&root)?;
        let trees = Arc::new(mounts::open_trees(&root, &facts.layout)?);
        let cpuset = BTreeSet::from(["cpuset".to_owned()]);
        Ok(Self {
            reader: CgroupReader::new(Arc::clone(&trees), cpuset.clone(), page_size()),
            writer: CgroupWriter::new(trees, cpuset, page_size()),
            topology: sysfs::topology(&root)?,
            name: own_name(test),
            children: Vec::new(),
        })
    }

    fn path(&self, below: &str) -> String {
        format!("/{}{below}", self.name)
    }

    /// The first and the last CPU, which are two.
    fn ends(&self) -> Result<(CpuId, CpuId)> {
        let mut cpus = self.topology.cpus.keys();
        let ends = cpus.next().copied().zip(cpus.next_back().copied());
        ends.context("the lane needs two CPUs")
    }

    fn last_node(&self) -> Result<NumaNodeId> {
        let mut nodes = self.topology.numa_nodes.iter();
        let last = nodes.rfind(|(_, node)| node.memory.is_some_and(|it| it.0 > 0));
        Ok(*last.context("a NUMA node with memory")?.0)
    }

    fn wanted(&self, below: &str, cpus: &CpuSet, mems: NumaMask) -> Result<DesiredCgroup> {
        let path = self.path(below);
        let rules = FileRules::plain(cgroup::is_unified(), page_size());
        let resources = CgroupResources {
            cpuset_cpus: Some(cpus.clone()),
            cpuset_mems: Some(mems),
            ..CgroupResources::default()
        };
        Ok(DesiredCgroup {
            path: CgroupPath::new(path)?,
            files: files_for(&resources, WeightMap::Linear, &rules),
            is_sum: false,
        })
    }

    /// All of the machine for the ancestors, where they need to be told; `cpus` for the leaf.
    fn tree(&self, cpus: &CpuSet, mems: NumaMask) -> Result<Vec<DesiredCgroup>> {
        let mut tree = Vec::new();
        if !cgroup::is_unified() {
            let all = NumaMask::new(self.topology.numa_nodes.keys().copied())?;
            for below in ["", "/pod"] {
                tree.push(self.wanted(below, &self.topology.online(), all)?);
            }
        }
        tree.push(self.wanted("/pod/app", cpus, mems)?);
        Ok(tree)
    }

    fn plan(&self, wanted: &[DesiredCgroup]) -> Result<CgroupPlan> {
        let mut observed = BTreeMap::new();
        for cgroup in wanted {
            let seen = self.reader.observe(&cgroup.path, &cgroup.files)?;
            observed.insert(cgroup.path.clone(), seen);
        }
        Ok(plan_cgroups(wanted, &observed))
    }

    fn reconcile(&self, wanted: &[DesiredCgroup]) -> Result<Vec<ApplyError>> {
        let plan = self.plan(wanted)?;
        Ok(self
            .writer
            .apply(&plan.steps, &BTreeSet::new(), &mut |_, _| {})
            .1)
    }

    #[track_caller]
    fn check(&self, cpus: &CpuSet, mems: NumaMask) -> Result<()> {
        let wanted = self.tree(cpus, mems)?;
        let failed = self.reconcile(&wanted)?;
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(self.plan(&wanted)?, CgroupPlan::default());
        let app = self.path("/pod/app");
        for (file, value) in [
            ("cpuset.cpus", cpus.to_string()),
            ("cpuset.mems", mems.to_string()),
        ] {
            assert_eq!(cgroup::read("cpuset", &app, file)?, value);
        }
        let leaf = wanted.last().context("the leaf")?;
        assert_eq!(self.reader.cpus(&leaf.path)?.as_ref(), Some(cpus));
        assert_eq!(self.reader.mems(&leaf.path)?, Some(mems.ids()));
        Ok(())
    }

    /// Starts a program in the leaf.
    fn start(&mut self, command: &str) -> Result<u32> {
        let procs = cgroup::dir_of("cpuset", &self.path("/pod/app")).join("cgroup.procs");
        let script = format!("echo $$ > {} && exec {command}", procs.display());
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .spawn()?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Best effort: it may have ended.
            child.kill().ok();
            child.wait().ok();
        }
        cgroup::remove_in_all(&self.name);
    }
}

fn set(cpus: impl IntoIterator<Item = CpuId>) -> CpuSet {
    cpus.into_iter().collect()
}

#[cfg_attr(feature = "privileged", test)]
fn cpusets_are_kept_as_they_shrink_move_and_grow() -> Result<()> {
    let mut cgroups = Cgroups::new("cpusets")?;
    let (first, last) = cgroups.ends()?;
    let mems = NumaMask::new([cgroups.last_node()?])?;
    cgroups.check(&set([last]), mems)?;
    // With a process in it, which v1 treats differently.
    let pid = cgroups.start("sleep 3600")?;
    let app = cgroup::dir_of("cpuset", &cgroups.path("/pod/app"));
    wait_for("the process is in it", || {
        Ok(cgroup::procs(&app).contains(&pid))
    })?;
    for cpus in [set([first]), set([first, last]), set([last])] {
        cgroups.check(&cpus, mems)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let allowed = status
            .lines()
            .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.context("a list")?.trim(), cpus.to_string());
    }
    // Another spelling of the same is the same.
    cgroups.check(&set([first, last]), mems)?;
    let list = format!("{last},{first}");
    cgroup::write("cpuset", &cgroups.path("/pod/app"), "cpuset.cpus", &list)?;
    let wanted = cgroups.tree(&set([first, last]), mems)?;
    assert_eq!(cgroups.plan(&wanted)?, CgroupPlan::default());
    Ok(())
}

/// v1 loses CPUs of the ancestors when they go offline; here another program takes them.
#[cfg_attr(feature = "privileged", test)]
fn ancestors_are_widened_before_their_children() -> Result<()> {
    let cgroups = Cgroups::new("cpusets-up")?;
    let (first, last) = cgroups.ends()?;
    let mems = NumaMask::new([cgroups.last_node()?])?;
    cgroups.check(&set([first]), mems)?;
    if !cgroup::is_unified() {
        for below in ["/pod", ""] {
            let path = cgroups.path(below);
            cgroup::write("cpuset", &path, "cpuset.cpus", &first.to_string())?;
        }
    }
    cgroups.check(&set([last]), mems)
}

#[cfg_attr(feature = "privileged", test)]
fn a_mask_above_is_told_with_both_values() -> Result<()> {
    let cgroups = Cgroups::new("cpusets-mask")?;
    let (first, last) = cgroups.ends()?;
    let both = set([first, last]);
    let pod = cgroups.wanted("/pod", &set([first]), NumaMask::EMPTY)?;
    let failed = cgroups.reconcile(&[pod])?;
    assert!(failed.is_empty(), "{failed:?}");
    let wanted = [cgroups.wanted("/pod/app", &both, NumaMask::EMPTY)?];
    let failed = cgroups.reconcile(&wanted)?;
    let [error] = failed.as_slice() else {
        anyhow::bail!("one refusal: {failed:?}");
    };
    assert!(error.is_refusal(), "{error}");
    let plan = cgroups.plan(&wanted)?;
    if cgroup::is_unified() {
        let text = error.to_string();
        for list in [both.to_string(), first.to_string()] {
            assert!(text.contains(&format!("{list:?}")), "{text}");
        }
        // It is written already, and is shown for as long as it lasts.
        assert_eq!((plan.steps.len(), plan.ineffective.len()), (0, 1));
        // Without the mask it is right by itself. Linux 5.10 takes no empty list from the parent of
        // a cgroup that has one.
        let all = cgroups.topology.online().to_string();
        cgroup::write("cpuset", &cgroups.path("/pod"), "cpuset.cpus", &all)?;
        assert_eq!(cgroups.plan(&wanted)?, CgroupPlan::default());
    } else {
        assert_eq!((plan.steps.len(), plan.ineffective.len()), (1, 0));
    }
    Ok(())
}

/// Of the node that is named, and of no other one: by the pages themselves.
#[cfg_attr(feature = "privileged", test)]
fn memory_is_where_the_cpuset_says() -> Result<()> {
    const BYTES: u64 = 32 << 20;
    let numa_maps = Path::new("/proc/self/numa_maps");
    ensure!(numa_maps.exists(), "a kernel with CONFIG_NUMA is needed");
    let mut cgroups = Cgroups::new("cpusets-mems")?;
    let node = cgroups.last_node()?;
    let cpus = cgroups.topology.online();
    cgroups.check(&cpus, NumaMask::new([node])?)?;
    let pid = cgroups.start(&format!("{} hold {BYTES}", hog()?))?;
    wait_for("all is touched", || {
        Ok(numa::anonymous_memory(pid)?.values().sum::<u64>() >= BYTES)
    })?;
    let memory = numa::anonymous_memory(pid)?;
    let nodes: Vec<u32> = memory.keys().copied().collect();
    assert_eq!(nodes, [node.0], "{memory:?}");
    Ok(())
}
