//! A program that misbehaves on demand, for the host lane and the demo of OOM kills.
//!
//! Sizes are bytes. Every mode ends by itself when nobody kills it.

#![expect(
    clippy::disallowed_methods,
    reason = "it is a workload, and uses the system as workloads do"
)]

use std::env;
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

const USAGE: &str = "usage: hog MODE
  alloc BYTES            allocate and touch, then wait to be killed
  hold BYTES             the same for an hour
  child BYTES            a child process does, this one goes on when it is dead
  thread BYTES           a thread does
  leaderless BYTES       a thread does when the main thread has exited
  two BYTES              two children do at the same time
  group N BYTES          N idle children, then this process allocates
  nested MOUNT BYTES     a child does in a cgroup below the own one in the hierarchy at MOUNT
  deep MOUNT BYTES       the same twenty levels below it, in cgroups that stay
  burst N BYTES          N children, one after another
  lone FILE MS CODE      notes its start in FILE, ends with CODE after MS milliseconds (0: never);
                         notes in FILE when another one runs at the same time
  forks N                N children that end at once; prints how many ended well
  bomb                   children that make children, without an end: only below a pids.max
  in N PROCS.. MODE      joins N cgroups by their cgroup.procs, then does MODE
  without-programs PROGRAM [ARGUMENT..]
                         becomes a program to which the kernel gives no eBPF
  capabilities NAMES PROGRAM [ARGUMENT..]
                         becomes a program that has these alone, such as BPF,PERFMON
  own-namespaces PROGRAM [ARGUMENT..]
                         becomes a program whose cgroup and mount namespaces are its own
  descriptors N PROGRAM [ARGUMENT..]
                         becomes a program that may have N open files
  leak RATE              takes RATE bytes a second, for ever
  pipes RATE             the same as data in pipes, which is memory of the kernel
  wave BYTES MS          takes BYTES and gives them back, by turns, MS milliseconds each
  threads N              N threads, one every 5 ms, that wait
  bomb N                 N children, one every 5 ms, that wait
  cache FILE BYTES       writes a file and reads it again and again
  fill FILE RATE         writes RATE bytes a second to a file
  nest N                 N directories, each in the one before
  hole BYTES             makes standard output so long, without writing
  files DIR RATE         makes RATE empty files a second";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("hog: {message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// No program that this one becomes has the capability.
fn give_up(capability: CapabilitySet) -> Result<(), String> {
    remove_capability_from_bounding_set(capability)
        .map_err(|e| format!("capability {capability:?}: {e}"))
}

/// Returns, with the reason, only where that does not work.
fn become_program(program: &str, arguments: &[&str]) -> String {
    let error = Command::new(program).args(arguments).exec();
    format!("{program}: {error}")
}

fn run(args: &[&str]) -> Result<ExitCode, String> {
    match args {
        ["alloc", bytes] => allocate(number(bytes)?),
        ["hold", bytes] => {
            let _held = touch(number(bytes)?);
            thread::sleep(Duration::from_secs(3600));
        }
        ["child", bytes] => {
            wait(spawn(&["alloc", bytes])?)?;
            thread::sleep(Duration::from_secs(3600));
        }
        ["thread", bytes] => {
            let bytes = number(bytes)?;
            let thread = thread::spawn(move || allocate(bytes));
            thread
                .join()
                .map_err(|_panic| "the thread panicked".to_owned())?;
        }
        ["leaderless", bytes] => {
            let bytes = number(bytes)?;
            let main = rustix::thread::gettid();
            thread::spawn(move || {
                // A main thread that has exited is a zombie as long as another one goes on.
                let state = format!("/proc/self/task/{main}/stat");
                while fs::read_to_string(&state).is_ok_and(|it| !it.contains(") Z ")) {
                    thread::sleep(Duration::from_millis(1));
                }
                allocate(bytes)
            });
            #[expect(unsafe_code, reason = "no library ends the main thread alone")]
            // SAFETY: nothing of this thread is used any more: the other one owns what it takes.
            unsafe {
                nix::libc::syscall(nix::libc::SYS_exit, 0);
            }
        }
        ["two", bytes] => {
            let children = [spawn(&["alloc", bytes])?, spawn(&["alloc", bytes])?];
            for child in children {
                wait(child)?;
            }
            thread::sleep(Duration::from_secs(3600));
        }
        ["group", n, bytes] => {
            let mut idle = Vec::new();
            for _ in 0..number(n)? {
                idle.push(spawn(&["alloc", "4096"])?);
            }
            thread::sleep(Duration::from_millis(200));
            allocate(number(bytes)?);
            for mut child in idle {
                child.kill().map_err(|e| e.to_string())?;
                wait(child)?;
            }
        }
        ["nested", mount, bytes] => {
            let own = own_cgroup(Path::new(mount))?;
            let nested = own.join("nested");
            fs::create_dir_all(&nested).map_err(|e| format!("{}: {e}", nested.display()))?;
            let procs = nested.join("cgroup.procs");
            wait(spawn(&["join-alloc", &procs.to_string_lossy(), bytes])?)?;
            // The event must be attributed although the cgroup is gone by then.
            fs::remove_dir(&nested).map_err(|e| format!("{}: {e}", nested.display()))?;
            thread::sleep(Duration::from_secs(3600));
        }
        ["deep", mount, bytes] => {
            let deep = own_cgroup(Path::new(mount))?.join("deep/".repeat(20));
            fs::create_dir_all(&deep).map_err(|e| format!("{}: {e}", deep.display()))?;
            let procs = deep.join("cgroup.procs");
            wait(spawn(&["join-alloc", &procs.to_string_lossy(), bytes])?)?;
            thread::sleep(Duration::from_secs(3600));
        }
        ["join-alloc", procs, bytes] => {
            fs::write(procs, "0").map_err(|e| format!("{procs}: {e}"))?;
            allocate(number(bytes)?);
        }
        ["burst", n, bytes] => {
            for _ in 0..number(n)? {
                wait(spawn(&["alloc", bytes])?)?;
            }
        }
        ["lone", file, millis, code] => return lone(Path::new(file), number(millis)?, code),
        ["forks", n] => {
            let mut n_good = 0;
            for _ in 0..number(n)? {
                n_good += usize::from(wait(spawn(&["nothing"])?)?);
            }
            println!("{n_good}");
        }
        // Refused once there are as many as may be, and tried again.
        ["bomb"] => loop {
            if spawn(&["bomb"]).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
        },
        ["nothing"] => {}
        ["nest", n] => {
            for _ in 0..number(n)? {
                let below = fs::create_dir("d").and_then(|()| env::set_current_dir("d"));
                below.map_err(|e| format!("nest: {e}"))?;
            }
        }
        ["hole", bytes] => {
            let bytes = number(bytes)? as u64;
            let output = std::io::stdout().as_fd().try_clone_to_owned();
            let cut = output.and_then(|it| File::from(it).set_len(bytes));
            cut.map_err(|e| format!("hole: {e}"))?;
        }
        ["in", n, rest @ ..] => {
            let (cgroups, mode) = rest
                .split_at_checked(number(n)?)
                .ok_or_else(|| format!("fewer than {n} cgroups"))?;
            for procs in cgroups {
                fs::write(procs, "0").map_err(|e| format!("{procs}: {e}"))?;
            }
            return run(mode);
        }
        ["without-programs", program, arguments @ ..] => {
            for capability in [
                CapabilitySet::SYS_ADMIN,
                CapabilitySet::BPF,
                CapabilitySet::PERFMON,
            ] {
                give_up(capability)?;
            }
            return Err(become_program(program, arguments));
        }
        ["capabilities", names, program, arguments @ ..] => {
            let kept: Vec<&str> = names.split(',').collect();
            let all = CapabilitySet::all();
            for (_, capability) in all.iter_names().filter(|(name, _)| !kept.contains(name)) {
                give_up(capability)?;
            }
            return Err(become_program(program, arguments));
        }
        ["own-namespaces", program, arguments @ ..] => {
            let flags = CloneFlags::CLONE_NEWCGROUP | CloneFlags::CLONE_NEWNS;
            unshare(flags).map_err(|e| format!("namespaces: {e}"))?;
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            mount::<str, _, str, str>(None, "/", None, private, None)
                .map_err(|e| format!("mounts of its own: {e}"))?;
            return Err(become_program(program, arguments));
        }
        ["descriptors", n, program, arguments @ ..] => {
            let n = number(n)? as u64;
            setrlimit(Resource::RLIMIT_NOFILE, n, n).map_err(|e| format!("{n} open files: {e}"))?;
            return Err(become_program(program, arguments));
        }
        ["leak", rate] => {
            let mut held = Vec::new();
            each_tick(number(rate)?, |bytes| {
                held.push(touch(bytes));
                Ok(())
            })?;
        }
        ["pipes", rate] => {
            let mut pipes = Pipes::default();
            each_tick(number(rate)?, |bytes| pipes.put(bytes))?;
        }
        ["wave", bytes, millis] => {
            let (bytes, turn) = (
                number(bytes)?,
                Duration::from_millis(number(millis)? as u64),
            );
            loop {
                let held = touch(bytes);
                thread::sleep(turn);
                drop(held);
                thread::sleep(turn);
            }
        }
        ["threads", n] => {
            let mut threads = Vec::new();
            for _ in 0..number(n)? {
                let waiting = thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn(|| thread::sleep(Duration::from_secs(60)));
                threads.push(waiting.map_err(|e| e.to_string())?);
                thread::sleep(Duration::from_millis(5));
            }
            thread::sleep(Duration::from_secs(60));
        }
        ["bomb", n] => {
            let mut children = Vec::new();
            for _ in 0..number(n)? {
                children.push(spawn(&["alloc", "4096"])?);
                thread::sleep(Duration::from_millis(5));
            }
            for child in children {
                wait(child)?;
            }
        }
        ["cache", file, bytes] => {
            let failed = |e: std::io::Error| format!("{file}: {e}");
            let mut ones = std::io::repeat(1).take(number(bytes)? as u64);
            let mut to = File::create(file).map_err(failed)?;
            std::io::copy(&mut ones, &mut to).map_err(failed)?;
            loop {
                let mut from = File::open(file).map_err(failed)?;
                std::io::copy(&mut from, &mut std::io::sink()).map_err(failed)?;
                thread::sleep(Duration::from_millis(200));
            }
        }
        ["fill", file, rate] => {
            let failed = |e: std::io::Error| format!("{file}: {e}");
            let mut to = File::create(file).map_err(failed)?;
            each_tick(number(rate)?, |bytes| {
                to.write_all(&vec![1; bytes]).map_err(failed)
            })?;
        }
        ["files", dir, rate] => {
            let mut n = 0;
            each_tick(number(rate)?, |n_files| {
                for _ in 0..n_files {
                    n += 1;
                    let path = Path::new(dir).join(n.to_string());
                    fs::write(&path, "").map_err(|e| format!("{}: {e}", path.display()))?;
                }
                Ok(())
            })?;
        }
        _ => return Err(format!("no such mode: {}", args.join(" "))),
    }
    Ok(ExitCode::SUCCESS)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|e| format!("{text:?}: {e}"))
}

/// Touches every page in small steps, then holds on to them for a minute.
fn allocate(bytes: usize) {
    let _held = touch(bytes);
    thread::sleep(Duration::from_secs(60));
}

/// Calls `act` with its share of a rate per second, for ever; what it comes late for it catches up.
fn each_tick(rate: usize, mut act: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
    const TICK: Duration = Duration::from_millis(2);
    let begin = Instant::now();
    let mut done = 0;
    loop {
        let due = rate as u128 * begin.elapsed().as_micros() / 1_000_000;
        let due = usize::try_from(due).map_err(|e| e.to_string())?;
        act(due - done)?;
        done = due;
        thread::sleep(TICK);
    }
}

/// Data that nobody reads.
#[derive(Default)]
struct Pipes {
    /// The last one has room; read ends are kept open.
    pipes: Vec<(PipeReader, PipeWriter)>,
    /// Pages for which the last one has room.
    room: usize,
    /// Bytes that are due and make no page yet: a pipe holds so many pages, full or not.
    due: usize,
}

impl Pipes {
    /// What a process with privileges may ask for on every system.
    const SIZE: i32 = 1 << 20;

    fn put(&mut self, bytes: usize) -> Result<(), String> {
        let page = [1; 4096];
        self.due += bytes;
        while self.due >= page.len() {
            if self.room == 0 {
                let (reader, writer) = std::io::pipe().map_err(|e| format!("pipe: {e}"))?;
                let size = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(Self::SIZE));
                let size = size.map_err(|e| format!("size of a pipe: {e}"))?;
                self.room = usize::try_from(size).map_err(|e| e.to_string())? / page.len();
                self.pipes.push((reader, writer));
            }
            let (_, writer) = self.pipes.last_mut().ok_or("no pipe")?;
            let written = writer.write_all(&page);
            written.map_err(|e| format!("write to a pipe: {e}"))?;
            (self.due, self.room) = (self.due - page.len(), self.room - 1);
        }
        Ok(())
    }
}

fn touch(bytes: usize) -> Vec<Vec<u8>> {
    const STEP: usize = 64 << 10;
    let mut held = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let step = left.min(STEP);
        held.push(std::hint::black_box(vec![1_u8; step]));
        left -= step;
    }
    held
}

/// The lock goes with the process, however that ends.
fn lone(file: &Path, millis: usize, code: &str) -> Result<ExitCode, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", file.display());
    let code: u8 = code.parse().map_err(|e| format!("{code:?}: {e}"))?;
    let mut journal = File::options()
        .create(true)
        .append(true)
        .open(file)
        .map_err(failed)?;
    let is_alone = journal.try_lock().is_ok();
    let word = if is_alone { "alone" } else { "doubled" };
    writeln!(journal, "{word} {}", std::process::id()).map_err(failed)?;
    let millis = match millis {
        0 => 3_600_000,
        millis => millis as u64,
    };
    thread::sleep(Duration::from_millis(millis));
    Ok(ExitCode::from(code))
}

fn spawn(args: &[&str]) -> Result<Child, String> {
    let program = env::current_exe().map_err(|e| e.to_string())?;
    Command::new(program)
        .args(args)
        .spawn()
        .map_err(|e| e.to_string())
}

fn wait(mut child: Child) -> Result<bool, String> {
    child
        .wait()
        .map(|status| status.success())
        .map_err(|e| e.to_string())
}

/// The directory of this process in the hierarchy mounted at `mount`: the `0::` line for v2, or
/// the line of the controller that the mount is named after.
fn own_cgroup(mount: &Path) -> Result<PathBuf, String> {
    let controller = mount
        .file_name()
        .and_then(|it| it.to_str())
        .unwrap_or_default();
    let text = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let path_of = |wanted: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            let path = fields.next()?;
            controllers
                .split(',')
                .any(|it| it == wanted)
                .then_some(path)
        })
    };
    let path = path_of(controller)
        .or_else(|| path_of(""))
        .ok_or_else(|| format!("no cgroup of this process at {}", mount.display()))?;
    Ok(mount.join(path.trim_start_matches('/')))
}
