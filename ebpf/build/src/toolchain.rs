//! The search for a compiler that can build `core` for BPF, and for the linker.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths;

/// The version that `cargo xtask setup` builds: the newest that fits Rust 1.95.
pub const LINKER_VERSION: &str = "0.13.0";

/// The LLVM that the cached linker is built with. It reads the bitcode of compilers up to this
/// major version.
pub const LINKER_LLVM: u32 = 22;

/// What it takes to build `ebpf/`.
#[derive(Clone, Debug)]
pub struct Toolchain {
    pub rustc: PathBuf,
    /// A cargo that goes with `rustc`, or else the caller's.
    pub cargo: PathBuf,
    pub linker: PathBuf,
    /// First line of `rustc --version`.
    pub version: String,
}

/// Why no tool chain was found: every place that was looked at.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Missing {
    /// Compilers that were looked at and refused. Empty when one was found.
    pub compilers: Vec<Rejected>,
    /// Linkers that were looked at and refused. Empty when one was found.
    pub linkers: Vec<Rejected>,
}

/// One place that was looked at, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Rejected {
    pub what: String,
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (tool, rejected) in [
            ("compiler with library source", &self.compilers),
            ("bpf-linker", &self.linkers),
        ] {
            if rejected.is_empty() {
                continue;
            }
            write!(out, "{separator}no {tool}")?;
            let mut mark = " (";
            for it in rejected {
                write!(out, "{mark}{}: {}", it.what, it.why)?;
                mark = "; ";
            }
            write!(out, ")")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Finds the tool chain. Compilers in order: rustup's nightly, the compiler that cargo uses now, a
/// system compiler at `/usr/bin/rustc` (Debian's rustc-web with rust-web-src); the first whose
/// library source is installed and whose LLVM the linker understands. Linkers: the cached one,
/// whose version is known, then `PATH`.
///
/// Starts a few processes; no more than 0.2 s.
pub fn find() -> Result<Toolchain, Missing> {
    let mut missing = Missing {
        compilers: Vec::new(),
        linkers: Vec::new(),
    };
    let linker = first(linkers(), &mut missing.linkers, check_linker);
    let newest_llvm = linker.as_ref().and_then(|(it, ())| linker_llvm(it));
    let compiler = first(compilers(), &mut missing.compilers, |it| {
        check_compiler(it, newest_llvm)
    });
    let (Some((linker, ())), Some((rustc, version))) = (linker, compiler) else {
        return Err(missing);
    };
    Ok(Toolchain {
        cargo: cargo_for(&rustc),
        rustc,
        linker,
        version,
    })
}

/// The first candidate that passes `check`; clears `rejected` when there is one.
fn first<T>(
    candidates: Vec<(String, Option<PathBuf>)>,
    rejected: &mut Vec<Rejected>,
    check: impl Fn(&Path) -> Result<T, String>,
) -> Option<(PathBuf, T)> {
    for (what, path) in candidates {
        let why = match path {
            None => "not found".to_owned(),
            Some(path) => match check(&path) {
                Ok(facts) => {
                    rejected.clear();
                    return Some((path, facts));
                }
                Err(why) => why,
            },
        };
        rejected.push(Rejected { what, why });
    }
    None
}

fn compilers() -> Vec<(String, Option<PathBuf>)> {
    // `rustup which` never installs a tool chain, `rustc +nightly` can.
    let nightly =
        output_of(Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"]))
            .ok()
            .map(PathBuf::from);
    let current = env::var_os("RUSTC").map_or_else(|| in_path("rustc"), |it| Some(it.into()));
    let system = Path::new("/usr/bin/rustc");
    let mut found = vec![
        ("rustup nightly".to_owned(), nightly),
        ("current rustc".to_owned(), current.clone()),
    ];
    if current.as_deref() != Some(system) {
        found.push((
            system.display().to_string(),
            system.exists().then(|| system.to_owned()),
        ));
    }
    found
}

/// The first line of `rustc --version` when `rustc` can build `core` for the linker.
fn check_compiler(rustc: &Path, newest_llvm: Option<u32>) -> Result<String, String> {
    let sysroot = output_of(compiler_command(rustc).args(["--print", "sysroot"]))?;
    let core = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if !core.exists() {
        return Err(format!("no library source in {sysroot}"));
    }
    let verbose = output_of(compiler_command(rustc).arg("-vV"))?;
    let llvm = verbose
        .lines()
        .find_map(|line| {
            line.strip_prefix("LLVM version: ")?
                .split('.')
                .next()?
                .parse::<u32>()
                .ok()
        })
        .ok_or("its LLVM version is not known")?;
    match newest_llvm {
        Some(newest) if llvm > newest => Err(format!(
            "its LLVM {llvm} is newer than the linker's {newest}"
        )),
        _ => Ok(verbose.lines().next().unwrap_or_default().to_owned()),
    }
}

fn compiler_command(rustc: &Path) -> Command {
    let mut command = Command::new(rustc);
    // Without this, rustup's proxy for `rustc` may download the tool chain a file names.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// The cargo next to `rustc`; else the one that runs this, whose version must be close.
fn cargo_for(rustc: &Path) -> PathBuf {
    let sibling = rustc.with_file_name("cargo");
    if sibling.exists() {
        return sibling;
    }
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

fn linkers() -> Vec<(String, Option<PathBuf>)> {
    let mut found = Vec::new();
    if let Some(cached) = paths::cached_linker() {
        found.push((
            cached.display().to_string(),
            cached.exists().then(|| cached.clone()),
        ));
    }
    found.push(("PATH".to_owned(), in_path("bpf-linker")));
    found
}

/// That it starts: it loads LLVM's library, which an upgrade of the system may have removed.
fn check_linker(linker: &Path) -> Result<(), String> {
    output_of(Command::new(linker).arg("--version")).map(drop)
}

/// `None` for a linker that we did not build: it does not say what it is built with.
fn linker_llvm(linker: &Path) -> Option<u32> {
    (Some(linker) == paths::cached_linker().as_deref()).then_some(LINKER_LLVM)
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|it| it.join(name))
        .find(|it| it.is_file())
}

/// Standard output without the last line end, or why there is none.
fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_owned();
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{}: {}",
        file_name(&name),
        stderr.lines().next().unwrap_or("failed").trim()
    ))
}

fn file_name(program: &OsStr) -> String {
    Path::new(program)
        .file_name()
        .unwrap_or(program)
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_chain_names_every_place_that_was_looked_at() {
        let rejected = |what: &str, why: &str| Rejected {
            what: what.into(),
            why: why.into(),
        };
        let missing = Missing {
            compilers: vec![rejected("a", "no source"), rejected("b", "not found")],
            linkers: vec![rejected("PATH", "not found")],
        };
        assert_eq!(
            missing.to_string(),
            "no compiler with library source (a: no source; b: not found), \
             no bpf-linker (PATH: not found)"
        );
    }

    #[test]
    fn the_first_good_candidate_wins_and_clears_the_complaints() {
        let candidates = vec![
            ("absent".to_owned(), None),
            ("bad".to_owned(), Some(PathBuf::from("/bad"))),
            ("good".to_owned(), Some(PathBuf::from("/good"))),
        ];
        let mut rejected = Vec::new();
        let check = |it: &Path| {
            if it == Path::new("/good") {
                Ok(())
            } else {
                Err("no".into())
            }
        };
        assert_eq!(
            first(candidates, &mut rejected, check),
            Some((PathBuf::from("/good"), ()))
        );
        assert!(rejected.is_empty());
    }

    #[test]
    fn every_refused_candidate_is_kept() {
        let candidates = vec![
            ("absent".to_owned(), None),
            ("bad".to_owned(), Some(PathBuf::from("/bad"))),
        ];
        let mut rejected = Vec::new();
        let check = |_: &Path| Err::<(), _>("no".to_owned());
        assert_eq!(first(candidates, &mut rejected, check), None);
        let whys: Vec<_> = rejected.iter().map(|it| it.why.as_str()).collect();
        assert_eq!(whys, ["not found", "no"]);
    }
}
