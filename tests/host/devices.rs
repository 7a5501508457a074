//! Which devices a container may open: by the devices controller of v1, by a program on v2.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ballast::apply::cgroupfs::CgroupWriter;
use ballast::apply::devices::DevicePrograms;
use ballast::decide::device_access::device_access;
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::device_access::{
    AllocatedDevice, DeviceAccess, DeviceKind, DevicePermissions, DeviceRules,
};
use ballast::model::status::PodEntry;
use ballast::sources::bpf::{LoadOptions, Streams};
use ballast::sources::cgroupfs::CgroupReader;
use ballast::sources::device_node::device_numbers;
use ballast::sys::{Root, Tree, Trees, syscall};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scratch::own_name;
use rustix::thread::CapabilitySet;
use serde_json::json;

use super::look::{container_path, is_running, pid_of};

const PAGE: u64 = 4096;

/// On every Linux, and of no use to a container: reading it takes nothing away.
const DENIED: &str = "/dev/kmsg";

/// A cgroup in one hierarchy, with what reads and writes its devices. Removed when dropped.
struct Subject {
    what: &'static str,
    dir: PathBuf,
    path: CgroupPath,
    reader: CgroupReader,
    writer: CgroupWriter,
}

impl Subject {
    /// One in each hierarchy of this machine that can restrict devices.
    fn all(test: &str) -> Result<Vec<Self>> {
        let mut subjects = Vec::new();
        if let Some(mount) = cgroup::unified_mount() {
            subjects.push(Self::new(test, "program", &mount, true)?);
        }
        let legacy = Path::new("/sys/fs/cgroup/devices");
        if legacy.join("devices.list").exists() {
            subjects.push(Self::new(test, "controller", legacy, false)?);
        }
        ensure!(!subjects.is_empty(), "nothing here restricts devices");
        Ok(subjects)
    }

    fn new(test: &str, what: &'static str, mount: &Path, unified: bool) -> Result<Self> {
        let leaf = own_name(test);
        let path = CgroupPath::root().join(&leaf)?;
        let (reader, writer) = open(mount, unified)?;
        writer.create(&path)?;
        Ok(Self {
            what,
            dir: mount.join(leaf),
            reader,
            writer,
            path,
        })
    }

    fn allow(&self, access: &DeviceAccess) -> Result<()> {
        let began = Instant::now();
        self.writer.allow_devices(&self.path, access)?;
        println!("{}: allowed in {:?}", self.what, began.elapsed());
        let seen = self.reader.devices(&self.path)?;
        ensure!(seen.as_ref() == Some(access), "{}: {seen:?}", self.what);
        Ok(())
    }

    /// Whether a process in the cgroup can open a device for reading.
    fn can_open(&self, device: &str) -> Result<bool> {
        let output = Command::new("sh")
            .args(["-c", "echo 0 > \"$0/cgroup.procs\" && : < \"$1\""])
            .arg(&self.dir)
            .arg(device)
            .stdin(Stdio::null())
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        match (output.status.success(), errors.contains("not permitted")) {
            (true, _) => Ok(true),
            (false, true) => Ok(false),
            (false, false) => bail!("{}: open {device}: {errors}", self.what),
        }
    }

    /// Ids of the programs on the cgroup; none on v1.
    fn programs(&self) -> Result<Vec<u32>> {
        match self.what {
            "program" => Ok(syscall::device_programs(File::open(&self.dir)?.as_fd())?),
            _ => Ok(Vec::new()),
        }
    }
}

/// What reads and writes the devices of cgroups in one hierarchy.
fn open(mount: &Path, unified: bool) -> Result<(CgroupReader, CgroupWriter)> {
    let controllers = match unified {
        true => BTreeSet::new(),
        false => BTreeSet::from(["devices".to_owned()]),
    };
    let trees = Arc::new(Trees {
        unified,
        trees: vec![Tree::open(controllers, mount)?],
    });
    let mut writer = CgroupWriter::new(Arc::clone(&trees), BTreeSet::new(), PAGE);
    let reader = CgroupReader::new(trees, BTreeSet::new(), PAGE);
    if unified {
        let began = Instant::now();
        let told = reader.clone();
        let on_load = move |id, rules: &DeviceRules| {
            told.device_program_is_loaded(id, rules.clone());
        };
        let programs = DevicePrograms::new(&device_access(&[]), Box::new(on_load))?;
        writer.set_device_programs(programs);
        println!("ready to attach after {:?}", began.elapsed());
    }
    Ok((reader, writer))
}

impl Drop for Subject {
    fn drop(&mut self) {
        cgroup::clear(&self.dir);
    }
}

fn kmsg(permissions: &str) -> Result<AllocatedDevice> {
    Ok(AllocatedDevice {
        host_path: DENIED.into(),
        numbers: device_numbers(&Root::host(), Path::new(DENIED))?,
        permissions: permissions.parse()?,
    })
}

#[cfg_attr(feature = "privileged", test)]
fn the_default_set_is_open_and_an_allocated_device_becomes_so() -> Result<()> {
    assert_eq!(kmsg("r")?.numbers.kind, DeviceKind::Char);
    for subject in Subject::all("devices")? {
        let what = subject.what;
        assert!(subject.can_open(DENIED)?, "{what}: nothing is restricted");
        subject.allow(&device_access(&[]))?;
        for device in ["/dev/null", "/dev/zero", "/dev/full", "/dev/urandom"] {
            assert!(subject.can_open(device)?, "{what}: {device}");
        }
        assert!(!subject.can_open(DENIED)?, "{what}: denied");

        let before = subject.programs()?;
        subject.allow(&device_access(&[kmsg("r")?]))?;
        assert!(subject.can_open(DENIED)?, "{what}: allocated");
        let after = subject.programs()?;
        assert_eq!(
            after.len(),
            before.len(),
            "{what}: one in place of the other"
        );
        // Writing alone does not allow reading.
        subject.allow(&device_access(&[kmsg("w")?]))?;
        assert!(!subject.can_open(DENIED)?, "{what}: for writing only");
        subject.allow(&device_access(&[]))?;
        assert!(!subject.can_open(DENIED)?, "{what}: given back");

        subject.allow(&DeviceAccess::Everything)?;
        assert!(subject.can_open(DENIED)?, "{what}: everything");
        assert!(subject.programs()?.is_empty(), "{what}");
    }
    Ok(())
}

/// Programs are looked at by id, which the kernel lets nobody without `CAP_SYS_ADMIN`: what this agent loaded is
/// known all the same, and what another loaded is not taken for no restriction.
#[cfg_attr(feature = "privileged", test)]
fn who_may_not_look_at_programs_knows_its_own_and_takes_no_other_for_none() -> Result<()> {
    let subjects = Subject::all("blind")?;
    let Some(subject) = subjects.iter().find(|it| it.what == "program") else {
        bail!("no cgroup v2 hierarchy is mounted");
    };
    let mount = cgroup::unified_mount().context("a cgroup v2 hierarchy")?;
    let default = device_access(&[]);
    let wider = device_access(&[kmsg("r")?]);
    let without = |work: &(dyn Fn() -> Result<()> + Sync)| -> Result<()> {
        thread::scope(|scope| {
            let blind = scope.spawn(|| {
                let mut held = rustix::thread::capabilities(None)?;
                held.effective -= CapabilitySet::SYS_ADMIN;
                rustix::thread::set_capabilities(None, held)?;
                work()
            });
            blind.join().expect("it does not panic")
        })
    };
    without(&|| {
        // Each in the place of the one before.
        for access in [&default, &wider, &default] {
            subject.allow(access)?;
            assert_eq!(subject.programs()?.len(), 1);
        }
        // As an agent sees it that did not load the program.
        let (reader, writer) = open(&mount, true)?;
        let seen = reader.devices(&subject.path);
        ensure!(seen.is_err(), "{seen:?}");
        let refused = writer.allow_devices(&subject.path, &wider);
        let error = refused.err().context("written over")?;
        let text = format!("{:#}", anyhow::Error::from(error));
        ensure!(text.contains("CAP_SYS_ADMIN"), "{text}");
        Ok(())
    })?;
    assert!(!subject.can_open(DENIED)?, "it stays as it was");
    let (reader, _) = open(&mount, true)?;
    assert_eq!(reader.devices(&subject.path)?, Some(default));
    Ok(())
}

/// A process of a nested cgroup is held to the same rules, and a node that it makes opens nothing.
#[cfg_attr(feature = "privileged", test)]
fn neither_a_nested_cgroup_nor_a_new_node_is_a_way_out() -> Result<()> {
    let node = std::env::temp_dir().join(own_name("node"));
    for subject in Subject::all("nested")? {
        subject.allow(&device_access(&[]))?;
        let script = "echo 0 > \"$0/cgroup.procs\" && mkdir \"$0/inner\" &&
            echo 0 > \"$0/inner/cgroup.procs\" && mknod \"$1\" c 1 11 && : < \"$1\"";
        let output = Command::new("sh")
            .args(["-c", script])
            .arg(&subject.dir)
            .arg(&node)
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(node.exists(), "{}: no node: {errors}", subject.what);
        fs::remove_file(&node)?;
        assert!(
            errors.contains("not permitted"),
            "{}: {errors}",
            subject.what
        );
    }
    Ok(())
}

/// As many rules as a program has room for, with the last one deciding; and one more.
#[cfg_attr(feature = "privileged", test)]
fn many_devices_are_allowed_up_to_the_bound_and_refused_beyond_it() -> Result<()> {
    let DeviceAccess::Only(default) = device_access(&[]) else {
        bail!("everything by default");
    };
    let devices = |n: usize| -> Result<DeviceAccess> {
        let mut devices = Vec::new();
        for minor in 0..u32::try_from(n)? {
            let mut device = kmsg("r")?;
            // Sorted behind all others.
            device.numbers.major = 4000;
            device.numbers.minor = minor;
            devices.push(device);
        }
        Ok(device_access(&devices))
    };
    let room = 256 - default.iter().len();
    for subject in Subject::all("many")? {
        subject.allow(&devices(room)?)?;
        assert!(subject.can_open("/dev/null")?);
        assert!(!subject.can_open(DENIED)?);
        if subject.what == "program" {
            let before = subject.programs()?;
            let refused = subject.allow(&devices(room + 1)?);
            assert!(refused.is_err(), "more than the program has room for");
            assert_eq!(subject.programs()?, before);
        }
    }
    Ok(())
}

/// Where the kernel tells, Linux 5.18 and newer.
#[cfg_attr(feature = "privileged", test)]
fn accesses_are_counted_and_those_that_were_denied_apart() -> Result<()> {
    let subjects = Subject::all("counted")?;
    let subject = subjects
        .iter()
        .find(|it| it.what == "program")
        .context("no cgroup v2 hierarchy is mounted")?;
    let mut streams = Streams::load(&LoadOptions::default())?;
    let inner = subject.path.join("inner")?;
    subject.writer.create(&inner)?;
    let access = device_access(&[]);
    subject.writer.allow_devices(&inner, &access)?;
    streams.attach_device_counter(File::open(&subject.dir)?.as_fd())?;
    let script = "echo 0 > \"$0/inner/cgroup.procs\" && : > /dev/null; : < /dev/kmsg";
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(&subject.dir)
        .stderr(Stdio::null())
        .status()?;
    ensure!(!status.success(), "{DENIED} was opened");
    let counts = streams.device_counts()?;
    println!("{counts:?}");
    let n = |is_denied: bool, permissions: &str| -> Result<u64> {
        let permissions: DevicePermissions = permissions.parse()?;
        let found = counts.iter().filter(|it| {
            it.kind == DeviceKind::Char
                && it.is_denied == is_denied
                && it.permissions == permissions
        });
        Ok(found.map(|it| it.n).sum())
    };
    ensure!(n(false, "w")? > 0, "{counts:?}");
    // Which kernel tells is known from the program that it took.
    let tells = streams
        .device_counter_tells_denials()
        .context("the counter is attached")?;
    assert_eq!(n(true, "r")?, u64::from(tells));
    Ok(())
}

fn agent_with_pod(test: &str, security: serde_json::Value) -> Result<(Agent, PodEntry)> {
    let mut agent = Agent::new(test)?.with_quick_passes();
    agent.start()?;
    let container = Container::sh(
        "app",
        "for it in null zero urandom kmsg; do
            if true < /dev/$it; then echo \"$it open\"; else echo \"$it denied\"; fi
        done > \"$BALLAST_POD_DIR/seen\" 2>/dev/null
        sleep 3600",
    );
    agent.put(&Manifest::new("pod").container(container.with("securityContext", security)))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    Ok((agent, pod))
}

fn check_seen(agent: &Agent, pod: &PodEntry, kmsg: &str) -> Result<()> {
    let file = super::look::pod_dir(&agent.state(), pod).join("seen");
    let expected = format!("null open\nzero open\nurandom open\nkmsg {kmsg}\n");
    agent.wait_for("the container tried all devices", || {
        Ok(fs::read_to_string(&file)
            .unwrap_or_default()
            .lines()
            .count()
            == 4)
    })?;
    assert_eq!(fs::read_to_string(&file)?, expected);
    Ok(())
}

/// What restricts a container now: rules on v1, ids of programs on v2.
fn restriction(path: &str) -> Result<String> {
    if cgroup::is_unified() {
        let dir = File::open(cgroup::dir_of("devices", path))?;
        return Ok(format!("{:?}", syscall::device_programs(dir.as_fd())?));
    }
    cgroup::read("devices", path, "devices.list")
}

#[cfg_attr(feature = "privileged", test)]
fn a_container_is_restricted_before_its_first_instruction_and_without_an_agent() -> Result<()> {
    let (mut agent, pod) = agent_with_pod("restricted", json!({}))?;
    check_seen(&agent, &pod, "denied")?;
    let path = container_path(&pod, "app")?;
    let before = restriction(&path)?;

    agent.kill()?;
    assert_eq!(restriction(&path)?, before, "without an agent");
    agent.start()?;
    let started = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&started, "app"), pid_of(&pod, "app"));
    let later = agent.wait_full_passes(3)?;
    assert_eq!(restriction(&path)?, before, "adopted");
    assert_eq!(later.agent.writes, 0);
    assert_eq!(later.agent.failed_writes, 0);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn what_others_do_to_the_restriction_is_put_back() -> Result<()> {
    let (agent, pod) = agent_with_pod("widened", json!({}))?;
    let path = container_path(&pod, "app")?;
    let before = restriction(&path)?;
    let n_writes = agent.status()?.agent.writes;
    if cgroup::is_unified() {
        let (_, writer) = open(Path::new("/sys/fs/cgroup"), true)?;
        writer.allow_devices(&CgroupPath::new(path.as_str())?, &DeviceAccess::Everything)?;
    } else {
        cgroup::write("devices", &path, "devices.allow", "c 1:11 rwm")?;
        cgroup::write("devices", &path, "devices.deny", "c 1:3 w")?;
    }
    // v1 lists rules in the order in which they came.
    let sorted = |text: &str| -> BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    agent.wait_for("the restriction is back", || {
        let is_repaired = agent.status()?.agent.writes > n_writes;
        Ok(is_repaired && sorted(&restriction(&path)?) == sorted(&before))
    })?;
    assert_eq!(agent.status()?.agent.failed_writes, 0);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_privileged_container_may_use_every_device() -> Result<()> {
    let (agent, pod) = agent_with_pod("privileged", json!({"privileged": true}))?;
    check_seen(&agent, &pod, "open")
}
