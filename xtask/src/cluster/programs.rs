//! The programs of the cluster, in the cache: Kubernetes and runc built from their Go modules, the rest
//! from Debian's packages, unpacked without being installed.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::debian::{self, fill};
use crate::progress::{self, headline, note};
use crate::{setup, workspace};

/// The versions of Kubernetes that there is a module file of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kubernetes {
    #[default]
    #[value(name = "1.36")]
    V1_36,
    #[value(name = "1.37")]
    V1_37,
}

impl Kubernetes {
    fn module_file(self) -> &'static str {
        match self {
            Self::V1_36 => "go.mod",
            Self::V1_37 => "1.37.mod",
        }
    }
}

/// What one program is, its name tells: see `tests/cluster/kubernetes/main.go`.
const KUBERNETES: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];

/// Debian 12 and 13 have a containerd that is too old; those of sid run on both.
const SUITE: &str = "sid";
const PACKAGES: [&str; 4] = [
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "etcd-server",
];

const RUNC: &str = "github.com/opencontainers/runc";

/// Directories that programs are in.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    kubernetes: PathBuf,
    debian: PathBuf,
    runc: PathBuf,
}

/// Those in the cache, built and fetched first where they are not there.
pub(super) fn get(kubernetes: Kubernetes) -> Result<Programs> {
    let cache = workspace::cache()?.join("cluster");
    let version = module_version("k8s.io/kubernetes", "kubernetes", kubernetes.module_file())?;
    let runc = module_version(RUNC, "runc", "go.mod")?;
    let programs = Programs {
        kubernetes: cache.join(format!("kubernetes-{version}")),
        debian: cache.join(format!("debian-{SUITE}")),
        runc: cache.join(format!("runc-{runc}")),
    };
    if !programs.debian.exists() {
        headline(format_args!(
            "fetch {} from Debian {SUITE}",
            PACKAGES.join(", ")
        ));
        fill(&programs.debian, |directory| {
            debian::fetch(SUITE, &PACKAGES, directory)
        })
        .context("fetch Debian's packages")?;
    }
    if !programs.runc.exists() {
        setup::seccomp()?;
        headline(format_args!("build runc {runc}"));
        fill(&programs.runc, build_runc).context("build runc")?;
    }
    if !programs.kubernetes.exists() {
        headline(format_args!("build Kubernetes {version}"));
        note("once per machine; about nine minutes on two cores");
        fill(&programs.kubernetes, |directory| {
            build_kubernetes(kubernetes, &version, directory)
        })
        .context("build Kubernetes")?;
    }
    Ok(programs)
}

/// Why this machine cannot build or run them.
pub(crate) fn cannot_run() -> Option<String> {
    if env::consts::ARCH != "x86_64" {
        return Some(format!(
            "Debian's packages are fetched for x86_64, this is {}",
            env::consts::ARCH
        ));
    }
    for (program, package) in [
        ("go", "golang-go, 1.26 or newer"),
        ("gcc", "gcc and libc6-dev"),
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
        ("openssl", "openssl"),
    ] {
        if !workspace::has_program(program) {
            return Some(format!("no `{program}` here: install {package}"));
        }
    }
    old_go().unwrap_or_else(|error| Some(format!("{error:#}")))
}

/// That the Go of this machine is older than the module files of the default version want.
fn old_go() -> Result<Option<String>> {
    // In no module: there Go may fetch another version of itself first.
    let found = progress::quiet(Command::new("go").arg("version").current_dir("/"))?;
    let kubernetes = Kubernetes::default().module_file();
    for (module, file) in [("kubernetes", kubernetes), ("runc", "go.mod")] {
        let text = module_text(module, file)?;
        let wanted = text.lines().find(|it| it.starts_with("go "));
        let wanted = wanted.with_context(|| format!("{file} of {module} names no Go"))?;
        if go_version(&found) < go_version(wanted) {
            return Ok(Some(format!(
                "{} is older than {wanted}, which the cluster is built with: install a newer one",
                found.trim()
            )));
        }
    }
    Ok(None)
}

/// The numbers of the version in a line of Go's or of a module file, as of `go version go1.26.8 linux/amd64`. A release
/// candidate (`go1.26rc1`) has fewer than any release, so it comes before them.
fn go_version(line: &str) -> Vec<u32> {
    let mut words = line
        .split_whitespace()
        .map(|it| it.strip_prefix("go").unwrap_or(it));
    let version = words.find(|it| it.starts_with(|it: char| it.is_ascii_digit()));
    let version = version.unwrap_or_default();
    let end = version.find(|it: char| it != '.' && !it.is_ascii_digit());
    let numbers = version[..end.unwrap_or(version.len())].split('.');
    numbers.filter_map(|it| it.parse().ok()).collect()
}

impl Programs {
    pub(super) fn kubernetes(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    pub(super) fn debian(&self, path: &str) -> PathBuf {
        self.debian.join(path)
    }

    pub(super) fn runc(&self) -> PathBuf {
        self.runc.join("runc")
    }

    pub(super) fn busybox(&self) -> Result<PathBuf> {
        let places = ["usr/bin/busybox", "bin/busybox"].map(|it| self.debian(it));
        let found = places.into_iter().find(|it| it.is_file());
        found.context("Debian's package busybox-static has no busybox")
    }

    /// A `PATH` with containerd's shim and runc in front.
    pub(super) fn search_path(&self) -> Result<std::ffi::OsString> {
        let own = [
            self.debian("usr/bin"),
            self.debian("usr/sbin"),
            self.runc.clone(),
        ];
        let path = env::var_os("PATH").unwrap_or_default();
        env::join_paths(own.into_iter().chain(env::split_paths(&path)))
            .context("a directory of PATH has a colon")
    }
}

/// The sources of a Go module of the default version of Kubernetes, as its module file names it: downloaded by Go,
/// which checks its sum.
pub(crate) fn sources(path: &str) -> Result<PathBuf> {
    let version = module_version(path, "kubernetes", Kubernetes::default().module_file())?;
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json"])
        .arg(format!("{path}@{version}"))
        .current_dir(source("kubernetes"))
        .env("GOFLAGS", "-mod=readonly");
    let text = progress::quiet(&mut go).with_context(|| format!("fetch {path} {version}"))?;
    let told: serde_json::Value = serde_json::from_str(&text).context("read what Go tells")?;
    let directory = told.get("Dir").and_then(serde_json::Value::as_str);
    directory
        .map(PathBuf::from)
        .with_context(|| format!("Go has no directory of {path} {version}"))
}

fn source(module: &str) -> PathBuf {
    workspace::root().join("tests/cluster").join(module)
}

/// The version of `path` that the module file of `module` asks for.
fn module_version(path: &str, module: &str, file: &str) -> Result<String> {
    match required_version(&module_text(module, file)?, path) {
        Some(version) => Ok(version.to_owned()),
        None => bail!("{file} of {module} does not require {path}"),
    }
}

fn module_text(module: &str, file: &str) -> Result<String> {
    let file = source(module).join(file);
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}

fn required_version<'a>(text: &'a str, path: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().filter(|it| *it != "require");
        let version = (words.next()? == path).then(|| words.next())??;
        version.starts_with('v').then_some(version)
    })
}

fn go(module: &str, what: &str, arguments: &[&str], is_c: bool) -> Result<()> {
    let mut go = Command::new("go");
    go.arg("build")
        .args(arguments)
        .current_dir(source(module))
        .env("CGO_ENABLED", if is_c { "1" } else { "0" })
        // What the module files name is what is built, whatever this machine has set.
        .env("GOFLAGS", "-mod=readonly -trimpath")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    progress::run(what, &mut go).map(drop)
}

/// runc enters namespaces in C before Go starts, so it needs a C compiler.
fn build_runc(directory: &Path) -> Result<()> {
    let program = directory.join("runc").display().to_string();
    go(
        "runc",
        "build runc",
        &[
            "-tags=seccomp,netgo,osusergo",
            "-ldflags=-s -w -extldflags -static",
            "-o",
            &program,
            RUNC,
        ],
        true,
    )
}

fn build_kubernetes(kubernetes: Kubernetes, version: &str, directory: &Path) -> Result<()> {
    let program = directory.join("kubernetes").display().to_string();
    let flags = linker_flags(version)?;
    let module_file = format!("-modfile={}", kubernetes.module_file());
    go(
        "kubernetes",
        "build Kubernetes",
        &[&module_file, &flags, "-o", &program, "."],
        false,
    )?;
    ensure!(Path::new(&program).is_file(), "go built no {program}");
    KUBERNETES.iter().try_for_each(|name| {
        symlink("kubernetes", directory.join(name)).with_context(|| format!("link {name}"))
    })
}

/// A Kubernetes built as a module calls itself `v0.0.0-master`, unless the linker tells it its version.
fn linker_flags(version: &str) -> Result<String> {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        bail!("{version} is no version of Kubernetes");
    };
    let set = |name: &str, value: &str| format!("-X k8s.io/component-base/version.{name}={value}");
    Ok(format!(
        "-ldflags=-s -w {} {} {}",
        set("gitVersion", version),
        set("gitMajor", major),
        set("gitMinor", minor)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_module_file() {
        let text = "require (\n\tk8s.io/kubectl v0.36.3\n\tk8s.io/kubernetes v1.36.3\n)\n\
                    replace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\n\
                    require github.com/opencontainers/runc v1.3.6 // indirect\n";
        assert_eq!(required_version(text, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(required_version(text, RUNC), Some("v1.3.6"));
        assert_eq!(required_version(text, "k8s.io/api"), None);
    }

    #[test]
    fn an_older_go_is_found_by_its_numbers() {
        let wanted = go_version("go 1.26.0");
        assert_eq!(wanted, [1, 26, 0]);
        for (found, is_older) in [
            ("go version go1.26.0 linux/amd64\n", false),
            ("go version go1.26.8 linux/amd64\n", false),
            ("go version go1.100.1 linux/amd64\n", false),
            (
                "go version devel go1.27-3f2c4d Mon Jun 1 10:00:00 2026 linux/amd64",
                false,
            ),
            ("go version go1.26rc1 linux/amd64\n", true),
            ("go version go1.9.7 linux/amd64\n", true),
            (
                "go version go1.24.4 X:nocoverageredesign linux/amd64\n",
                true,
            ),
            ("", true),
        ] {
            assert_eq!(go_version(found) < wanted, is_older, "{found}");
        }
    }

    #[test]
    fn every_version_has_a_module_file() {
        for kubernetes in Kubernetes::value_variants() {
            let file = kubernetes.module_file();
            let version = module_version("k8s.io/kubernetes", "kubernetes", file).expect(file);
            let name = kubernetes
                .to_possible_value()
                .expect("every version has a name");
            assert!(
                version.starts_with(&format!("v{}.", name.get_name())),
                "{version}"
            );
        }
    }
}
