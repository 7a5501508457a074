//! Where sources, build results and cached tools are.

use std::env;
use std::path::{Path, PathBuf};

use crate::{LINKER_LLVM, LINKER_VERSION};

/// The directories of one checkout.
#[derive(Clone, Debug)]
pub struct Layout {
    /// `ebpf/`, a workspace of its own.
    pub sources: PathBuf,
    /// The target directory of the eBPF build, the same for every profile and verb. In `OUT_DIR`
    /// each profile and each set of flags would build `core` again: a minute and half a gigabyte.
    pub target: PathBuf,
}

impl Layout {
    /// The layout of the checkout at `workspace`. `CARGO_TARGET_DIR` moves the results as it moves
    /// those of cargo.
    pub fn of(workspace: &Path) -> Self {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(
            || workspace.join("target"),
            |it| workspace.join(PathBuf::from(it)),
        );
        Self {
            sources: workspace.join("ebpf"),
            target: target.join("bpf"),
        }
    }

    /// The object `name` as the linker leaves it, with what a debugger reads.
    pub(crate) fn linked(&self, name: &str) -> PathBuf {
        self.target
            .join(crate::compile::TARGET)
            .join("release")
            .join(name)
    }

    /// The object `name` as the agent embeds it.
    pub fn object(&self, name: &str) -> PathBuf {
        self.target.join("objects").join(format!("{name}.o"))
    }
}

/// Tools built from source once per machine: `$XDG_CACHE_HOME/ballast/tools`, by default
/// `~/.cache/ballast/tools`. Outside `target/`, so that `cargo clean` keeps them. `None` without a
/// home directory.
pub fn tools_dir() -> Option<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|it| it.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("ballast/tools"))
}

/// The linker that `cargo xtask setup` builds; its directory names all that its build depends on.
/// `None` without a home directory.
pub fn cached_linker() -> Option<PathBuf> {
    let directory = format!("bpf-linker-{LINKER_VERSION}-llvm-{LINKER_LLVM}");
    Some(tools_dir()?.join(directory).join("bin/bpf-linker"))
}
