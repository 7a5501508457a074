//! Pods as the sweep has to know them, from their cgroups alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ballast::model::cgroup_path::{CgroupPath, CgroupPathError};
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::record::PodRef;
use ballast::model::stats::{KnownContainer, KnownPod, Machine, StatsSnapshot};
use ballast::model::time::WallTime;
use ballast::sources::stats::{Progress, StatsReader, Sweep};
use ballast::sys::filesystem::FilesystemProbe;
use ballast::sys::patience::Patience;
use ballast::sys::{Root, Trees, page_size};

/// A pod in the namespace `default`, named as its uid; a container runs in `cgroup/NAME`.
pub fn known_pod(
    uid: &PodUid,
    qos: QosClass,
    cgroup: &CgroupPath,
    containers: &[&str],
) -> anyhow::Result<Arc<KnownPod>> {
    let containers = containers.iter().map(|name| {
        Ok(KnownContainer {
            name: (*name).to_owned(),
            cgroup: cgroup.join(name)?,
            runtime_id: format!("{uid}-{name}-0"),
            image: String::new(),
            started_at: None,
            restarts: 0,
            oom_events: 0,
            pid: None,
        })
    });
    Ok(Arc::new(KnownPod {
        pod: Arc::new(PodRef {
            namespace: "default".to_owned(),
            name: uid.0.clone(),
            uid: uid.clone(),
        }),
        qos,
        cgroup: cgroup.clone(),
        started_at: WallTime::from_epoch(Duration::ZERO),
        sandbox: None,
        containers: containers.collect::<anyhow::Result<_>>()?,
    }))
}

/// A reader of statistics of a machine that nothing is known of.
pub fn stats_reader(
    root: &Root,
    trees: Arc<Trees>,
    kubepods: &CgroupPath,
) -> anyhow::Result<StatsReader> {
    let machine = Arc::new(Machine::default());
    let nodefs = nodefs(root, Path::new("/var/lib"))?;
    Ok(StatsReader::new(
        root,
        trees,
        Some(qos_cgroups(kubepods)?),
        nodefs,
        machine,
        page_size(),
    ))
}

/// The cgroup of all pods and those of the QoS classes in it, as the cgroupfs driver has them.
pub fn qos_cgroups(kubepods: &CgroupPath) -> Result<[CgroupPath; 3], CgroupPathError> {
    Ok([
        kubepods.clone(),
        kubepods.join("burstable")?,
        kubepods.join("besteffort")?,
    ])
}

/// A file system that is waited for.
pub fn nodefs(root: &Root, path: &Path) -> std::io::Result<FilesystemProbe> {
    let patience = Patience::start(Duration::from_secs(60))?;
    Ok(FilesystemProbe::new(root, path, &patience))
}

/// A complete sweep, in as many steps as it takes.
pub fn sweep(reader: &mut StatsReader, before: Option<&StatsSnapshot>) -> Sweep {
    loop {
        if let Progress::Whole(sweep) = reader.step(Duration::from_millis(2), before) {
            return *sweep;
        }
    }
}
