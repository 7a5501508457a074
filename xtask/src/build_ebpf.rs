//! `cargo xtask build-ebpf`: the eBPF objects alone.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ebpf_build::{Layout, OBJECTS, PREBUILT_VARIABLE};

use crate::progress::{self, headline, note};
use crate::{setup, workspace};

/// Build the eBPF objects of ebpf/
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also copy the objects here, for builds with BALLAST_EBPF_OBJECTS set to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let toolchain = setup::toolchain()?;
    headline("build the eBPF objects");
    note(format_args!(
        "{}, {}",
        toolchain.version,
        toolchain.linker.display()
    ));
    let layout = Layout::of(&workspace::root());
    let objects = progress::during("build the eBPF objects", || {
        ebpf_build::build(&toolchain, &layout)
    })?;
    for (name, object) in OBJECTS.iter().zip(&objects) {
        let size = fs::metadata(object)?.len();
        println!("{name}: {} ({size} bytes)", object.display());
    }
    if let Some(out) = &arguments.out {
        fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
        for (name, object) in OBJECTS.iter().zip(&objects) {
            let to = out.join(format!("{name}.o"));
            fs::copy(object, &to).with_context(|| format!("write {}", to.display()))?;
        }
        println!(
            "copied; use them with {PREBUILT_VARIABLE}={}",
            out.display()
        );
    }
    Ok(())
}
