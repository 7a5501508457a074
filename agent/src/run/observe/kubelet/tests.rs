use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::sys::scratch::Scratch;

/// A node of files, gone when it is dropped.
pub(in crate::run::observe) struct Node(Scratch);

impl Node {
    pub(in crate::run::observe) fn new(name: &str) -> Self {
        let node = Self(Scratch::new(name));
        fs::create_dir_all(node.0.path("proc")).unwrap();
        node
    }

    /// A process with a root directory of its own.
    pub(in crate::run::observe) fn start(
        &self,
        pid: u32,
        comm: &str,
        uid: u32,
        line: &str,
    ) -> PathBuf {
        let of = self.0.path(format!("proc/{pid}"));
        fs::create_dir_all(of.join("root/etc")).unwrap();
        let status =
            format!("Name:\t{comm}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        let stat =
            format!("{pid} ({comm}) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 1000 200");
        let line = line.replace(' ', "\0") + "\0";
        for (file, text) in [
            ("comm", format!("{comm}\n")),
            ("status", status),
            ("stat", stat),
            ("cmdline", line),
        ] {
            fs::write(of.join(file), text).unwrap();
        }
        symlink("/etc", of.join("cwd")).unwrap();
        of.join("root/etc")
    }

    pub(in crate::run::observe) fn root(&self) -> Root {
        Root::at(self.0.directory())
    }

    pub(in crate::run::observe) fn find(&self, pods: &str) -> Result<Kubelet, String> {
        let pods = (!pods.is_empty()).then(|| pods.parse().unwrap());
        let found = Kubelet::find(&self.root(), &ObserveConfig::default(), pods.as_ref());
        found.map_err(|it| crate::observe::chain(&it))
    }

    fn pid(&self, pods: &str) -> Result<u32, String> {
        self.find(pods).map(|it| it.status.pid)
    }
}

fn file(fields: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n")
}

/// Where it is asked, and what is in the file by which it is known.
fn asked(node: &Node, host_ip: &str) -> Result<(String, Option<String>), String> {
    let host_ip = Some(host_ip.to_owned()).filter(|it| !it.is_empty());
    let found = server(&node.root(), &ObserveConfig::default(), None, || {
        host_ip.clone()
    });
    let found = found.map_err(|it| crate::observe::chain(&it))?;
    let text = |it: Vec<u8>| String::from_utf8(it).unwrap();
    Ok((found.address.to_string(), found.certificates.ok().map(text)))
}

impl Node {
    /// A namespace of a process.
    fn enter(&self, pid: &str, kind: &str, name: &str) {
        let directory = self.0.path(format!("proc/{pid}/ns"));
        fs::create_dir_all(&directory).unwrap();
        fs::remove_file(directory.join(kind)).ok();
        symlink(name, directory.join(kind)).unwrap();
    }

    /// A process is no container.
    fn enter_all_of_the_node(&self, pid: &str) {
        for kind in ["cgroup", "pid", "user"] {
            self.enter("1", kind, "[1]");
            self.enter(pid, kind, "[1]");
        }
    }
}

#[test]
fn it_is_asked_where_it_listens() {
    let node = Node::new("kubelet-asked");
    let network = |pid: &str, name: &str| node.enter(pid, "net", name);
    node.enter_all_of_the_node("42");
    let etc = node.start(
        42,
        "kubelet",
        0,
        "kubelet --config=kubelet.yaml --cert-dir=pki",
    );
    fs::write(etc.join("kubelet.yaml"), file("port: 10260")).unwrap();
    network("42", "net:[1]");
    network("self", "net:[1]");
    let here = |certificate: Option<&str>| {
        Ok(("127.0.0.1:10260".to_owned(), certificate.map(str::to_owned)))
    };
    assert_eq!(asked(&node, "10.0.0.7"), here(None));
    fs::create_dir(etc.join("pki")).unwrap();
    fs::write(etc.join("pki/kubelet.crt"), "pem").unwrap();
    assert_eq!(asked(&node, ""), here(Some("pem\n")));
    fs::write(etc.join("pki/kubelet-server-current.pem"), "of the cluster").unwrap();
    assert_eq!(asked(&node, ""), here(Some("of the cluster\npem\n")));

    network("self", "net:[2]");
    let (address, _) = asked(&node, "fd00::7").unwrap();
    assert_eq!(address, "[fd00::7]:10260");
    for host_ip in ["", "node1"] {
        let why = asked(&node, host_ip).unwrap_err();
        assert!(
            why.starts_with("kubelet (pid 42) is on another network"),
            "{why}"
        );
    }
    // It listens nowhere else.
    fs::write(etc.join("kubelet.yaml"), file("address: 10.0.0.9")).unwrap();
    let (address, _) = asked(&node, "").unwrap();
    assert_eq!(address, "10.0.0.9:10250");
    fs::write(etc.join("kubelet.yaml"), file("address: 127.0.0.1")).unwrap();
    let why = asked(&node, "10.0.0.7").unwrap_err();
    assert!(
        why.contains("listens on 127.0.0.1 alone, which is on another network"),
        "{why}"
    );
}

/// Anybody can call his program kubelet and serve a certificate of his own.
#[test]
fn a_container_that_is_called_kubelet_gets_no_credentials() {
    let node = Node::new("kubelet-strange");
    let etc = node.start(
        42,
        "kubelet",
        0,
        "kubelet --address=10.0.0.9 --cert-dir=pki",
    );
    fs::create_dir(etc.join("pki")).unwrap();
    fs::write(etc.join("pki/kubelet.crt"), "pem").unwrap();
    node.enter_all_of_the_node("42");
    assert!(asked(&node, "").is_ok());
    for kind in ["cgroup", "pid", "user"] {
        node.enter("42", kind, "[2]");
        let why = asked(&node, "").unwrap_err();
        assert!(why.contains("gets no credentials"), "{kind}: {why}");
        node.enter("42", kind, "[1]");
    }
    // The first process may have a right that the agent lacks.
    fs::remove_dir_all(node.0.path("proc/1/ns")).unwrap();
    assert!(asked(&node, "").is_err(), "a namespace of its own");
    for (kind, first) in [
        ("cgroup", "cgroup:[4026531835]"),
        ("pid", "pid:[4026531836]"),
        ("user", "user:[4026531837]"),
    ] {
        node.enter("42", kind, first);
    }
    assert!(asked(&node, "").is_ok());
    fs::remove_dir_all(node.0.path("proc/42/ns")).unwrap();
    assert!(asked(&node, "").is_err(), "it cannot be read");
}

#[test]
fn one_within_another_program_is_asked_where_all_listen() {
    let node = Node::new("kubelet-asked-within");
    node.start(7, "k3s-server", 0, "k3s server");
    node.start(42, "k3s-server", 0, "k3s server");
    node.enter("7", "pid", "[2]");
    node.enter_all_of_the_node("42");
    assert_eq!(asked(&node, ""), Ok(("127.0.0.1:10250".to_owned(), None)));
    let none = Node::new("kubelet-asked-none");
    assert_eq!(asked(&none, ""), Err("no kubelet runs".to_owned()));
}

/// A runtime that somebody else uses, or nobody, may be there too.
#[test]
fn the_runtime_that_a_program_with_a_kubelet_inside_brings_along_is_asked_first() {
    let sockets = |programs: &[(u32, &str)], is_of_node: bool| {
        let node = Node::new("kubelet-runtime");
        for (pid, name) in programs {
            node.start(*pid, name, 0, &format!("{name} --max-pods=7"));
            node.enter_all_of_the_node(&pid.to_string());
            if !is_of_node {
                node.enter(&pid.to_string(), "pid", "[2]");
            }
        }
        let found = runtime_sockets(&node.root(), &ObserveConfig::default());
        let mut sorted = [found.clone(), cri::known_sockets()];
        sorted.iter_mut().for_each(|it| it.sort());
        let is_all = sorted[0] == sorted[1];
        (found[0].display().to_string(), is_all)
    };
    let first = |programs: &[(u32, &str)]| sockets(programs, true);
    let usual = "/run/containerd/containerd.sock";
    let of_k3s = "/run/k3s/containerd/containerd.sock";
    let of_microk8s = "/var/snap/microk8s/common/run/containerd.sock";
    assert_eq!(first(&[]), (usual.to_owned(), true));
    assert_eq!(first(&[(7, "k3s-server")]), (of_k3s.to_owned(), true));
    assert_eq!(first(&[(7, "k3s-agent")]), (of_k3s.to_owned(), true));
    assert_eq!(first(&[(7, "kubelite")]), (of_microk8s.to_owned(), true));
    // One that tells is believed.
    let both = [(7, "k3s-server"), (8, "kubelet")];
    assert_eq!(first(&both), (usual.to_owned(), false));
    // Of another node, which is a container.
    let found = sockets(&[(7, "k3s-server")], false);
    assert_eq!(found, (usual.to_owned(), true));
}

#[test]
fn the_runtime_of_a_kubelet_is_its_own_where_files_are_named_for_its_settings_too() {
    let node = Node::new("kubelet-runtime-named");
    let socket = "/run/cri-dockerd.sock";
    let line = format!("kubelet --container-runtime-endpoint=unix://{socket}");
    node.start(7, "kubelet", 0, &line);
    for asks_kubelet in [false, true] {
        let observe = ObserveConfig {
            asks_kubelet,
            ..ObserveConfig::default()
        };
        let found = runtime_sockets(&node.root(), &observe);
        assert_eq!(found, [Path::new(socket)], "{asks_kubelet}");
    }
}

/// To start a program: until it is that one, it has the name and the command line of the kubelet.
#[test]
fn what_a_kubelet_has_forked_is_no_kubelet() {
    let node = Node::new("kubelet-forks");
    let line = "kubelet --max-pods=7";
    for pid in [42, 43] {
        node.start(pid, "kubelet", 0, line);
    }
    let several = "more than one kubelet may have these pods (pid 42, 43)";
    assert_eq!(node.pid(""), Err(several.to_owned()));
    let stat = node.0.path("proc/43/stat");
    let text = fs::read_to_string(&stat).unwrap();
    fs::write(&stat, text.replace(" S 1 ", " S 42 ")).unwrap();
    assert_eq!(node.pid(""), Ok(42));
    // Of a script that is called as the program that it runs.
    fs::write(node.0.path("proc/42/cmdline"), "/bin/sh\0kubelet\0").unwrap();
    assert_eq!(node.pid(""), Err(several.to_owned()));
}

#[test]
fn its_files_are_read_as_it_sees_them() {
    let node = Node::new("kubelet-files");
    let line = "/usr/bin/kubelet --config=kubelet.yaml --config-dir=/etc/conf.d --max-pods=7";
    let etc = node.start(42, "kubelet", 0, line);
    fs::create_dir(etc.join("conf.d")).unwrap();
    fs::write(
        etc.join("store.yaml"),
        file("evictionHard: {memory.available: 1Gi}"),
    )
    .unwrap();
    symlink("/etc/store.yaml", etc.join("kubelet.yaml")).unwrap();
    fs::write(
        etc.join("conf.d/b.conf"),
        file("kubeReserved: {memory: 2Gi}"),
    )
    .unwrap();
    fs::write(
        etc.join("conf.d/a.conf"),
        file("kubeReserved: {memory: 1Gi}"),
    )
    .unwrap();
    fs::write(etc.join("conf.d/c.conf~"), "no").unwrap();
    fs::create_dir_all(etc.join("conf.d/d.conf")).unwrap();
    fs::write(
        etc.join("conf.d/d.conf/e.conf"),
        file("systemReserved: {cpu: 1}"),
    )
    .unwrap();

    let found = node.find("").unwrap();
    let hard = &found.settings.kubelet.eviction_hard;
    assert_eq!(hard.get("memory.available").unwrap().to_string(), "1Gi");
    assert_eq!(
        found.settings.kubelet.kube_reserved["memory"].to_string(),
        "2Gi"
    );
    assert_eq!(found.settings.kubelet.max_pods, 7);
    assert_eq!(found.settings.warnings, [""; 0]);
    assert_eq!(
        found.status.sources(),
        "/etc/kubelet.yaml, /etc/conf.d/a.conf, /etc/conf.d/b.conf, /etc/conf.d/d.conf/e.conf, its command line \
         (maxPods)"
    );
    // It started 81 s after the boot, and all files are newer.
    assert_eq!(found.status.changed.len(), 5, "{:?}", found.status);
    assert!(found.process.is_there(&node.root()));

    // Kubelet follows no link to a directory of drop-ins.
    fs::rename(etc.join("conf.d"), etc.join("real.d")).unwrap();
    symlink("real.d", etc.join("conf.d")).unwrap();
    let found = node.find("").unwrap();
    assert_eq!(found.status.files, ["/etc/kubelet.yaml"]);

    fs::write(etc.join("store.yaml"), "a: [").unwrap();
    let why = node.pid("").unwrap_err();
    assert!(
        why.starts_with("read what kubelet (pid 42) was told: /etc/kubelet.yaml: "),
        "{why}"
    );
    fs::remove_file(etc.join("store.yaml")).unwrap();
    let why = node.pid("").unwrap_err();
    let expected = "read what kubelet (pid 42) was told: /etc/kubelet.yaml is not there";
    assert_eq!(why, expected);
}

/// Its settings are those of the file that it has written by then, whatever was there before.
#[test]
fn the_kubelet_of_microshift_is_read_from_what_microshift_has_written() {
    let node = Node::new("kubelet-microshift");
    node.start(41, "microshift", 0, "microshift healthcheck");
    assert_eq!(node.pid(""), Err("no kubelet runs".to_owned()));
    let etc = node.start(42, "microshift", 0, "/usr/bin/microshift run");
    let why = node.pid("").unwrap_err();
    assert!(
        why.contains("kubelet/config/config.yaml is not there"),
        "{why}"
    );
    let directory = etc.join("../var/lib/microshift/resources/kubelet/config");
    fs::create_dir_all(&directory).unwrap();
    let write = |fields: &str| fs::write(directory.join("config.yaml"), file(fields)).unwrap();
    write("maxPods: 7");
    let mut before = node.find("/").unwrap();
    assert_eq!(before.settings.kubelet.max_pods, 7);
    assert_eq!(before.root_directory, Path::new("/var/lib/kubelet"));
    assert_eq!(before.status.changed, [""; 0]);
    let mut is_as_before = || before.look_again(&node.root(), &ObserveConfig::default());
    assert!(is_as_before());
    write("maxPods: 9\ncontainerRuntimeEndpoint: unix:///run/crio/crio.sock");
    assert!(!is_as_before());
    let found = node.find("/").unwrap();
    let socket = found.settings.runtime_socket.as_deref();
    assert_eq!(socket, Some(Path::new("/run/crio/crio.sock")));
}

#[test]
fn the_kubelet_of_edgecore_is_read_from_its_configuration() {
    let node = Node::new("kubelet-edgecore");
    let etc = node.start(42, "edgecore", 0, "/usr/local/bin/edgecore");
    fs::create_dir_all(etc.join("kubeedge/config")).unwrap();
    let text = "modules: {edged: {rootDirectory: /data/kubelet, tailoredKubeletConfig: {maxPods: 7, evictionHard: \
                {memory.available: 1Gi}, cgroupRoot: /a}}}";
    fs::write(etc.join("kubeedge/config/edgecore.yaml"), text).unwrap();
    let found = node.find("/a").unwrap();
    assert_eq!(found.settings.kubelet.max_pods, 7);
    let hard = &found.settings.kubelet.eviction_hard;
    assert_eq!(
        (&*hard["memory.available"], &*hard["nodefs.available"]),
        ("1Gi", "10%")
    );
    assert_eq!(found.root_directory, Path::new("/data/kubelet"));
    assert_eq!(found.settings.warnings, [""; 0]);
    assert_eq!(found.status.sources(), "/etc/kubeedge/config/edgecore.yaml");

    let node = Node::new("kubelet-edgecore-elsewhere");
    let etc = node.start(42, "edgecore", 0, "edgecore --config /etc/other.yaml");
    fs::write(
        etc.join("other.yaml"),
        "modules: {edged: {tailoredKubeletConfig: 7}}",
    )
    .unwrap();
    let why = node.pid("").unwrap_err();
    let right = "read what kubelet (pid 42) was told: /etc/other.yaml: modules.edged.tailoredKubeletConfig: ";
    assert!(why.starts_with(right), "{why}");
}

#[test]
fn the_one_is_meant_whose_pods_they_are() {
    let node = Node::new("kubelet-several");
    assert_eq!(node.pid(""), Err("no kubelet runs".to_owned()));
    // Anybody takes the name; and what it is told is of no account.
    node.start(7, "kubelet", 1000, "kubelet --cgroup-root=/a");
    assert_eq!(node.pid(""), Err("no kubelet runs".to_owned()));
    node.start(8, "k3s-server", 0, "/usr/local/bin/k3s server");
    let why = "the kubelet inside k3s-server (pid 8) does not tell on its command line";
    assert_eq!(node.pid(""), Err(why.to_owned()));

    node.start(10, "kubelet", 0, "kubelet --cgroup-root=/a");
    for pods in ["", "/a", "/docker/0123/a"] {
        assert_eq!(node.pid(pods), Ok(10), "{pods}");
    }
    let elsewhere = "the kubelet that runs (pid 10) has its pods elsewhere";
    for pods in ["/", "/b", "/ba"] {
        assert_eq!(node.pid(pods), Err(elsewhere.to_owned()), "{pods}");
    }

    // What runs in a pod calls itself as it likes.
    node.start(15, "kubelet", 0, "kubelet --cgroup-root=/a");
    fs::write(
        node.0.path("proc/15/cgroup"),
        "4:memory:/a/kubepods/burstable/pod1/2\n",
    )
    .unwrap();
    assert_eq!(node.pid("/a"), Ok(10));
    assert_eq!(node.pid(""), Ok(10));
    // One that cannot be read leaves the one that is meant.
    node.start(16, "kubelet", 0, "kubelet --config=/none");
    assert_eq!(node.pid("/a"), Ok(10));
    assert!(node.pid("/b").unwrap_err().contains("/none is not there"));
    for pid in ["15", "16"] {
        fs::remove_dir_all(node.0.path("proc").join(pid)).unwrap();
    }

    // What is said of the place of the pods is no word of any kubelet.
    let section = serde_json::json!({"cgroupRoot": "/b", "maxPods": 9});
    let observe = ObserveConfig {
        kubelet_section: section.as_object().unwrap().clone(),
        ..ObserveConfig::default()
    };
    let at = |root: &str| Some(root.parse::<CgroupPath>().unwrap());
    let root = Root::at(node.0.directory());
    assert!(Kubelet::find(&root, &observe, at("/b").as_ref()).is_err());
    let found = Kubelet::find(&root, &observe, at("/a").as_ref()).unwrap();
    assert_eq!(found.settings.kubelet.max_pods, 9);

    node.start(20, "kubelet", 0, "kubelet");
    node.enter_all_of_the_node("10");
    node.enter_all_of_the_node("20");
    for (pods, right) in [("/", 20), ("/a", 10), ("/docker/0123", 20)] {
        assert_eq!(node.pid(pods), Ok(right), "{pods}");
    }
    let several = "more than one kubelet may have these pods (pid 10, 20)";
    assert_eq!(node.pid(""), Err(several.to_owned()));
    assert_eq!(node.pid("/docker/0123/a"), Err(several.to_owned()));
}

#[test]
fn the_root_of_a_cgroup_namespace_of_its_own_is_not_that_of_the_node() {
    let node = Node::new("kubelet-namespace");
    let namespace = |pid: &str, id: &str| node.enter(pid, "cgroup", id);
    namespace("1", "cgroup:[1]");
    node.start(10, "kubelet", 0, "kubelet");
    namespace("10", "cgroup:[1]");
    node.start(20, "kubelet", 0, "kubelet");
    namespace("20", "cgroup:[2]");
    assert_eq!(node.pid("/"), Ok(10));
    // The first process may have a right that the agent lacks.
    fs::remove_file(node.0.path("proc/1/ns/cgroup")).unwrap();
    namespace("20", "cgroup:[4026531835]");
    assert_eq!(node.pid("/"), Ok(20));
}

/// The node of these tests was started 81.23 s before its kubelet.
#[test]
fn a_kubelet_that_has_just_started_has_yet_to_make_the_cgroup_of_its_pods() {
    let node = Node::new("kubelet-beginning");
    let etc = node.start(7, "kubelet", 0, "kubelet --config /etc/kubelet.yaml");
    fs::write(etc.join("kubelet.yaml"), file("cgroupRoot: /b")).unwrap();
    node.enter_all_of_the_node("7");
    let kubelet = node.find("/b").unwrap();
    let is_beginning = |pods: Option<&str>, seconds| {
        let pods = pods.map(|it| it.parse().unwrap());
        kubelet.is_beginning(&node.root(), pods.as_ref(), Duration::from_secs(seconds))
    };
    assert!(is_beginning(Some("/a"), 82) && is_beginning(None, 82));
    assert!(is_beginning(Some("/a/b"), 82), "it would see that so");
    assert!(!is_beginning(Some("/b"), 82) && !is_beginning(Some("/b.slice"), 82));
    assert!(!is_beginning(Some("/a"), 142));
}
