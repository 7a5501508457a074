//! What runs in the containers. Each prints what it did, line by line, and `done` at the end.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Part of a program that does nothing but begin and end.
const NOTHING: &str = "/bin/true";

/// Where no program is: starting it clones a process, which ends when it finds nothing to run.
const NOWHERE: &str = "/nonexistent";

pub(crate) fn run(args: &[&str]) -> Result<()> {
    match args {
        // Waits until the file GATE is there, then starts N children one by one, PAUSE ms apart,
        // that allocate BYTES; prints the pid of each that was killed.
        ["kills", gate, n, pause, bytes] => kills(gate, n.parse()?, millis(pause)?, bytes)?,
        // Waits for GATE, then takes RATE bytes a second until it is killed.
        ["leak", gate, rate] => leak(gate, rate.parse()?)?,
        // Touches BYTES and waits for a minute.
        ["hold", bytes] => {
            let held = std::hint::black_box(vec![1_u8; bytes.parse()?]);
            println!("ready");
            thread::sleep(Duration::from_mins(1));
            drop(held);
        }
        ["eat", bytes] => eat(bytes.parse()?),
        // N children that run a program, PAUSE ms apart.
        ["spawns", n, pause] => spawns(n.parse()?, millis(pause)?)?,
        // For each file N, from 0 on, that comes to be in DIR, children that run a program one by one for half
        // a second; prints how many. Ends with the file `end`.
        ["rounds", dir] => rounds(Path::new(dir))?,
        // RATE children a second that run nothing, from THREADS threads, for SECONDS.
        ["storm", rate, threads, seconds] => {
            storm(rate.parse()?, threads.parse()?, seconds.parse()?)?;
        }
        // N cgroups made and removed below the own one at the mount of memory.
        ["cgroups", mount, n] => cgroups(Path::new(mount), n.parse()?)?,
        _ => bail!("no such load: {}", args.join(" ")),
    }
    println!("done");
    Ok(())
}

fn millis(text: &str) -> Result<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

fn kills(gate: &str, n: usize, pause: Duration, bytes: &str) -> Result<()> {
    let program = std::env::current_exe()?;
    println!("ready");
    while !Path::new(gate).exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let mut out = Vec::new();
    for _ in 0..n {
        let mut child = Command::new(&program)
            .args(["load", "eat", bytes])
            .stdin(Stdio::null())
            .spawn()?;
        if child.wait()?.signal() == Some(9) {
            writeln!(out, "{}", child.id())?;
        }
        thread::sleep(pause);
    }
    std::io::stdout().write_all(&out)?;
    Ok(())
}

fn leak(gate: &str, rate: u64) -> Result<()> {
    const STEP: u64 = 64 << 10;
    let mut held = Vec::new();
    println!("ready");
    while !Path::new(gate).exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let began = Instant::now();
    let mut taken = 0;
    loop {
        let due = rate * u64::try_from(began.elapsed().as_micros())? / 1_000_000;
        while taken < due {
            held.push(std::hint::black_box(vec![1_u8; usize::try_from(STEP)?]));
            taken += STEP;
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// Touches every page.
fn eat(bytes: usize) {
    drop(std::hint::black_box(vec![1_u8; bytes]));
}

fn spawns(n: usize, pause: Duration) -> Result<()> {
    for _ in 0..n {
        Command::new(NOTHING).status()?;
        thread::sleep(pause);
    }
    Ok(())
}

fn rounds(dir: &Path) -> Result<()> {
    println!("ready");
    for round in 0_u32.. {
        let file = dir.join(round.to_string());
        while !file.exists() {
            if dir.join("end").exists() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let (began, mut n) = (Instant::now(), 0_u32);
        while began.elapsed() < Duration::from_millis(500) {
            Command::new(NOTHING).status()?;
            n += 1;
        }
        println!("{n}");
    }
    Ok(())
}

/// Prints how many forks there were, and in how many microseconds.
fn storm(rate: u32, threads: u32, seconds: u64) -> Result<()> {
    let length = Duration::from_secs(seconds);
    let pause = Duration::from_secs(1) * threads / rate;
    let started = Instant::now();
    let forks = |_| {
        thread::spawn(move || {
            let mut n = 0_u32;
            while started.elapsed() < length {
                if started.elapsed() < pause * n {
                    std::hint::spin_loop();
                    continue;
                }
                // It fails, as is meant.
                let _ = Command::new(NOWHERE).spawn();
                n += 1;
            }
            n
        })
    };
    let threads: Vec<_> = (0..threads).map(forks).collect();
    let mut n_forks = 0;
    for thread in threads {
        n_forks += thread.join().ok().context("a thread panicked")?;
    }
    println!("{n_forks} {}", started.elapsed().as_micros());
    Ok(())
}

fn cgroups(mount: &Path, n: usize) -> Result<()> {
    let own = own_cgroup(mount)?;
    for _ in 0..n {
        let dir = own.join("nested");
        fs::create_dir(&dir)?;
        fs::remove_dir(&dir)?;
    }
    Ok(())
}

fn own_cgroup(mount: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let path = text
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .filter(|(controllers, _)| controllers.is_empty() || *controllers == "memory")
        .max_by_key(|(controllers, _)| controllers.len());
    let (_, path) = path.context("no memory cgroup")?;
    Ok(mount.join(path.trim_start_matches('/')))
}
