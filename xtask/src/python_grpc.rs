//! Python's gRPC, and the device plugin API as it generates it from the text that Kubernetes publishes:
//! for a plugin that shares no line with the agent.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::debian::fill;
use crate::progress::{self, headline};
use crate::{setup, workspace};

/// The variable that tells a test where the modules are.
pub(crate) const MODULES: &str = "BALLAST_PYTHON_GRPC";

/// The part of a name that the tests have in common that need them.
pub(crate) const TESTS: &str = "in_python";

const GRPC_VERSION: &str = "1.71.0";

/// The Go module that has the API's text.
const KUBELET: &str = "k8s.io/kubelet";
const KUBELET_VERSION: &str = "v0.36.0";
const PROTO: &str = "pkg/apis/deviceplugin/v1beta1/api.proto";

/// What the generated modules are called: `api` alone is anybody's.
const NAME: &str = "device_plugin";

/// The directory of the modules in the cache, which is filled first if it is not there. The error says
/// why they cannot be had here.
pub(crate) fn modules() -> Result<PathBuf> {
    setup::python_and_go()?;
    // Its modules in C are of one version of Python.
    let abi = "import sysconfig; print(sysconfig.get_config_var('SOABI'))";
    let abi = progress::quiet(python().args(["-c", abi]))?;
    let name = format!(
        "python-grpc-{GRPC_VERSION}-{}-kubelet-{KUBELET_VERSION}",
        abi.trim()
    );
    let directory = workspace::cache()?.join("programs").join(name);
    if !directory.exists() {
        headline("fetch Python's gRPC and the device plugin API");
        fill(&directory, fetch).context("fetch Python's gRPC")?;
    }
    Ok(directory)
}

fn fetch(directory: &Path) -> Result<()> {
    let mut pip = python();
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--root-user-action=ignore",
    ])
    .arg("--target")
    .arg(directory)
    .args(["grpcio", "grpcio-tools"].map(|it| format!("{it}=={GRPC_VERSION}")));
    progress::run("pip install", &mut pip)?;
    let proto = directory.join(NAME).with_extension("proto");
    fs::copy(kubelet_module()?.join(PROTO), &proto)
        .with_context(|| format!("copy {PROTO} of {KUBELET}"))?;
    let mut protoc = python();
    protoc
        .args([
            "-m",
            "grpc_tools.protoc",
            "--proto_path=.",
            "--python_out=.",
        ])
        .arg("--grpc_python_out=.")
        // Its name must begin with a path given above.
        .arg(Path::new(NAME).with_extension("proto"))
        .env("PYTHONPATH", directory)
        .current_dir(directory);
    progress::run("generate Python's device plugin API", &mut protoc)?;
    Ok(())
}

fn python() -> Command {
    Command::new("python3")
}

/// Where Go keeps the module, which it fetches and verifies first.
fn kubelet_module() -> Result<PathBuf> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Module {
        dir: PathBuf,
    }
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json"])
        .arg(format!("{KUBELET}@{KUBELET_VERSION}"))
        // Not those of a module that this one may stand in.
        .current_dir(env::temp_dir());
    let answer = progress::capture("go mod download", &mut go)?;
    let module: Module = serde_json::from_str(&answer).context("go says where the module is")?;
    Ok(module.dir)
}
