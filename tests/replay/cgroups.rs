//! Captured cgroups: what the agent reads of them and shows is what cAdvisor's formulas make of the
//! same files, and what cAdvisor itself said about them where it was there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::kube_cgroup::{self, KubeLevel};
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::record::PodRef;
use ballast::model::stats::{KnownContainer, KnownPod, Machine};
use ballast::model::time::WallTime;
use ballast::observe::stats::{self, Options};
use ballast::sources::stats::{Progress, StatsReader};
use ballast::sys::{Tree, Trees};
use ballast_tests::cgroup;
use ballast_tests::exposition::Exposition;
use ballast_tests::fake_node::FakeNode;
use ballast_tests::figures::{
    Comparison, Difference, Figure, Figures, compare, deviations, of_page, settle,
};
use ballast_tests::formulas;
use ballast_tests::known::{nodefs, qos_cgroups};

use super::data;

const DEVIATIONS: &str = include_str!("../data/cadvisor_deviations.yaml");

/// What cAdvisor said is in the tree behind this.
const SAID: &str = "# cadvisor ";

/// A tree laid out as a node.
struct Captured {
    node: FakeNode,
    /// `None`: no cAdvisor runs on that version.
    said: Option<Exposition>,
    ids: BTreeSet<String>,
}

impl Captured {
    fn open(name: &str) -> Result<Self> {
        let path = data("cgroup").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let said: String = text
            .lines()
            .filter_map(|it| it.strip_prefix(SAID))
            .map(|it| format!("{it}\n"))
            .collect();
        let mut captured = Self {
            node: FakeNode::from_tree(&text)?,
            said: (!said.is_empty())
                .then(|| Exposition::parse(&said))
                .transpose()?,
            ids: BTreeSet::new(),
        };
        let mount = captured.mount("memory");
        collect(&mount, &mount, &mut captured.ids);
        ensure!(captured.ids.len() >= 7, "{name}: {:?}", captured.ids);
        Ok(captured)
    }

    fn tree(&self) -> formulas::Tree {
        formulas::Tree::at(self.node.base())
    }

    fn mount(&self, controller: &str) -> std::path::PathBuf {
        let mounts = self.node.base().join("sys/fs/cgroup");
        match self.tree().is_unified() {
            true => mounts,
            false => mounts.join(controller),
        }
    }

    fn formulas(&self) -> Result<Figures> {
        let mut all = Figures::new();
        for id in &self.ids {
            all.extend(self.tree().figures(id)?);
        }
        Ok(all)
    }

    /// As the agent reads and shows them.
    fn shown(&self) -> Result<Figures> {
        let root = self.node.root();
        let unified = self.tree().is_unified();
        let trees = match unified {
            true => vec![Tree::open(BTreeSet::new(), &self.mount(""))?],
            false => cgroup::sub_dirs(&self.node.base().join("sys/fs/cgroup"))
                .iter()
                .map(|mount| {
                    let name = mount.file_name().unwrap_or_default().to_string_lossy();
                    // The cgroup2 mount beside them has no controller.
                    let names = Some(name.into_owned()).filter(|it| it != "unified");
                    Ok(Tree::open(names.into_iter().collect(), mount)?)
                })
                .collect::<Result<_>>()?,
        };
        let trees = Arc::new(Trees { unified, trees });
        let machine = Arc::new(Machine {
            is_unified: unified,
            ..Machine::default()
        });
        let kubepods = qos_cgroups(&CgroupPath::new("/kubepods")?)?;
        let nodefs = nodefs(&root, Path::new("/"))?;
        let mut reader = StatsReader::new(&root, trees, Some(kubepods), nodefs, machine, 4096);
        reader.keep(self.pods()?.into_iter().map(Arc::new));
        let Progress::Whole(sweep) = reader.step(Duration::from_secs(60), None) else {
            bail!("a minute is not enough for {} cgroups", self.ids.len());
        };
        let mut text = String::new();
        stats::cadvisor(&sweep.snapshot, Options::default(), &mut text);
        Ok(of_page(&Exposition::parse(&text)?, &self.ids))
    }

    fn pods(&self) -> Result<Vec<KnownPod>> {
        let mut pods: Vec<KnownPod> = Vec::new();
        for id in &self.ids {
            let path = CgroupPath::new(id.as_str())?;
            let found = kube_cgroup::parse(&path, &CgroupPath::root());
            if let Some(KubeLevel::Pod { uid, qos }) =
                found.filter(|it| it.inner.is_empty()).map(|it| it.level)
            {
                pods.push(known_pod(&path, qos, uid));
            } else if let Some(pod) = pods.last_mut()
                && let Some(container) = path.below(&pod.cgroup)
                && !container.contains('/')
            {
                pod.containers.push(KnownContainer {
                    name: container.to_owned(),
                    cgroup: path.clone(),
                    runtime_id: container.to_owned(),
                    image: "none".to_owned(),
                    started_at: None,
                    restarts: 0,
                    oom_events: 0,
                    pid: None,
                });
            }
        }
        Ok(pods)
    }
}

fn known_pod(path: &CgroupPath, qos: QosClass, uid: PodUid) -> KnownPod {
    let pod = PodRef {
        namespace: "default".to_owned(),
        name: uid.0.clone(),
        uid,
    };
    KnownPod {
        pod: Arc::new(pod),
        qos,
        cgroup: path.clone(),
        started_at: WallTime::from_epoch(Duration::ZERO),
        sandbox: None,
        containers: Vec::new(),
    }
}

/// Paths of all cgroups below `directory`, parents first.
fn collect(mount: &Path, directory: &Path, ids: &mut BTreeSet<String>) {
    for child in cgroup::sub_dirs(directory) {
        if let Ok(path) = child.strip_prefix(mount) {
            ids.insert(format!("/{}", path.display()));
        }
        collect(mount, &child, ids);
    }
}

fn check_agent(name: &str, against: &str) -> Result<()> {
    let captured = Captured::open(name)?;
    let formulas = captured.formulas()?;
    let comparison = compare(&captured.shown()?, &[&formulas], |_| 0.0);
    settle(&comparison, &deviations(DEVIATIONS, against)?).with_context(|| name.to_owned())
}

#[test]
fn captured_cgroups_of_v1_are_shown_as_cadvisors_formulas_have_them() -> Result<()> {
    check_agent("v1-cgroupfs.tree", "captured v1")
}

#[test]
fn captured_cgroups_of_v2_are_shown_as_cadvisors_formulas_have_them() -> Result<()> {
    check_agent("v2-cgroupfs.tree", "captured v2")
}

/// The formulas are right, whatever driver named the cgroups: they give what cAdvisor gave.
#[test]
fn the_formulas_give_what_cadvisor_said_at_the_capture() -> Result<()> {
    for name in ["v1-cgroupfs.tree", "v1-systemd.tree"] {
        let captured = Captured::open(name)?;
        let said = captured.said.as_ref().context("no cAdvisor was there")?;
        let said = of_page(said, &captured.ids);
        let mut comparison = compare(&captured.formulas()?, &[&said], |_| 0.0);
        comparison
            .differing
            .retain(|figure, difference| !is_known_of_0_38(figure, difference));
        settle(&comparison, &[]).with_context(|| name.to_owned())?;
        ensure!(
            comparison.agreeing.len() > 200,
            "{name}: only {} figures agree",
            comparison.agreeing.len()
        );
    }
    Ok(())
}

/// Where cAdvisor 0.38 is not 0.56, and what a capture does not hold.
fn is_known_of_0_38(figure: &Figure, difference: &Difference) -> bool {
    match figure.family.as_str() {
        // /proc is not captured.
        "container_file_descriptors" => true,
        // Faults of the cgroup itself stand for those of all below it, too.
        "container_memory_failures_total" => figure.labels["scope"] == "hierarchy",
        // It sends those that are 0 on v1 as well; nothing was swapped.
        _ => matches!(difference, Difference::Extra { found } if *found == 0.0),
    }
}

#[test]
fn what_is_compared_is_not_little() -> Result<()> {
    let captured = Captured::open("v1-cgroupfs.tree")?;
    let formulas = captured.formulas()?;
    let Comparison { agreeing, .. } = compare(&captured.shown()?, &[&formulas], |_| 0.0);
    let families: BTreeSet<&str> = agreeing.iter().map(|it| it.family.as_str()).collect();
    ensure!(families.len() >= 25, "only {families:?}");
    Ok(())
}
