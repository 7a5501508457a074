//! `cargo xtask cluster`: a Kubernetes cluster of one node, of the real programs.
//!
//! It lives in a network namespace, a cgroup root and a directory of its own, so a machine has at most one,
//! and nothing that it does can leave the machine: the namespace has no way out.
//!
//! Invariant: `down` leaves nothing behind, however far `up` came.

mod cgroups;
mod elsewhere;
mod images;
mod processes;
mod programs;
mod settings;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;

use crate::build;
use crate::debian::remove;
use crate::progress::{self, Elapsed, headline, note};
use crate::{interrupt, workspace};
use processes::{POLL, recorded};
pub(crate) use processes::{end_with_children, in_namespace};
use programs::{Kubernetes, Programs};
pub(crate) use programs::{cannot_run, sources};
pub(crate) use settings::{NAME, NODE};

/// Bring a cluster of one node up, of the real programs, speak to it, take it down
///
/// As root. Kubernetes is built from its Go modules, once per machine and version.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start it, and wait until its node is ready
    Up {
        /// The version of Kubernetes
        #[arg(long, value_enum, default_value_t, value_name = "VERSION")]
        kubernetes: Kubernetes,
    },
    /// Say which of its programs run
    Status,
    /// End one of its programs in an orderly way, and start it again
    Restart {
        #[arg(value_parser = PROGRAMS, value_name = "PROGRAM")]
        program: String,
        /// A file in the directory of the cluster, which is removed while the program is down; may be given again
        #[arg(long, value_name = "FILE")]
        removing: Vec<PathBuf>,
        /// The name that it has as a process until it is started again: that of a program that has it inside, for
        /// instance
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
    },
    /// Run kubectl as its administrator
    Kubectl {
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENT"
        )]
        arguments: Vec<String>,
    },
    /// Run a program in its network
    Exec {
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            required = true,
            value_name = "WORD"
        )]
        command: Vec<String>,
    },
    /// End it, and remove all that it made
    Down,
}

/// The programs that run for as long as the cluster, in the order in which they are started.
const PROGRAMS: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "containerd",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];

/// A generous bound for each step of `up`.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(
        workspace::is_root(),
        "run as root: it makes cgroups and a network namespace"
    );
    match &arguments.verb {
        Verb::Up { kubernetes } => up(*kubernetes).map(|()| ExitCode::SUCCESS),
        Verb::Status => status(),
        Verb::Restart {
            program,
            removing,
            name,
        } => restart(program, removing, name.as_deref()).map(|()| ExitCode::SUCCESS),
        Verb::Kubectl { arguments } => pass_through(kubectl()?.args(arguments)),
        Verb::Exec { command } => {
            Cluster::running()?;
            pass_through(in_namespace(Path::new(&command[0])).args(&command[1..]))
        }
        Verb::Down => down().map(|()| ExitCode::SUCCESS),
    }
}

fn pass_through(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().context("start the command")?;
    let code = status.code().and_then(|it| u8::try_from(it).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Where everything of the cluster is. Short, for the sake of sockets.
struct Cluster {
    directory: PathBuf,
}

impl Cluster {
    fn new() -> Self {
        Self {
            directory: Path::new("/var/lib").join(settings::NAME),
        }
    }

    fn running() -> Result<Self> {
        let cluster = Self::new();
        ensure!(
            cluster.directory.exists(),
            "no cluster is up: cargo xtask cluster up"
        );
        Ok(cluster)
    }

    /// Fails unless all its programs run: one may have ended, and `up` may not have come to it.
    fn check_whole(&self) -> Result<()> {
        let runs = |program: &str| recorded(&self.record(program)).is_ok_and(|it| it.is_running());
        let missing: Vec<_> = PROGRAMS.into_iter().filter(|it| !runs(it)).collect();
        ensure!(
            missing.is_empty(),
            "the cluster in {} runs no {}: cargo xtask cluster down removes it",
            self.directory.display(),
            missing.join(", no ")
        );
        Ok(())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn record(&self, program: &str) -> PathBuf {
        self.place("processes").join(program)
    }

    fn log(&self, program: &str) -> PathBuf {
        self.place("logs").join(program).with_extension("log")
    }

    /// kubectl of the version that runs.
    fn kubectl(&self) -> Result<Command> {
        let mut kubectl = in_namespace(&self.place("kubectl"));
        kubectl
            .arg(format!(
                "--kubeconfig={}",
                self.place("admin.kubeconfig").display()
            ))
            // Without it kubectl writes to the home of whoever runs it.
            .arg(format!(
                "--cache-dir={}",
                self.place("kubectl-cache").display()
            ));
        ensure!(
            self.place("kubectl").exists(),
            "the cluster came not far: cargo xtask cluster down"
        );
        Ok(kubectl)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.place(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// What kubectl answers.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        progress::quiet(self.kubectl()?.args(arguments))
    }

    fn start(&self, program: &str, command: &mut Command) -> Result<()> {
        processes::start(command, &self.log(program), &self.record(program))
            .with_context(|| format!("start {program}"))
    }

    /// Waits for what `program` brings about, no longer than it runs; the error shows the end of its log.
    fn wait_for(&self, program: &str, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let process = recorded(&self.record(program))?;
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            let why = match (process.is_running(), Instant::now() < deadline) {
                (true, true) => {
                    thread::sleep(POLL);
                    interrupt::check()?;
                    continue;
                }
                (true, false) => format!("{what}: not after {} s", PATIENCE.as_secs()),
                (false, _) => format!("{program} has ended"),
            };
            let path = self.log(program);
            let log = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(20)..].join("\n");
            bail!("{why}; the last of {}:\n{last}", path.display());
        }
        Ok(())
    }
}

/// Runs `work` with the directory of a cluster: the one that is up, or one for as long as it takes. Fails where a cluster
/// was left that does not run as a whole.
pub(crate) fn with<T>(work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let cluster = Cluster::new();
    let is_up = is_there();
    match is_up {
        true => {
            cluster.check_whole()?;
            note("the cluster that is up is used, and stays: cargo xtask cluster down");
        }
        false => up(Kubernetes::default()).inspect_err(|_| leave())?,
    }
    let done = work(&cluster.directory);
    if !is_up {
        down()?;
    }
    done
}

/// kubectl of the cluster that is up, as its administrator.
pub(crate) fn kubectl() -> Result<Command> {
    Cluster::running()?.kubectl()
}

/// A cluster is up, or what is left of one is there.
pub(crate) fn is_there() -> bool {
    Cluster::new().directory.exists()
}

/// What the machine has of a cluster, up or not: nothing after `down`.
pub(crate) fn left() -> Result<Vec<String>> {
    let Cluster { directory } = Cluster::new();
    let mounts = elsewhere::mounted_in(&directory)?;
    let mut places = cgroups::roots()?;
    places.extend([directory, processes::namespace()]);
    places.retain(|it| it.exists());
    places.extend(mounts);
    let mut left: Vec<_> = places.iter().map(|it| it.display().to_string()).collect();
    let running = [cgroups::processes()?, processes::in_the_namespace()?].concat();
    left.extend(running.iter().map(|it| format!("process {}", it.pid)));
    Ok(left)
}

/// Takes down what came not up; what is wrong is told already.
fn leave() {
    if let Err(error) = down() {
        note(format_args!("{error:#}"));
    }
}

fn up(kubernetes: Kubernetes) -> Result<()> {
    if let Some(why) = programs::cannot_run() {
        bail!(why);
    }
    let cluster = Cluster::new();
    ensure!(
        !cluster.directory.exists(),
        "a cluster is up, or was left: cargo xtask cluster down"
    );
    let programs = programs::get(kubernetes)?;
    let hog = build::hog()?;
    let started = Instant::now();
    headline("start the cluster");
    let came_up = bring_up(&cluster, &programs, &hog).and_then(|()| {
        let took = started.elapsed();
        // For who measures beside it.
        cluster.write("up-milliseconds", &took.as_millis().to_string())?;
        Ok(took)
    });
    match &came_up {
        Ok(took) => note(format_args!(
            "its node is ready, {}; cargo xtask cluster kubectl get pods -A",
            Elapsed(*took)
        )),
        Err(_) => note(format_args!(
            "what there is of it stays for a look, {}; cargo xtask cluster down removes it",
            cluster.place("logs").display()
        )),
    }
    came_up.map(drop)
}

fn bring_up(cluster: &Cluster, programs: &Programs, hog: &Path) -> Result<()> {
    let directory = &cluster.directory;
    for name in [
        "processes",
        "logs",
        "certificates",
        "manifests",
        "kubelet.conf.d",
        "networks",
        "nri/plugins",
        "nri/conf.d",
    ] {
        fs::create_dir_all(cluster.place(name)).with_context(|| format!("create {name}"))?;
    }
    cluster.write("made-elsewhere", &elsewhere::missing()?)?;
    write_settings(cluster, programs)?;
    processes::make_namespace()?;
    cgroups::make()?;

    let start = |name: &str, arguments: Vec<String>| {
        cluster.start(
            name,
            in_namespace(&programs.kubernetes(name)).args(arguments),
        )
    };
    let mut etcd = in_namespace(&programs.debian("usr/bin/etcd"));
    cluster.start("etcd", etcd.args(settings::etcd(directory)))?;
    start("kube-apiserver", settings::api_server(directory))?;
    let mut containerd = in_namespace(&programs.debian("usr/bin/containerd"));
    containerd
        .arg("--config")
        .arg(cluster.place("containerd.toml"))
        .env("PATH", programs.search_path()?);
    cluster.start("containerd", &mut containerd)?;
    import_images(cluster, programs, hog)?;

    cluster.wait_for("kube-apiserver", "the API server is ready", || {
        cluster.ask(&["get", "--raw", "/readyz"]).is_ok()
    })?;
    give_rights(cluster)?;
    start("kube-controller-manager", settings::controllers(directory))?;
    start("kube-scheduler", settings::scheduler(directory))?;
    start("kubelet", settings::kubelet(directory))?;
    let of_node = |what: &str| cluster.ask(&["get", "node", settings::NODE, "-o", what]);
    cluster.wait_for("kubelet", "the node is ready", || {
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        of_node(ready).is_ok_and(|it| it == "True")
    })?;
    cluster.wait_for("kube-controller-manager", "pods can be made", || {
        cluster.ask(&["get", "serviceaccount", "default"]).is_ok()
            && of_node("jsonpath={.spec.taints}").is_ok_and(|it| it.is_empty())
    })
}

/// To the agent, as a user of the project would.
fn give_rights(cluster: &Cluster) -> Result<()> {
    for (role, user) in [
        ("observe", settings::AGENT),
        ("observe-kubelet", settings::AGENT_OF_KUBELET),
    ] {
        let file = workspace::root().join(format!("deploy/clusterrole-{role}.yaml"));
        cluster.ask(&["apply", "--filename", &file.display().to_string()])?;
        cluster.ask(&[
            "create",
            "clusterrolebinding",
            &format!("ballast-{role}"),
            &format!("--clusterrole=ballast-{role}"),
            &format!("--user={}", user.name),
        ])?;
    }
    Ok(())
}

fn write_settings(cluster: &Cluster, programs: &Programs) -> Result<()> {
    let directory = &cluster.directory;
    let certificates = cluster.place("certificates");
    make_certificates(&certificates)?;
    cluster.write("tokens.csv", &settings::tokens())?;
    for (file, user) in [
        ("admin", settings::ADMIN),
        ("kubelet", settings::KUBELET),
        ("agent", settings::AGENT),
        ("agent-kubelet", settings::AGENT_OF_KUBELET),
    ] {
        let text = settings::kubeconfig(&user, &certificates).to_string();
        cluster.write(&format!("{file}.kubeconfig"), &text)?;
    }
    cluster.write(
        "kubelet.json",
        &settings::kubelet_configuration(directory).to_string(),
    )?;
    cluster.write(
        "containerd.toml",
        &settings::containerd(directory, programs),
    )?;
    cluster.write(
        "networks/pods.conflist",
        &settings::pod_network().to_string(),
    )?;
    std::os::unix::fs::symlink(programs.kubernetes("kubectl"), cluster.place("kubectl"))
        .context("link kubectl")
}

/// An authority, and what it signs: the API server's certificate and the one it shows to kubelet; besides,
/// the key of service accounts' tokens.
fn make_certificates(directory: &Path) -> Result<()> {
    let openssl = |words: &[&str]| {
        let mut command = Command::new("openssl");
        progress::quiet(command.args(words).current_dir(directory)).map(drop)
    };
    let new = |name: &str, subject: &str, more: &[&str]| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let words = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
            "-subj",
            subject,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ];
        openssl(&[&words, more].concat())
    };
    new("ca", "/CN=ballast-cluster", &[])?;
    let signed = [
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ];
    let names = format!(
        "subjectAltName=IP:{},IP:{},IP:127.0.0.1,DNS:kubernetes.default.svc",
        settings::ADDRESS,
        settings::SERVICE_ADDRESS
    );
    new(
        "apiserver",
        "/CN=kube-apiserver",
        &[&signed[..], &["-addext", &names]].concat(),
    )?;
    new(
        "apiserver-kubelet-client",
        "/O=system:masters/CN=kube-apiserver-kubelet-client",
        &signed,
    )?;
    // As the cluster gives one to a kubelet that asks for it; none is started with it.
    let names = format!("subjectAltName=DNS:{}", settings::NODE);
    new(
        "kubelet-serving",
        &format!("/O=system:nodes/CN=system:node:{}", settings::NODE),
        &[&signed[..], &["-addext", &names]].concat(),
    )?;
    openssl(&[
        "genrsa",
        "-traditional",
        "-out",
        "service-account.key",
        "2048",
    ])
}

fn import_images(cluster: &Cluster, programs: &Programs, hog: &Path) -> Result<()> {
    let (directory, archive) = (cluster.place("images"), cluster.place("images.tar"));
    images::write(&programs.busybox()?, hog, &directory, &archive)?;
    let ctr = |words: &[&str]| {
        let mut command = Command::new(programs.debian("usr/bin/ctr"));
        command
            .arg("--address")
            .arg(cluster.place("containerd.sock"))
            .args(words);
        progress::quiet(&mut command)
    };
    cluster.wait_for("containerd", "containerd answers", || {
        ctr(&["version"]).is_ok()
    })?;
    let archive = archive.display().to_string();
    ctr(&["--namespace", "k8s.io", "images", "import", &archive]).map(drop)
}

fn status() -> Result<ExitCode> {
    let cluster = Cluster::running()?;
    let mut all_run = true;
    for program in PROGRAMS {
        let state = match recorded(&cluster.record(program)) {
            Ok(process) if process.is_running() => format!("runs, pid {}", process.pid),
            Ok(process) => format!(
                "has ended, pid {}: {}",
                process.pid,
                cluster.log(program).display()
            ),
            Err(_) => "was not started".to_owned(),
        };
        all_run &= state.starts_with("runs");
        println!("{program:<24} {state}");
    }
    match cluster.ask(&["get", "nodes", "--no-headers"]) {
        Ok(nodes) => print!("{nodes}"),
        Err(error) => println!("{error:#}"),
    }
    Ok(if all_run {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn restart(program: &str, removing: &[PathBuf], name: Option<&str>) -> Result<()> {
    let cluster = Cluster::running()?;
    let process = recorded(&cluster.record(program))?;
    let command = process.command(|path| match name {
        Some(name) => named(&cluster.directory, path, name),
        None => Ok(in_namespace(path)),
    });
    let mut command = command.with_context(|| format!("{program} does not run"))?;
    processes::end(&[process])?;
    for file in removing {
        let file = cluster.directory.join(file);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", file.display()));
            }
            _ => {}
        }
    }
    cluster.start(program, &mut command)
}

/// `program` through a link of this name: the kernel calls a process by the path that it was started by. The first word
/// of its command line, by which it knows which program it is, stays.
fn named(directory: &Path, program: &Path, name: &str) -> Result<Command> {
    let names = directory.join("names");
    fs::create_dir_all(&names).context("make a directory for links")?;
    let link = names.join(name);
    match symlink(program, &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("link {}", link.display()));
        }
        _ => {}
    }
    let mut command = in_namespace(Path::new("bash"));
    command
        .args(["-c", r#"exec -a "$1" "$0" "${@:2}""#])
        .arg(link)
        .arg(program);
    Ok(command)
}

fn down() -> Result<()> {
    let cluster = Cluster::new();
    let started = Instant::now();
    headline("take the cluster down");
    // What makes processes ends before what it made.
    for program in PROGRAMS.iter().rev().filter(|it| **it != "containerd") {
        if let Ok(process) = recorded(&cluster.record(program)) {
            processes::end(&[process])?;
        }
    }
    // Containers are in their cgroups; their shims, containerd and who was started beside them in the
    // namespace. Those of containers end first, so that shims clean up after them.
    loop {
        let containers = cgroups::processes()?;
        if containers.is_empty() {
            break;
        }
        processes::end(&containers)?;
    }
    processes::end(&processes::in_the_namespace()?)?;
    elsewhere::unmount(|it| it.starts_with(&cluster.directory))?;
    cgroups::remove()?;
    processes::remove_namespace()?;
    let made = fs::read_to_string(cluster.place("made-elsewhere")).unwrap_or_default();
    elsewhere::remove_made(&made, &cluster.directory)?;
    remove(&cluster.directory)?;
    let left = left()?;
    ensure!(left.is_empty(), "left behind: {}", left.join(", "));
    note(format_args!(
        "nothing is left, {}",
        Elapsed(started.elapsed())
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::processes::Process;
    use super::*;

    #[test]
    fn a_cluster_is_whole_while_all_its_programs_run() {
        let name = format!("ballast-whole-{}", std::process::id());
        let cluster = Cluster {
            directory: std::env::temp_dir().join(name),
        };
        fs::create_dir_all(cluster.place("processes")).expect("a directory of its own");
        let this = Process::of(std::process::id()).expect("this process runs");
        let record = serde_json::to_string(&this).expect("a record is text");
        for program in PROGRAMS {
            let whole = cluster.check_whole().map_err(|error| error.to_string());
            let missing = format!("no {program}");
            assert!(whole.is_err_and(|it| it.contains(&missing)), "{missing}");
            fs::write(cluster.record(program), &record).expect("a record of it");
        }
        cluster.check_whole().expect("all are recorded");
        fs::remove_dir_all(&cluster.directory).expect("it is there");
    }
}
