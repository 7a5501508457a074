//! CPUs of one's own: in the kernel, for the process itself, and against all others.

use std::fs;

use anyhow::{Context, Result};
use ballast::model::cpuset::CpuSet;
use ballast::model::kubelet_state::PodEntries;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use serde_json::json;

use super::super::look::{container_path, has_ended, is_running, pid_of, pod_dir, pod_path};
use super::super::say;
use super::{
    agent, burstable, check_books, cpu_books, cpu_books_with, cpus_of_dir, guaranteed, has_quota,
    held, kernel_cpus, machine, noted, notes_cpus_of, notes_its_cpus, told_cpus, wait_all_free,
    wait_file,
};

/// A container of the shared pool, which is the whole machine so far.
fn start_shared(agent: &Agent) -> Result<u32> {
    let shared = burstable(Container::idle("app"));
    agent.put(&Manifest::new("shared").container(shared))?;
    let shared = agent.wait_pod("shared", "runs", is_running)?;
    assert_eq!(kernel_cpus(&shared, "app")?, machine()?.online());
    assert_eq!(told_cpus(&shared, "app")?, machine()?.online());
    pid_of(&shared, "app").context("it runs")
}

#[cfg_attr(feature = "privileged", test)]
fn a_guaranteed_container_is_alone_on_its_cpus_from_its_first_instruction() -> Result<()> {
    let machine = machine()?;
    let n = machine.cpus.len() - 1;
    let mut agent = agent("pinned")?;
    agent.start()?;
    let other = start_shared(&agent)?;

    // Its first words: where it runs, and where the other one does by then.
    let script =
        notes_its_cpus("own") + &notes_cpus_of(&other.to_string(), "other") + "exec sleep 3600";
    let pinned = guaranteed(Container::sh("app", &script), n);
    agent.put(&Manifest::new("pinned").container(pinned))?;
    let pinned = agent.wait_pod("pinned", "runs", is_running)?;
    let last = pod_dir(&agent.state(), &pinned).join("other");
    wait_file(&agent, &last, |text| text.ends_with('\n'))?;

    let books = cpu_books(&agent)?;
    check_books(&books, &machine.online())?;
    let own = held(&books, &pinned, "app").context("it holds CPUs")?;
    assert_eq!(own.len(), n);
    assert_eq!(kernel_cpus(&pinned, "app")?, own);
    assert_eq!(told_cpus(&pinned, "app")?, own);
    assert_eq!(noted(&agent, &pinned, "own")?, own);
    assert_eq!(noted(&agent, &pinned, "other")?, books.shared_pool);
    for path in [container_path(&pinned, "app")?.as_str(), pod_path(&pinned)?] {
        assert!(!has_quota(path)?, "{path}");
    }
    let shared = agent.wait_pod("shared", "runs in what is left", |it| {
        told_cpus(it, "app").is_ok_and(|it| it == books.shared_pool)
    })?;
    assert_eq!(kernel_cpus(&shared, "app")?, books.shared_pool);
    assert_eq!(pid_of(&shared, "app"), Some(other), "it was not restarted");

    agent.remove_pod("pinned")?;
    wait_all_free(&agent)?;
    agent.wait_for("the shared pool is the machine again", || {
        Ok(kernel_cpus(&shared, "app")? == machine.online())
    })?;
    assert_eq!(agent.status()?.agent.failed_writes, 0);
    say(format_args!(
        "{n} of {} CPUs were one container's own",
        n + 1
    ));
    Ok(())
}

/// The CPUs of a pod as a whole are shared by those of its containers that ask for none, and by nobody else.
#[cfg_attr(feature = "privileged", test)]
fn containers_that_share_the_cpus_of_their_pod_do_not_wait_for_each_other() -> Result<()> {
    let n = machine()?.cpus.len() - 1;
    let mut agent = agent("pod-level")?
        .with_kubelet("featureGates: {PodLevelResources: true, PodLevelResourceManagers: true}")
        .with_kubelet("topologyManagerPolicy: best-effort")
        .with_kubelet("topologyManagerScope: pod");
    agent.start()?;
    start_shared(&agent)?;
    let amounts = json!({"cpu": n.to_string(), "memory": "48Mi"});
    let whole = Manifest::new("whole")
        .with("resources", json!({"requests": amounts, "limits": amounts}))
        .container(Container::idle("app"))
        .container(Container::idle("beside"));
    agent.put(&whole)?;
    let whole = agent.wait_pod("whole", "runs", is_running)?;
    let books = cpu_books_with(&agent, PodEntries::Yes)?;
    let of_app = held(&books, &whole, "app").context("it holds CPUs")?;
    assert_eq!(of_app.len(), n);
    for container in ["app", "beside"] {
        assert_eq!(held(&books, &whole, container), Some(of_app.clone()));
        assert_eq!(kernel_cpus(&whole, container)?, of_app);
    }
    assert!(books.shared_pool.is_disjoint(&of_app), "{books:?}");
    agent.wait_pod("shared", "runs in what is left", |it| {
        told_cpus(it, "app").is_ok_and(|it| it == books.shared_pool)
    })?;
    Ok(())
}

/// A fraction of a CPU, or no guarantee, is not for a CPU of one's own, and has its limit.
#[cfg_attr(feature = "privileged", test)]
fn who_asks_for_no_whole_cpus_runs_in_the_shared_pool_with_a_quota() -> Result<()> {
    let mut agent = agent("fractions")?;
    agent.start()?;
    let fraction = json!({"cpu": "500m", "memory": "48Mi"});
    let whole = json!({"cpu": "1", "memory": "48Mi"});
    let cases = [
        ("fraction", fraction.clone(), fraction),
        ("burstable", json!({"cpu": "500m", "memory": "24Mi"}), whole),
    ];
    for (name, requests, limits) in cases {
        let container = Container::idle("app").resources(requests, limits);
        agent.put(&Manifest::new(name).container(container))?;
        let pod = agent.wait_pod(name, "runs", is_running)?;
        assert_eq!(kernel_cpus(&pod, "app")?, machine()?.online(), "{name}");
        assert!(has_quota(&container_path(&pod, "app")?)?, "{name}");
        assert!(has_quota(pod_path(&pod)?)?, "{name}");
    }
    assert!(cpu_books(&agent)?.containers.is_empty());
    Ok(())
}

/// An init container has its CPUs before the others and leaves them to them.
#[cfg_attr(feature = "privileged", test)]
fn the_cpus_of_an_init_container_go_to_those_after_it() -> Result<()> {
    let machine = machine()?;
    let n = machine.cpus.len() - 1;
    let mut agent = agent("pinned-init")?;
    agent.start()?;
    let init = Container::sh("init", &(notes_its_cpus("init") + "exit 0"));
    let app = Container::sh("app", &(notes_its_cpus("app") + "exec sleep 3600"));
    let pod = Manifest::new("pod")
        .init(guaranteed(init, n))
        .container(guaranteed(app, n));
    agent.put(&pod)?;
    let pod = agent.wait_pod("pod", "is past its init container", |it| {
        has_ended(it, "init") && pid_of(it, "app").is_some()
    })?;
    let books = cpu_books(&agent)?;
    let own = held(&books, &pod, "app").context("it holds CPUs")?;
    assert_eq!(held(&books, &pod, "init"), Some(own.clone()));
    assert_eq!(books.shared_pool, machine.online().difference(&own));
    let last = pod_dir(&agent.state(), &pod).join("app");
    wait_file(&agent, &last, |text| text.ends_with('\n'))?;
    for name in ["init", "app"] {
        assert_eq!(noted(&agent, &pod, name)?, own, "{name}");
    }
    assert_eq!(kernel_cpus(&pod, "app")?, own);
    agent.remove_pod("pod")?;
    wait_all_free(&agent)
}

/// Makes a cpuset below its own, as kube-proxy and dockerd do on cgroup v1, with all that it has, and stays in it.
const NESTED: &str = "
    while IFS=: read -r id controllers path; do
        case ,$controllers, in *,cpuset,*) own=$path;; esac
    done < /proc/self/cgroup
    dir=$CPUSETS$own/nested
    mkdir $dir $dir/deeper
    for dir in $dir $dir/deeper; do
        for file in cpuset.cpus cpuset.mems; do
            read -r all < ${dir%/*}/$file
            echo $all > $dir/$file
        done
    done
    echo $$ > $dir/cgroup.procs
    echo > \"$BALLAST_POD_DIR/nested\"
    exec sleep 3600";

/// The kernel refuses to narrow a cpuset below which another would stick out.
#[cfg_attr(feature = "privileged", test)]
fn cpusets_that_a_container_made_move_with_it() -> Result<()> {
    if cgroup::is_unified() {
        say(format_args!("on v2 a cpuset is cut by those above it"));
        return Ok(());
    }
    let machine = machine()?;
    let mut agent = agent("nested")?;
    agent.start()?;
    let nest = Container::sh("app", NESTED).with(
        "env",
        json!([{"name": "CPUSETS", "value": cgroup::mount_of("cpuset")}]),
    );
    agent.put(&Manifest::new("nest").container(burstable(nest)))?;
    let nest = agent.wait_pod("nest", "runs", is_running)?;
    let note = pod_dir(&agent.state(), &nest).join("nested");
    wait_file(&agent, &note, |text| text.ends_with('\n'))?;
    let own = cgroup::dir_of("cpuset", &container_path(&nest, "app")?);
    let all = [own.clone(), own.join("nested"), own.join("nested/deeper")];
    let are_on = |cpus: &CpuSet| -> Result<bool> {
        let mut are = true;
        for dir in &all {
            are &= cpus_of_dir(dir)? == *cpus;
        }
        Ok(are)
    };
    assert!(are_on(&machine.online())?);
    let pinned = guaranteed(Container::idle("app"), machine.cpus.len() - 1);
    agent.put(&Manifest::new("pinned").container(pinned))?;
    agent.wait_pod("pinned", "runs alone", is_running)?;
    assert!(are_on(&cpu_books(&agent)?.shared_pool)?);
    agent.remove_pod("pinned")?;
    wait_all_free(&agent)?;
    agent.wait_for("they have the machine again", || are_on(&machine.online()))?;
    assert_eq!(agent.status()?.agent.failed_writes, 0);
    Ok(())
}

/// Somebody gives pods a part of the machine. They have that, and it is all that there is.
#[cfg_attr(feature = "privileged", test)]
fn pods_have_the_cpus_of_the_root_of_their_cgroups() -> Result<()> {
    let machine = machine()?;
    let last = machine.cpus.keys().next_back().context("a CPU")?;
    let mut agent = Agent::new("part")?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("kubeReserved: {cpu: 100m}")
        .with_quick_passes();
    let root = cgroup::dir_of("cpuset", &format!("/{}", agent.cgroup_root));
    fs::create_dir_all(&root)?;
    if cgroup::is_unified() {
        let above = root.parent().context("it is below a mount")?;
        fs::write(above.join("cgroup.subtree_control"), "+cpuset")?;
    } else {
        fs::write(
            root.join("cpuset.mems"),
            fs::read(cgroup::mount_of("cpuset").join("cpuset.mems"))?,
        )?;
    }
    fs::write(root.join("cpuset.cpus"), last.to_string())?;
    agent.start()?;
    agent.put(&Manifest::new("shared").container(burstable(Container::idle("app"))))?;
    let shared = agent.wait_pod("shared", "runs", is_running)?;
    let part: CpuSet = [*last].into_iter().collect();
    assert_eq!(kernel_cpus(&shared, "app")?, part);
    let status = agent.status()?;
    assert_eq!(status.node.resources["cpu"].capacity, 1000);
    assert_eq!(status.agent.failed_writes, 0);
    // The whole machine would have room for it.
    let two = Container::idle("app").resources(json!({"cpu": "1"}), json!({}));
    agent.put(&Manifest::new("two").container(two))?;
    let two = agent.wait_pod("two", "is refused", |it| it.reason.is_some())?;
    assert_eq!(two.reason.as_deref(), Some("OutOfcpu"));
    // More of it, while the agent runs.
    fs::write(root.join("cpuset.cpus"), machine.online().to_string())?;
    agent.wait_for("pods have it too", || {
        Ok(kernel_cpus(&shared, "app")? == machine.online())
    })?;
    Ok(())
}
