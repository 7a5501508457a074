//! One run of the emulator: the guest is built, boots, runs the tests and switches itself off.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::debian::{UnpackedEmulator, UnpackedKernel};
use super::initramfs::Archive;
use super::{Programs, cache};
use crate::progress::{self, Deadline, Stdout, note};
use crate::test::again::Ran;
use crate::test::busy;

/// Until the first word of the tests. Emulated boots take 5-15 s; a busy machine ten times that.
const BOOT_DEADLINE: Duration = Duration::from_mins(3);

/// From the start of the emulator to its end.
const DEADLINE: Duration = Duration::from_mins(90);
/// The same for all tests, and for those at their full size.
const LONG_DEADLINE: Duration = Duration::from_hours(2);

/// What is about numbers is shrunk by this, unless a run is at full size: an emulated machine takes twenty
/// times as long as a real one.
const SCALE: &str = "0.05";

/// Lines of the kernel's log shown when the guest fails.
const LOG_TAIL: usize = 40;

/// The guest's memory, MiB, in two NUMA nodes of equal size.
const MEMORY_MIB: u32 = 3072;

const INIT: &str = include_str!("init.sh");

/// The lines that frame what the tests print. Made anew for each run, so that no test can print
/// them.
struct Markers {
    start: String,
    result: String,
}

/// Where the controllers of a guest are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroups {
    V1,
    V2,
}

/// How the guest's half of a run ended.
#[derive(Debug, PartialEq, Eq)]
struct GuestReport {
    /// Seconds since the kernel started when the tests did, as the guest counts them.
    booted: String,
    release: String,
    status: i32,
}

/// Longer than any run takes.
const LEFT_AFTER: Duration = Duration::from_hours(24);

/// Boots `kernel` and runs the programs in it. What the tests print is shown as it comes.
pub(super) fn run(
    emulator: &UnpackedEmulator,
    name: &str,
    kernel: &UnpackedKernel,
    cgroups: Cgroups,
    programs: &Programs,
    arguments: &[String],
) -> Result<Ran> {
    let runs = cache()?.join("run");
    remove_left(&runs);
    let directory = runs.join(format!("{name}-{}", process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let ran = run_in(
        &directory, emulator, name, kernel, cgroups, programs, arguments,
    );
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
    ran
}

/// Removes what runs have left that were ended in the middle: directories whose names end with the pid of one that is no
/// more, if nobody has touched them for a day. One that runs where pids are others may share the cache.
fn remove_left(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name().display().to_string();
        let pid = name.rsplit('-').next().unwrap_or_default();
        let touched = entry.metadata().and_then(|it| it.modified());
        let is_old = touched.is_ok_and(|it| it.elapsed().is_ok_and(|age| age > LEFT_AFTER));
        if is_old && !Path::new("/proc").join(pid).exists() {
            // What cannot be removed now is tried again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn run_in(
    directory: &Path,
    emulator: &UnpackedEmulator,
    name: &str,
    kernel: &UnpackedKernel,
    cgroups: Cgroups,
    programs: &Programs,
    arguments: &[String],
) -> Result<Ran> {
    let markers = Markers::new();
    let initramfs = directory.join("initramfs");
    write_initramfs(
        &initramfs,
        emulator,
        &init(name, arguments, programs.is_full, &markers),
        programs,
    )
    .with_context(|| format!("write {}", initramfs.display()))?;
    let log = directory.join("kernel.log");
    note(format_args!("boot Linux {}", kernel.release));
    let end = match programs.is_short {
        true => DEADLINE,
        false => LONG_DEADLINE,
    };
    let [boot, end] = [BOOT_DEADLINE, end].map(|it| busy::deadline(it, programs.busy));
    let deadline = Deadline {
        first_output: Some(boot),
        end: Some(end),
    };
    let mut command = command(emulator, kernel, cgroups, &initramfs, &log);
    let finished = progress::watch(
        &format!("kernel {name}"),
        &mut command,
        Stdout::Show,
        deadline,
    )?;
    let Some(report) = markers.find(&finished.stdout) else {
        note(format_args!("the end of the kernel's log:"));
        for line in tail(&log) {
            note(line);
        }
        bail!(
            match (finished.stdout.contains(&markers.start), finished.timed_out) {
                (false, false) => {
                    format!("did not boot: the emulator ended with {}", finished.status)
                }
                (false, true) => format!("did not boot within {} s", boot.as_secs()),
                (true, false) => "the machine went down during the tests".to_owned(),
                (true, true) => format!("stopped after {} minutes", end.as_secs() / 60),
            },
        );
    };
    ensure!(
        report.release == kernel.release,
        "booted {}, not {}",
        report.release,
        kernel.release
    );
    Ok(Ran {
        output: finished.stdout,
        // The guest has shown its log itself.
        fault: (report.status != 0)
            .then(|| format!("the tests ended with status {}", report.status)),
        about: report.to_string(),
    })
}

impl std::fmt::Display for GuestReport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Linux {}, booted in {} s", self.release, self.booted)
    }
}

impl Markers {
    fn new() -> Self {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |it| it.as_nanos());
        let nonce = format!("{nanos:x}-{:x}", process::id());
        Self {
            start: format!("ballast-vm-start-{nonce}"),
            result: format!("ballast-vm-result-{nonce}"),
        }
    }

    /// `None` when the guest did not come to its end.
    fn find(&self, output: &str) -> Option<GuestReport> {
        let after = |marker: &str| {
            output
                .lines()
                .find_map(|line| Some(line.trim().strip_prefix(marker)?.trim().to_owned()))
        };
        let start = after(&self.start)?;
        let (booted, release) = start.split_once(' ')?;
        Some(GuestReport {
            booted: booted.to_owned(),
            release: release.to_owned(),
            status: after(&self.result)?.parse().ok()?,
        })
    }
}

fn init(kernel: &str, arguments: &[String], is_full: bool, markers: &Markers) -> String {
    let scale = if is_full { "1" } else { SCALE };
    let arguments: String = arguments
        .iter()
        .map(|it| format!(" {}", quote(it)))
        .collect();
    INIT.replace("@START@", &markers.start)
        .replace("@RESULT@", &markers.result)
        .replace("'@KERNEL@'", &quote(kernel))
        .replace("@SCALE@", scale)
        .replace(" @ARGUMENTS@", &arguments)
}

/// As one word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn write_initramfs(
    path: &Path,
    emulator: &UnpackedEmulator,
    init: &str,
    programs: &Programs,
) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut archive = Archive::new(BufWriter::new(File::create(path)?));
    for directory in ["bin", "dev", "opt"] {
        archive.directory(directory)?;
    }
    // Open before anything is mounted: where `/init` itself can complain.
    archive.character_device("dev/console", (5, 1))?;
    archive.program("bin/busybox", &read(&emulator.busybox())?)?;
    archive.program("opt/tests", &read(&programs.tests)?)?;
    for (name, program) in [
        ("opt/ballast", &programs.agent),
        ("opt/hog", &programs.hog),
        ("opt/device_plugin", &programs.plugin),
    ] {
        if let Some(program) = program {
            archive.program(name, &read(program)?)?;
        }
    }
    archive.program("init", init.as_bytes())?;
    archive.finish()?;
    Ok(())
}

/// Two NUMA nodes with one core of two threads each, no disk, no network, no screen. The processor
/// is the plainest of Intel's: with those of AMD, and with `max`, Linux before 6.12 finds no sibling
/// threads.
fn command(
    emulator: &UnpackedEmulator,
    kernel: &UnpackedKernel,
    cgroups: Cgroups,
    initramfs: &Path,
    log: &Path,
) -> Command {
    let root = &emulator.root;
    // Its own loader and libraries, which need not be this machine's.
    let libraries = root.join("lib/x86_64-linux-gnu");
    let more = root.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .arg(join(&[&libraries, &more]))
        .arg(root.join("usr/bin/qemu-system-x86_64"))
        .env("QEMU_MODULE_DIR", more.join("qemu"));
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(root.join(firmware));
    }
    let node_mib = MEMORY_MIB / 2;
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
    ]);
    command.args([
        "-machine",
        "q35",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "Nehalem",
    ]);
    command.args(["-smp", "4,sockets=2,cores=1,threads=2"]);
    command.args(["-m", &format!("{MEMORY_MIB}M")]);
    for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
        command.args([
            "-object",
            &format!("memory-backend-ram,id=node{node},size={node_mib}M"),
        ]);
        command.args([
            "-numa",
            &format!("node,nodeid={node},cpus={cpus},memdev=node{node}"),
        ]);
    }
    command.args(["-numa", "dist,src=0,dst=1,val=20"]);
    command
        .arg("-serial")
        .arg(format!("file:{}", log.display()));
    command.args([
        "-chardev",
        "stdio,id=tests,signal=on",
        "-serial",
        "chardev:tests",
    ]);
    command
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs);
    // What mounts the hierarchies goes by it.
    let cgroups = match cgroups {
        Cgroups::V1 => "",
        Cgroups::V2 => " cgroup_no_v1=all",
    };
    let append = format!("console=ttyS0 panic=-1 psi=1 quiet{cgroups}");
    command.args(["-append", &append]);
    command
}

fn join(paths: &[&PathBuf]) -> String {
    paths
        .iter()
        .map(|it| it.display().to_string())
        .collect::<Vec<_>>()
        .join(":")
}

fn tail(log: &Path) -> Vec<String> {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL)..]
        .iter()
        .map(|it| it.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markers() -> Markers {
        Markers {
            start: "start-1".to_owned(),
            result: "result-1".to_owned(),
        }
    }

    #[test]
    fn the_report_is_between_the_markers() {
        let output = "start-1 4.21 6.12.0\r\ntest result: ok. 3 passed\r\n\r\nresult-1 101\r\n";
        let expected = GuestReport {
            booted: "4.21".into(),
            release: "6.12.0".into(),
            status: 101,
        };
        assert_eq!(markers().find(output), Some(expected));
    }

    #[test]
    fn without_a_result_line_there_is_no_report() {
        for output in [
            "",
            "start-1 4.21 6.12.0\n",
            "start-1 4.21 6.12.0\nresult-2 0\n",
        ] {
            assert_eq!(markers().find(output), None, "{output:?}");
        }
    }

    #[test]
    fn the_script_gets_the_arguments_as_they_are() {
        let arguments = ["--exact", "it's"].map(str::to_owned);
        let script = init("6.12", &arguments, false, &markers());
        assert!(
            script.contains("\n/opt/tests '--exact' 'it'\\''s'\n"),
            "{script}"
        );
        assert!(script.contains("BALLAST_VM='6.12'\n"), "{script}");
        assert!(!script.contains("@"), "{script}");
    }
}
