//! From a device plugin to a container: the example plugin, as a process of its own, against the
//! real agent.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ballast::grpc::client::{Channel, Method};
use ballast::grpc::messages::pod_resources::{
    AllocatableResponse, ContainerDevices, Empty, GetRequest, GetResponse, ListResponse,
    PodResources, path,
};
use ballast::model::container::PodPhase;
use ballast::model::kubelet_state::DEVICE_FILE;
use ballast::model::kubelet_state::device::DeviceFile;
use ballast::model::record::EventRecord;
use ballast::model::status::PodEntry;
use ballast_tests::agent::{Agent, device_plugin};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::patience;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;
use serde_json::json;

use super::super::look::{is_running, pid_of, pod_dir};
use super::super::readings::Process;
use super::super::say;
use super::{state_file, wait_file};

const RESOURCE: &str = "example.com/gpu";

/// The device nodes, which are no container's by default: kmsg, and the memory of the machine.
const NODES: [(u64, u64); 2] = [(1, 11), (1, 1)];

/// A device plugin with as many devices as [`NODES`], gone when dropped.
struct Plugin {
    directory: PathBuf,
    process: Option<Process>,
}

impl Plugin {
    fn new(agent: &Agent) -> Result<Self> {
        let directory = agent.dir.join("plugin");
        fs::create_dir_all(directory.join("devices"))?;
        for (i, (major, minor)) in NODES.into_iter().enumerate() {
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            let device = makedev(major, minor);
            mknod(
                &directory.join(format!("devices/dev-{i}")),
                SFlag::S_IFCHR,
                mode,
                device,
            )?;
        }
        Ok(Self {
            directory,
            process: None,
        })
    }

    fn start(&mut self, agent: &Agent) -> Result<()> {
        self.start_with(agent, &[])
    }

    fn start_with(&mut self, agent: &Agent, more: &[&str]) -> Result<()> {
        ensure!(self.process.is_none(), "it runs already");
        self.control("")?;
        let output = File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("output"))?;
        let child = Command::new(device_plugin()?)
            .arg(agent.dir.join("kubelet/device-plugins"))
            .args([
                RESOURCE,
                &NODES.len().to_string(),
                "--numa",
                "1",
                "--preferred",
                "first",
            ])
            .arg("--files")
            .arg(self.directory.join("devices"))
            .arg("--control")
            .arg(self.directory.join("control"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        self.process = Some(Process(child));
        Ok(())
    }

    /// What it was asked to do, of one kind, with which devices.
    fn asked(&self, what: &str) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.directory.join("output"))?;
        let lines = text.lines().filter_map(|it| it.strip_prefix(what));
        Ok(lines.map(|it| it.trim().to_owned()).collect())
    }

    fn control(&self, text: &str) -> Result<()> {
        put_control(&self.directory, text)
    }

    /// Waits for the end that it was told to make.
    fn wait_end(&mut self) -> Result<()> {
        let mut process = self.process.take().context("it runs")?;
        process.0.wait()?;
        Ok(())
    }

    fn n_registered(&self) -> Result<usize> {
        n_registered(&self.directory)
    }
}

/// What a plugin is told to do from now on, as a whole.
fn put_control(directory: &Path, text: &str) -> Result<()> {
    let temporary = directory.join(".control");
    fs::write(&temporary, text)?;
    Ok(fs::rename(temporary, directory.join("control"))?)
}

/// How often a plugin has told that it is registered.
fn n_registered(directory: &Path) -> Result<usize> {
    let text = fs::read_to_string(directory.join("output"))?;
    Ok(text.lines().filter(|it| *it == "registered").count())
}

/// A plugin of another language's gRPC, gone when dropped.
struct Foreign {
    directory: PathBuf,
    _process: Process,
}

impl Foreign {
    const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/host/placement/plugin.py");

    fn start(agent: &Agent, resource: &str) -> Result<Self> {
        let modules = std::env::var_os("BALLAST_PYTHON_GRPC")
            .context("BALLAST_PYTHON_GRPC is not set: the modules of Python's gRPC")?;
        let directory = agent.dir.join("python");
        fs::create_dir(&directory)?;
        fs::write(directory.join("control"), "")?;
        let output = File::create(directory.join("output"))?;
        let child = Command::new("python3")
            .arg(Self::PROGRAM)
            .arg(agent.dir.join("kubelet/device-plugins"))
            .arg(resource)
            .arg(directory.join("control"))
            .env("PYTHONPATH", modules)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self {
            directory,
            _process: Process(child),
        })
    }

    fn break_devices(&self, ids: &str) -> Result<()> {
        put_control(&self.directory, ids)
    }

    fn wait_registered(&self, agent: &Agent, n: usize) -> Result<()> {
        agent.wait_for("the plugin has registered", || {
            Ok(n_registered(&self.directory)? == n)
        })
    }
}

/// A pod that says what it was given and what it can open.
fn pod(name: &str, n: usize, plugin: &Plugin) -> Manifest {
    let devices = plugin.directory.join("devices");
    let script = format!(
        "echo \"$EXAMPLE_DEVICES\" > \"$BALLAST_POD_DIR/seen\"
        for it in {devices}/dev-0 {devices}/dev-1 /dev/null; do
            why=$({{ true < $it; }} 2>&1)
            case \"$?$why\" in
                0*) echo \"${{it##*/}} open\" ;;
                *'not permitted'*) echo \"${{it##*/}} denied\" ;;
                *) echo \"${{it##*/}} absent\" ;;
            esac
        done >> \"$BALLAST_POD_DIR/seen\"
        echo end >> \"$BALLAST_POD_DIR/seen\"
        exec sleep 3600",
        devices = devices.display(),
    );
    let limits = json!({RESOURCE: n.to_string(), "cpu": "100m", "memory": "48Mi"});
    let container = Container::sh("app", &script).resources(limits.clone(), limits);
    Manifest::new(name).container(container)
}

fn about<'a>(events: &'a [EventRecord], reason: &str) -> Vec<&'a EventRecord> {
    events
        .iter()
        .filter(|it| it.event.reason == reason)
        .collect()
}

fn wait_told(agent: &Agent, kind: &str, reason: &str, n: usize) -> Result<()> {
    let what = format!("{n} of {reason}");
    agent.wait_events(&what, kind, |it| about(it, reason).len() >= n)?;
    Ok(())
}

/// What a pod of [`pod`] has written.
fn seen(agent: &Agent, pod: &PodEntry) -> Result<String> {
    let file = pod_dir(&agent.state(), pod).join("seen");
    wait_file(agent, &file, |text| text.ends_with("end\n"))
}

/// Asks the pod resources API.
fn ask<Q, A>(agent: &Agent, path: &'static str, question: Q) -> Result<A>
where
    Q: prost::Message + Sync + 'static,
    A: prost::Message + Default + 'static,
{
    let socket = agent.dir.join("kubelet/pod-resources/kubelet.sock");
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let channel = Channel::connect(&socket).await?;
        let max_answer = 1 << 20;
        let method = Method { path, max_answer };
        Ok(channel.unary(method, question, patience()).await?)
    })
}

fn listed(agent: &Agent) -> Result<Vec<PodResources>> {
    let answer: ListResponse = ask(agent, path::LIST, Empty {})?;
    Ok(answer.pods)
}

fn ids(devices: &[ContainerDevices], resource: &str) -> BTreeSet<String> {
    let of_resource = devices.iter().filter(|it| it.resource_name == resource);
    of_resource
        .flat_map(|it| it.device_ids.iter().cloned())
        .collect()
}

/// What can be given out, by the pod resources API.
fn allocatable(agent: &Agent, resource: &str) -> Result<BTreeSet<String>> {
    let answer: AllocatableResponse = ask(agent, path::GET_ALLOCATABLE, Empty {})?;
    Ok(ids(&answer.devices, resource))
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|it| (*it).to_owned()).collect()
}

/// What a running pod holds, by all that tells it.
fn check_held(agent: &Agent, pod: &PodEntry, expected: &[&str]) -> Result<()> {
    let find = |pods: Vec<PodResources>| pods.into_iter().find(|it| it.name == pod.name);
    // The list follows at the end of the pass that placed the pod, events come before.
    let mut of_list = None;
    agent.wait_for("the pod is listed", || {
        of_list = find(listed(agent)?);
        Ok(of_list.is_some())
    })?;
    let of_list = of_list.context("it was listed")?;
    let question = GetRequest {
        pod_name: pod.name.clone(),
        pod_namespace: "default".to_owned(),
    };
    let of_get: GetResponse = ask(agent, path::GET, question)?;
    assert_eq!(of_get.pod.as_ref(), Some(&of_list));
    let [container] = of_list.containers.as_slice() else {
        anyhow::bail!("one container: {of_list:?}");
    };
    assert_eq!(container.name, "app");
    assert_eq!(ids(&container.devices, RESOURCE), set(expected));
    for devices in &container.devices {
        let nodes = devices.topology.as_ref().map(|it| it.nodes.as_slice());
        let nodes: Vec<_> = nodes.unwrap_or_default().iter().map(|it| it.id).collect();
        assert_eq!(nodes, [0]);
    }

    let file = fs::read(state_file(agent, DEVICE_FILE))?;
    let file = DeviceFile::read(&file)?;
    let entries = file.entries.unwrap_or_default();
    let entry = entries.iter().find(|it| it.pod == pod.uid.0);
    let entry = entry.context("it is in kubelet's file")?;
    assert_eq!(
        (entry.container.as_str(), entry.resource.as_str()),
        ("app", RESOURCE)
    );
    let held: BTreeSet<String> = entry.ids.values().flatten().cloned().collect();
    assert_eq!(held, set(expected));
    Ok(())
}

/// A process of the pod itself opens the devices anew: rules and numbers, as they are now.
fn check_same_process(agent: &Agent, before: &PodEntry) -> Result<()> {
    let now = agent.wait_pod(&before.name, "runs", is_running)?;
    assert_eq!(pid_of(&now, "app"), pid_of(before, "app"));
    Ok(())
}

fn wait_allocatable(agent: &Agent, resource: &str, expected: &[&str]) -> Result<()> {
    agent.wait_for(&format!("{expected:?} can be given out"), || {
        Ok(allocatable(agent, resource)? == set(expected))
    })
}

/// Its devices are an extended resource: a pod that there are too few for begins when they are back, whether it is to
/// run always or once: it has not run yet.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_gets_what_others_give_back() -> Result<()> {
    let mut agent = Agent::new("device-return")?.with_quick_passes();
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    plugin.start(&agent)?;
    agent.put(&pod("first", 2, &plugin))?;
    agent.wait_pod("first", "runs", is_running)?;
    let always = pod("always", 1, &plugin).with("restartPolicy", json!("Always"));
    agent.put(&always)?;
    agent.put(&pod("once", 1, &plugin))?;
    for name in ["always", "once"] {
        let refused = agent.wait_pod(name, "has failed", |it| it.phase == PodPhase::Failed)?;
        assert_eq!(refused.reason.as_deref(), Some("UnexpectedAdmissionError"));
    }
    agent.remove_pod("first")?;
    for name in ["always", "once"] {
        agent.wait_pod(name, "runs", is_running)?;
    }
    // They come together; which of the two comes first is nobody's matter.
    agent.wait_for("they have both devices", || {
        let held = listed(&agent)?.into_iter().flat_map(|it| it.containers);
        let held: BTreeSet<String> = held.flat_map(|it| ids(&it.devices, RESOURCE)).collect();
        Ok(held == set(&["dev-0", "dev-1"]))
    })?;
    let told = agent.events("pod")?;
    assert_eq!(about(&told, "RefusedPodReturns").len(), 2);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_pod_waits_for_a_plugin_and_gets_what_it_gives() -> Result<()> {
    let mut agent = Agent::new("device-path")?;
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;

    // Nobody offers the resource.
    agent.put(&pod("first", 1, &plugin))?;
    wait_told(&agent, "pod", "AdmissionWaiting", 1)?;
    let waiting = agent.wait_pod("first", "waits", |it| {
        it.reason.as_deref() == Some("AdmissionWaiting")
    })?;
    assert_eq!(waiting.phase, PodPhase::Pending);
    let message = waiting.message.context("why it waits")?;
    assert!(message.contains(RESOURCE), "{message}");
    assert!(about(&agent.events("container")?, "Started").is_empty());
    assert!(allocatable(&agent, RESOURCE)?.is_empty());

    plugin.start(&agent)?;
    let first = agent.wait_pod("first", "runs", is_running)?;
    let text = seen(&agent, &first)?;
    assert_eq!(text, "dev-0\ndev-0 open\ndev-1 denied\nnull open\nend\n");
    check_held(&agent, &first, &["dev-0"])?;
    assert_eq!(allocatable(&agent, RESOURCE)?, set(&["dev-0", "dev-1"]));

    // One is left.
    agent.put(&pod("second", 2, &plugin))?;
    let refused = agent.wait_pod("second", "has failed", |it| it.phase == PodPhase::Failed)?;
    assert_eq!(refused.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let message = refused.message.context("why it failed")?;
    assert!(
        message.contains("requested number of devices unavailable for example.com/gpu"),
        "{message}"
    );
    assert_eq!(about(&agent.events("container")?, "Started").len(), 1);
    check_held(&agent, &first, &["dev-0"])?;

    // What the first gives back is of the one that has waited.
    agent.remove_pod("first")?;
    let second = agent.wait_pod("second", "runs", is_running)?;
    let text = seen(&agent, &second)?;
    let mut lines = text.lines();
    let given: BTreeSet<&str> = lines.next().unwrap_or_default().split(',').collect();
    assert_eq!(given, BTreeSet::from(["dev-0", "dev-1"]));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines[0], "dev-0 open");
    // The rules have the first word on a device, its driver the second.
    match File::open(plugin.directory.join("devices/dev-1")) {
        Ok(_) => assert_eq!(lines[1], "dev-1 open"),
        Err(error) => {
            assert_eq!(lines[1], "dev-1 absent");
            say(format_args!(
                "no container is kept from the second device, the kernel is: {error}"
            ));
        }
    }
    check_held(&agent, &second, &["dev-0", "dev-1"])
}

/// The plugin ends, comes back, and finds devices ill; the agent ends and comes back. The pod goes
/// on with what it has.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_keeps_its_device_through_all_that_befalls_plugin_and_agent() -> Result<()> {
    let mut agent = Agent::new("device-life")?;
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    plugin.start(&agent)?;
    wait_allocatable(&agent, RESOURCE, &["dev-0", "dev-1"])?;
    agent.put(&pod("pod", 1, &plugin))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    seen(&agent, &pod)?;

    plugin.control("unhealthy dev-0")?;
    wait_told(&agent, "pod", "DeviceHealthChanged", 1)?;
    wait_allocatable(&agent, RESOURCE, &["dev-1"])?;
    plugin.control("well again")?;
    wait_told(&agent, "pod", "DeviceHealthChanged", 2)?;
    wait_allocatable(&agent, RESOURCE, &["dev-0", "dev-1"])?;
    check_same_process(&agent, &pod)?;

    plugin.control("crash")?;
    plugin.wait_end()?;
    wait_told(&agent, "node", "DevicePluginDisconnected", 1)?;
    wait_allocatable(&agent, RESOURCE, &[])?;
    check_held(&agent, &pod, &["dev-0"])?;
    check_same_process(&agent, &pod)?;
    plugin.start(&agent)?;
    wait_told(&agent, "node", "DevicePluginConnected", 2)?;
    wait_allocatable(&agent, RESOURCE, &["dev-0", "dev-1"])?;
    assert_eq!(plugin.n_registered()?, 2);

    for n in [3, 4] {
        agent.kill()?;
        agent.start()?;
        check_held(&agent, &pod, &["dev-0"])?;
        agent.wait_for("the plugin has registered again", || {
            Ok(plugin.n_registered()? == n)
        })?;
        wait_allocatable(&agent, RESOURCE, &["dev-0", "dev-1"])?;
        check_held(&agent, &pod, &["dev-0"])?;
        check_same_process(&agent, &pod)?;
    }
    // The other device is still to be had, and no more than it.
    let other = self::pod("other", 1, &plugin);
    agent.put(&other)?;
    let other = agent.wait_pod("other", "runs", is_running)?;
    check_held(&agent, &other, &["dev-1"])?;
    let text = seen(&agent, &other)?;
    assert!(text.starts_with("dev-1\ndev-0 denied\n"), "{text}");
    Ok(())
}

/// The books of devices are spoilt, then gone: who runs keeps its own, whichever it is, and nobody else gets the
/// same.
#[cfg_attr(feature = "privileged", test)]
fn no_device_is_given_twice_after_their_record_was_lost() -> Result<()> {
    let mut agent = Agent::new("device-lost")?;
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    plugin.start(&agent)?;
    agent.put(&pod("first", 1, &plugin))?;
    let first = agent.wait_pod("first", "runs", is_running)?;
    check_held(&agent, &first, &["dev-0"])?;
    agent.put(&pod("second", 1, &plugin))?;
    let second = agent.wait_pod("second", "runs", is_running)?;
    check_held(&agent, &second, &["dev-1"])?;
    agent.remove_pod("first")?;
    agent.wait("it is gone", |it| it.pods.len() == 1)?;

    type Spoil = fn(&Path) -> std::io::Result<()>;
    let spoils: [Spoil; 2] = [|it| fs::write(it, "not json"), |it| fs::remove_file(it)];
    for spoil in spoils {
        agent.stop()?;
        spoil(&state_file(&agent, DEVICE_FILE))?;
        agent.start()?;
        wait_told(&agent, "node", "PlacementStateRebuilt", 1)?;
        check_held(&agent, &second, &["dev-1"])?;
        check_same_process(&agent, &second)?;
    }
    agent.put(&pod("third", 1, &plugin))?;
    let third = agent.wait_pod("third", "runs", is_running)?;
    check_held(&agent, &third, &["dev-0"])?;
    agent.put(&pod("fourth", 1, &plugin))?;
    agent.wait_pod("fourth", "has failed", |it| it.phase == PodPhase::Failed)?;
    Ok(())
}

/// A plugin may reset or bind a device when it gives it, whoever has it by then.
#[cfg_attr(feature = "privileged", test)]
fn pods_that_come_together_are_given_each_device_once() -> Result<()> {
    let mut agent = Agent::new("device-together")?;
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    for name in ["first", "second"] {
        agent.put(&pod(name, 1, &plugin))?;
    }
    wait_told(&agent, "pod", "AdmissionWaiting", 2)?;
    plugin.start_with(&agent, &["--slow", "300"])?;
    for name in ["first", "second"] {
        agent.wait_pod(name, "runs", is_running)?;
    }
    let mut given = plugin.asked("allocate")?;
    given.sort();
    assert_eq!(given, ["dev-0", "dev-1"]);
    Ok(())
}

/// As USB adapters and modules of graphics cards do.
#[cfg_attr(feature = "privileged", test)]
fn a_device_that_is_unplugged_takes_no_other_one_along() -> Result<()> {
    let mut agent = Agent::new("device-unplugged")?.with_quick_passes();
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    plugin.start(&agent)?;
    let device = plugin.directory.join("devices/dev-0");
    let script = format!(
        "cd \"$BALLAST_POD_DIR\"
        while :; do
            if (: < {}) 2> why; then echo open; else echo denied; fi > .now && mv .now now
            sleep 0.1
        done",
        device.display()
    );
    let limits = json!({RESOURCE: "2", "cpu": "100m", "memory": "48Mi"});
    let app = Container::sh("app", &script).resources(limits.clone(), limits);
    agent.put(&Manifest::new("pod").container(app))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let now = pod_dir(&agent.state(), &pod).join("now");
    wait_file(&agent, &now, |text| text == "open\n")?;
    let unplugged = plugin.directory.join("devices/dev-1");
    fs::remove_file(&unplugged)?;
    wait_told(&agent, "pod", "DeviceHealthChanged", 1)?;
    let told = agent.events("pod")?;
    let message = &about(&told, "DeviceHealthChanged")[0].event.message;
    assert!(message.contains("devices/dev-1"), "{message}");
    for _ in 0..2 {
        agent.wait_full_passes(2)?;
        fs::remove_file(&now)?;
        wait_file(&agent, &now, |text| text == "open\n")?;
    }
    // It is told once.
    assert_eq!(about(&agent.events("pod")?, "DeviceHealthChanged").len(), 1);
    check_same_process(&agent, &pod)
}

/// Ends the container of a pod of which no agent and no plugin is left.
fn end_alone(agent: &Agent, pod: &PodEntry) -> Result<()> {
    let pid = pid_of(pod, "app").context("it runs")?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    agent.wait_for("the process is gone", || {
        Ok(!Path::new("/proc").join(pid.to_string()).exists())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn no_container_starts_unprepared_while_its_plugin_is_away() -> Result<()> {
    let mut agent = Agent::new("device-prepared")?;
    agent.start()?;
    let mut plugin = Plugin::new(&agent)?;
    plugin.start_with(&agent, &["--pre-start"])?;
    agent.put(&pod("pod", 1, &plugin).with("restartPolicy", json!("Always")))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(plugin.asked("pre-start")?, ["dev-0"]);
    agent.stop()?;
    plugin.process = None;
    end_alone(&agent, &pod)?;
    agent.start()?;
    wait_told(&agent, "container", "Failed", 1)?;
    let told = agent.events("container")?;
    assert!(about(&told, "Started").is_empty());
    let message = &about(&told, "Failed")[0].event.message;
    assert!(
        message.contains("no device plugin is connected"),
        "{message}"
    );
    plugin.start_with(&agent, &["--pre-start"])?;
    agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(plugin.asked("pre-start")?, ["dev-0", "dev-0"]);
    Ok(())
}

/// Another implementation of both the transport and the messages: Python's.
#[cfg_attr(feature = "privileged", test)]
fn a_plugin_in_python_registers_allocates_and_loses_and_regains_health() -> Result<()> {
    const OTHER: &str = "example.com/python";
    let given = |agent: &Agent, name: &str| -> Result<String> {
        let pod = agent.wait_pod(name, "runs", is_running)?;
        let file = pod_dir(&agent.state(), &pod).join("seen");
        wait_file(agent, &file, |text| text.ends_with('\n'))
    };
    let pod = |name: &str, n: u32| {
        let script = "echo \"$PYTHON_DEVICES\" > \"$BALLAST_POD_DIR/seen\"; exec sleep 3600";
        let limits = json!({OTHER: n.to_string(), "cpu": "100m", "memory": "48Mi"});
        let container = Container::sh("app", script).resources(limits.clone(), limits);
        Manifest::new(name).container(container)
    };
    let mut agent = Agent::new("device-python")?;
    agent.start()?;
    let plugin = Foreign::start(&agent, OTHER)?;
    plugin.wait_registered(&agent, 1)?;
    agent.put(&pod("first", 1))?;
    let first = given(&agent, "first")?;
    assert!(["py-0\n", "py-1\n"].contains(&first.as_str()), "{first}");

    // The one that is left breaks: nobody gets it.
    let left = if first == "py-0\n" { "py-1" } else { "py-0" };
    plugin.break_devices(left)?;
    wait_allocatable(&agent, OTHER, &[first.trim_end()])?;
    agent.put(&pod("refused", 1))?;
    let refused = agent.wait_pod("refused", "has failed", |it| it.phase == PodPhase::Failed)?;
    assert_eq!(refused.reason.as_deref(), Some("UnexpectedAdmissionError"));

    plugin.break_devices("")?;
    wait_allocatable(&agent, OTHER, &["py-0", "py-1"])?;
    agent.put(&pod("second", 1))?;
    assert_eq!(given(&agent, "second")?.trim_end(), left);

    // The next agent has another socket: the plugin comes by itself, and nobody loses a device.
    agent.kill()?;
    agent.start()?;
    plugin.wait_registered(&agent, 2)?;
    wait_allocatable(&agent, OTHER, &["py-0", "py-1"])?;
    agent.put(&pod("third", 1))?;
    let third = agent.wait_pod("third", "has failed", |it| it.phase == PodPhase::Failed)?;
    assert_eq!(third.reason.as_deref(), Some("UnexpectedAdmissionError"));
    for name in ["first", "second"] {
        agent.wait_pod(name, "runs", is_running)?;
    }
    Ok(())
}
