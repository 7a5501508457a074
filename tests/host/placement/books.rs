//! What was given out, on disk: kubelet's files in kubelet's place, and whatever may have become of
//! them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result};
use ballast::model::cpuset::CpuSet;
use ballast::model::kubelet_state::{CPU_FILE, DEVICE_FILE, MEMORY_FILE};
use ballast::model::placement::CpuState;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};
use serde_json::{Value, json};

use super::super::look::{is_running, pid_of, pod_path};
use super::super::say;
use super::numa::{aligned, memory_books};
use super::{
    MIB, agent, burstable, check_books, cpu_books, guaranteed, has_quota, held, kernel_cpus,
    machine, reserved, set, state_file, wait_all_free,
};

/// Files that kubelet has written on a machine with 64 CPUs, for pods that are nowhere.
const CPUS_OF_KUBELET: &str = r#"{"policyName":"static","defaultCpuSet":"2,6,9,20,57,62","entries":{"5e425528-7207-26bf-9406-1e4e3d1fbdf3":{"init":"0,4,9,11,19"},"9482696b-4162-aa06-8db2-36143276d7b5":{"a":"0-1,3,14"}},"checksum":4212546059}"#;
const MEMORY_OF_KUBELET: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"memory":{"total":5171356740,"systemReserved":118529,"allocatable":5171238211,"reserved":138192,"free":5171100019}},"cells":[0]}},"entries":{"083f28b5-4843-945a-e424-7d0f0189ed3f":{"app":[{"numaAffinity":[0],"type":"memory","size":851411219}]}},"checksum":2275601000}"#;
const DEVICES_OF_KUBELET: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"9b4aa7a5-d868-6698-69cc-336939024ff4","ContainerName":"c-0","ResourceName":"vendor.example/gpu","DeviceIDs":{"-1":["dev26"],"0":["dev78","dev18"],"1":["dev65"]},"AllocResp":"KhYKFHZlbmRvci5leGFtcGxlL2dwdT0w"}],"RegisteredDevices":{"a.b/c":["dev31","dev41","dev56"]}},"Checksum":2737424386}"#;

/// Two running pods, one of them with a CPU of its own.
fn start_pods(agent: &Agent) -> Result<(PodEntry, PodEntry)> {
    let container = guaranteed(Container::idle("app"), 1);
    agent.put(&Manifest::new("pinned").container(container))?;
    let container = burstable(Container::idle("app"));
    agent.put(&Manifest::new("shared").container(container))?;
    let pinned = agent.wait_pod("pinned", "runs", is_running)?;
    let shared = agent.wait_pod("shared", "runs", is_running)?;
    Ok((pinned, shared))
}

/// As those of an agent whose state is gone, or of a kubelet that is down.
#[cfg_attr(feature = "privileged", test)]
fn what_pods_of_others_hold_is_theirs_while_they_run() -> Result<()> {
    let mut agent = agent("others")?.with_quick_passes();
    agent.start()?;
    let (pinned, shared) = start_pods(&agent)?;
    agent.kill()?;
    for directory in ["pods", "containers"] {
        fs::remove_dir_all(agent.state().join(directory))?;
    }
    for pod in [&pinned, &shared] {
        fs::remove_file(agent.dir.join(format!("pods/{}.yaml", pod.name)))?;
    }
    agent.start()?;
    agent.wait_full_passes(2)?;
    assert!(agent.status()?.pods.is_empty());
    let own = held(&cpu_books(&agent)?, &pinned, "app").context("its CPU was taken")?;
    assert_eq!(kernel_cpus(&pinned, "app")?, own);
    for pod in [&pinned, &shared] {
        let pid = pid_of(pod, "app").context("it ran")?;
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()?;
    }
    agent.wait_for("its CPU is free", || {
        Ok(held(&cpu_books(&agent)?, &pinned, "app").is_none())
    })
}

/// The CPUs that a pod of [`start_pods`] has alone, after looking at all that depends on them.
fn check_placed(agent: &Agent, (pinned, shared): &(PodEntry, PodEntry)) -> Result<CpuSet> {
    let books = cpu_books(agent)?;
    check_books(&books, &machine()?.online())?;
    let own = held(&books, pinned, "app").context("it holds a CPU")?;
    agent.wait_for("the kernel has what the books have", || {
        Ok(kernel_cpus(pinned, "app")? == own && kernel_cpus(shared, "app")? == books.shared_pool)
    })?;
    agent.wait_for("no quota is on the CPUs of its own", || {
        Ok(!has_quota(pod_path(pinned)?)?)
    })?;
    check_alive(agent, &(pinned.clone(), shared.clone()))?;
    Ok(own)
}

/// Neither was restarted.
fn check_alive(agent: &Agent, (pinned, shared): &(PodEntry, PodEntry)) -> Result<()> {
    for before in [pinned, shared] {
        let now = agent.wait_pod(&before.name, "runs", is_running)?;
        assert_eq!(pid_of(&now, "app"), pid_of(before, "app"), "{}", now.name);
    }
    Ok(())
}

fn wait_told(agent: &Agent, reason: &str, about: &str) -> Result<()> {
    let what = format!("{reason} is told of {about}");
    agent.wait_events(&what, "node", |events| {
        let mut events = events.iter().map(|it| &it.event);
        events.any(|it| it.reason == reason && it.message.contains(about))
    })?;
    Ok(())
}

fn aside(agent: &Agent, name: &str) -> std::path::PathBuf {
    state_file(agent, &format!("{name}.corrupt"))
}

#[cfg_attr(feature = "privileged", test)]
fn the_books_are_in_the_files_of_kubelet_and_in_their_form() -> Result<()> {
    let mut agent = aligned("books", "best-effort")?;
    agent.start()?;
    let (pinned, _) = start_pods(&agent)?;
    let own = held(&cpu_books(&agent)?, &pinned, "app").context("it holds a CPU")?;
    let blocks = memory_books(&agent)?.containers.remove(&pinned.uid);
    let blocks = blocks
        .and_then(|mut it| it.remove("app"))
        .context("it holds memory")?;
    let [block] = blocks.as_slice() else {
        anyhow::bail!("one block: {blocks:?}");
    };
    assert_eq!(block.size, MIB << 20);

    let read = |name: &str| -> Result<Value> {
        let path = state_file(&agent, name);
        let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
        assert_eq!(mode, 0o600, "{name}");
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    };
    let cpus = read(CPU_FILE)?;
    let pool = machine()?.online().difference(&own);
    let expected = json!({
        "policyName": "static",
        "defaultCpuSet": pool.to_string(),
        "entries": {&pinned.uid.0: {"app": own.to_string()}},
        "checksum": cpus["checksum"],
    });
    assert_eq!(cpus, expected);
    let memory = read(MEMORY_FILE)?;
    let nodes: Vec<u32> = block.numa.iter().map(|it| it.0).collect();
    let expected = json!([{"numaAffinity": nodes, "type": "memory", "size": MIB << 20}]);
    assert_eq!(memory["entries"], json!({&pinned.uid.0: {"app": expected}}));
    assert_eq!(memory["policyName"], "Static");
    for node in machine()?.numa_nodes.keys() {
        let table = &memory["machineState"][node.to_string()]["memoryMap"]["memory"];
        let amount = |name: &str| table[name].as_u64().with_context(|| name.to_owned());
        assert!(amount("total")? >= amount("allocatable")? + amount("systemReserved")?);
        assert_eq!(
            amount("allocatable")?,
            amount("free")? + amount("reserved")?
        );
    }
    let devices = read(DEVICE_FILE)?;
    assert_eq!(devices["Data"]["PodDeviceEntries"], Value::Null);
    assert!(devices["Checksum"].is_u64());
    Ok(())
}

/// Spoilt in three ways; each time the containers that run keep their CPUs and never notice.
#[cfg_attr(feature = "privileged", test)]
fn spoilt_books_are_rebuilt_from_the_cgroups() -> Result<()> {
    let mut agent = aligned("books-spoilt", "best-effort")?;
    agent.start()?;
    // Another pod has the first choice and goes: a new admission would not choose what runs.
    let has_choice = machine()?.cpus.len() > 2;
    if has_choice {
        let container = guaranteed(Container::idle("app"), 1);
        agent.put(&Manifest::new("first").container(container))?;
        agent.wait_pod("first", "runs", is_running)?;
    } else {
        say("one CPU to give out here: that no other one is chosen is for the VM lane");
    }
    let pods = start_pods(&agent)?;
    if has_choice {
        agent.remove_pod("first")?;
        agent.wait("it is gone", |it| it.pods.len() == 2)?;
    }
    let own = check_placed(&agent, &pods)?;
    let memory = memory_books(&agent)?;
    let files = [CPU_FILE, MEMORY_FILE, DEVICE_FILE];
    let spoil = |how: &str, whole: &str| match how {
        "garbage" => "\0\0not json".to_owned(),
        "half" => whole.chars().take(whole.len() / 2).collect(),
        // The checksum is that of something else.
        _ => whole.replace("hecksum\":", "hecksum\":1"),
    };
    for what in ["garbage", "half", "forged"] {
        agent.stop()?;
        for name in files {
            let path = state_file(&agent, name);
            fs::write(&path, spoil(what, &fs::read_to_string(&path)?))?;
        }
        agent.start()?;
        for name in files {
            wait_told(&agent, "PlacementStateRebuilt", name)?;
            assert!(aside(&agent, name).exists(), "{what}: {name}");
            fs::remove_file(aside(&agent, name))?;
        }
        assert_eq!(check_placed(&agent, &pods)?, own, "{what}");
        assert_eq!(memory_books(&agent)?, memory, "{what}");
    }
    agent.remove_pod("pinned")?;
    wait_all_free(&agent)
}

/// A lost file is as good as a spoilt one where pods run; a new node has none, and nothing to tell.
#[cfg_attr(feature = "privileged", test)]
fn pods_that_run_without_books_keep_what_they_have() -> Result<()> {
    let mut agent = aligned("books-lost", "best-effort")?;
    agent.start()?;
    let told = agent.events("node")?;
    let mut reasons = told.iter().map(|it| it.event.reason.as_ref());
    assert!(!reasons.any(|it| it == "PlacementStateRebuilt"));
    let pods = start_pods(&agent)?;
    let before = (check_placed(&agent, &pods)?, memory_books(&agent)?);
    agent.kill()?;
    let files = [CPU_FILE, MEMORY_FILE];
    for name in files {
        fs::remove_file(state_file(&agent, name))?;
    }
    agent.start()?;
    for name in files {
        wait_told(&agent, "PlacementStateRebuilt", name)?;
    }
    let after = (check_placed(&agent, &pods)?, memory_books(&agent)?);
    assert_eq!(after, before);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_policy_goes_and_comes_back_without_a_file_being_deleted() -> Result<()> {
    let mut agent = agent("books-policy")?;
    agent.start()?;
    let pods = start_pods(&agent)?;
    check_placed(&agent, &pods)?;
    let machine = machine()?;

    let fixed = agent.kubelet.clone();
    agent.stop()?;
    agent.kubelet = fixed.replace("cpuManagerPolicy: static", "cpuManagerPolicy: none");
    agent.start()?;
    wait_told(&agent, "PlacementPolicyChanged", "policy")?;
    let (pinned, shared) = &pods;
    agent.wait_for("everybody has the machine", || {
        let all = [kernel_cpus(pinned, "app")?, kernel_cpus(shared, "app")?];
        Ok(all.iter().all(|it| *it == machine.online()))
    })?;
    agent.wait_for("the quota is back", || has_quota(pod_path(pinned)?))?;
    check_alive(&agent, &pods)?;
    let text = fs::read_to_string(state_file(&agent, CPU_FILE))?;
    assert!(
        text.starts_with("{\"policyName\":\"none\",\"defaultCpuSet\":\"\","),
        "{text}"
    );

    agent.stop()?;
    agent.kubelet = fixed;
    agent.start()?;
    agent.wait_for("it is placed again", || {
        Ok(held(&cpu_books(&agent)?, pinned, "app").is_some())
    })?;
    check_placed(&agent, &pods)?;
    agent.remove_pod("pinned")?;
    wait_all_free(&agent)
}

/// The CPU that a pod had alone is the system's now: the pod moves.
#[cfg_attr(feature = "privileged", test)]
fn another_reservation_moves_who_is_on_it() -> Result<()> {
    let mut agent = agent("books-reserved")?;
    agent.start()?;
    let pods = start_pods(&agent)?;
    let before = check_placed(&agent, &pods)?;
    let first = reserved(&machine()?)?;
    assert!(!before.contains(first));

    agent.stop()?;
    let was = format!("reservedSystemCPUs: \"{first}\"");
    let is = format!("reservedSystemCPUs: \"{before}\"");
    agent.kubelet = agent.kubelet.replace(&was, &is);
    agent.start()?;
    wait_told(&agent, "PlacementStateFault", "are reserved")?;
    agent.wait_for("it is placed again", || {
        Ok(held(&cpu_books(&agent)?, &pods.0, "app").is_some_and(|it| it.is_disjoint(&before)))
    })?;
    check_placed(&agent, &pods)?;
    Ok(())
}

/// What kubelet has left for pods that are no more does not hold anything, and its files stay in
/// use.
#[cfg_attr(feature = "privileged", test)]
fn the_files_of_a_kubelet_are_taken_up_and_swept() -> Result<()> {
    let mut agent = aligned("books-kubelet", "best-effort")?;
    let files = [
        (CPU_FILE, CPUS_OF_KUBELET),
        (MEMORY_FILE, MEMORY_OF_KUBELET),
        (DEVICE_FILE, DEVICES_OF_KUBELET),
    ];
    for (name, text) in files {
        let path = state_file(&agent, name);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        fs::write(path, text)?;
    }
    agent.start()?;
    wait_all_free(&agent)?;
    agent.wait_for("nobody holds memory", || {
        Ok(memory_books(&agent)?.containers.is_empty())
    })?;
    agent.wait_for("nobody holds devices", || {
        let text = fs::read_to_string(state_file(&agent, DEVICE_FILE))?;
        Ok(!text.contains("9b4aa7a5-d868-6698-69cc-336939024ff4"))
    })?;
    for (name, _) in files {
        assert!(!aside(&agent, name).exists(), "{name} could be used");
    }
    let events = agent.events("node")?;
    let rebuilt = events
        .iter()
        .find(|it| it.event.reason == "PlacementStateRebuilt");
    assert!(rebuilt.is_none(), "{rebuilt:?}");
    let pods = start_pods(&agent)?;
    check_placed(&agent, &pods)?;
    Ok(())
}

/// Of kubelet with another policy: set aside, told, and nothing is given out by it.
#[cfg_attr(feature = "privileged", test)]
fn the_file_of_another_policy_is_set_aside() -> Result<()> {
    let mut agent = agent("books-foreign")?;
    let path = state_file(&agent, CPU_FILE);
    fs::create_dir_all(path.parent().context("a directory")?)?;
    let foreign = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    fs::write(&path, foreign)?;
    agent.start()?;
    wait_told(&agent, "PlacementPolicyChanged", "none")?;
    assert_eq!(fs::read_to_string(aside(&agent, CPU_FILE))?, foreign);
    let pods = start_pods(&agent)?;
    let own = check_placed(&agent, &pods)?;
    let expected = CpuState {
        shared_pool: machine()?.online().difference(&own),
        ..cpu_books(&agent)?
    };
    assert_eq!(cpu_books(&agent)?, expected);
    assert!(own.is_disjoint(&set([reserved(&machine()?)?])));
    say(format_args!(
        "CPU {own} was given out in place of a foreign file"
    ));
    Ok(())
}
