//! `ballast top` in a real terminal: tmux keeps the screen, and tells what is on it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::wait_for;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// A tmux server of its own with one window, in which a shell runs.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn open(agent: &Agent, (width, height): (u16, u16)) -> Result<Self> {
        // A server that was told to end keeps its socket for a moment.
        let socket = agent.state().with_file_name(format!("tmux-{width}.sock"));
        let terminal = Self { socket };
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&[
            "-u",
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "env PS1='$ ' NO_COLOR= sh",
        ])?;
        // The status line would take a line of the screen.
        terminal.tmux(&["set-option", "-g", "status", "off"])?;
        terminal.resize((width.parse()?, height.parse()?))?;
        Ok(terminal)
    }

    fn tmux(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(args)
            .output()
            .context("start tmux: cargo xtask setup installs it")?;
        ensure!(
            output.status.success(),
            "tmux {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    /// `Enter`, `Escape`, `Down`, or characters.
    fn press(&self, keys: &[&str]) -> Result<()> {
        let args = [&["send-keys"], keys].concat();
        self.tmux(&args).map(drop)
    }

    fn resize(&self, (width, height): (u16, u16)) -> Result<()> {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height])
            .map(drop)
    }

    /// Waits until all of `texts` are on the screen, and gives it.
    fn wait(&self, texts: &[&str]) -> Result<String> {
        self.wait_until(&format!("{texts:?}"), |screen| {
            texts.iter().all(|it| screen.contains(it))
        })
    }

    fn wait_until(&self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<String> {
        let mut screen = String::new();
        let waited = wait_for(what, || {
            screen = self.screen()?;
            Ok(is_it(&screen))
        });
        waited.with_context(|| format!("the screen is\n{screen}"))?;
        Ok(screen)
    }

    /// Starts `ballast top` in the shell, which tells its status after it.
    fn start_top(&self, agent: &Agent, args: &str) -> Result<()> {
        let client = agent.client(&["top"]);
        let words = std::iter::once(client.get_program()).chain(client.get_args());
        let words: Vec<_> = words.map(|it| it.to_string_lossy()).collect();
        let line = format!("{} --interval 300ms {args}; echo ended $?", words.join(" "));
        self.press(&[&line, "Enter"])
    }

    /// The screen is the shell's again, with a cursor, and what is typed is echoed in lines.
    fn check_given_back(&self, status: u8) -> Result<()> {
        let screen = self.wait(&[&format!("ended {status}")])?;
        ensure!(
            !screen.contains("NODE USES"),
            "it left its screen:\n{screen}"
        );
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])?;
        ensure!(
            flags.trim() == "0 1",
            "alternate screen and cursor: {flags}"
        );
        self.press(&["stty -a | tr ';' '\\n' | grep -w icanon", "Enter"])?;
        let modes = self.wait_until("the modes of the terminal", |it| {
            it.lines()
                .any(|line| line.starts_with("isig") || line.contains(" icanon"))
        })?;
        ensure!(!modes.contains("-icanon"), "raw mode stays on:\n{modes}");
        Ok(())
    }

    /// The process that the shell waits for.
    fn pid_of_top(&self) -> Result<Pid> {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        let shell = shell.trim();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        let pid = children.split_whitespace().next();
        let pid = pid.with_context(|| format!("shell {shell} runs nothing"))?;
        Ok(Pid::from_raw(pid.parse()?))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its shell, and what runs in it, end with their terminal.
        if let Err(error) = self.tmux(&["kill-server"]) {
            eprintln!("{error:#}");
        }
    }
}

/// An agent with a pod that runs all the time, one that holds memory, and one that does nothing.
fn agent_with_pods(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?;
    agent.start()?;
    let busy = Container::sh("main", "while :; do :; done");
    agent.put(&Manifest::new("busy").container(busy))?;
    let amounts = json!({"cpu": "100m", "memory": "128Mi"});
    let large = Container::new("main", &[&hog()?, "hold", "67108864"]);
    let large = large.resources(amounts.clone(), amounts);
    agent.put(&Manifest::new("large").container(large))?;
    agent.put(&Manifest::new("quiet").container(Container::idle("main")))?;
    agent.wait("three pods that run", |status| {
        status.pods.len() == 3 && status.pods.iter().all(super::look::is_running)
    })?;
    Ok(agent)
}

/// The rows of the pods, from the top down.
fn pods_of(screen: &str) -> Vec<&str> {
    let is_pod = |line: &&str| {
        ["default/busy", "default/large", "default/quiet"]
            .iter()
            .any(|it| {
                line.get(2..)
                    .is_some_and(|rest| rest.trim_start().starts_with(it))
            })
    };
    screen.lines().filter(is_pod).collect()
}

fn is_first(screen: &str, pod: &str) -> bool {
    let pods = pods_of(screen);
    pods.len() == 3 && pods.first().is_some_and(|it| it.contains(pod))
}

#[cfg_attr(feature = "privileged", test)]
fn top_shows_pods_sorts_them_and_gives_the_terminal_back() -> Result<()> {
    let mut agent = agent_with_pods("top")?;
    for size in [(80, 24), (200, 50)] {
        let terminal = Terminal::open(&agent, size)?;
        terminal.start_top(&agent, "")?;
        terminal.wait(&["NODE USES", "Guaranteed", "PRESSURE", "CPU▼", "q quit"])?;
        // Half a CPU at least, whoever else runs here.
        let busy = |screen: &str| {
            let row = pods_of(screen).into_iter().find(|it| it.contains("busy"))?;
            let cpu = row.split_whitespace().find_map(|it| it.strip_suffix('m'));
            cpu.and_then(|it| it.parse::<u64>().ok())
                .or_else(|| row.contains(" 1 ").then_some(1000))
        };
        terminal.wait_until("CPU of the busy pod, which is first", |screen| {
            is_first(screen, "busy") && busy(screen).is_some_and(|it| it > 200)
        })?;

        terminal.press(&["s"])?;
        let screen = terminal.wait_until("the large pod first", |screen| {
            screen.contains("MEMORY▼") && is_first(screen, "large")
        })?;
        let large = pods_of(&screen)[0];
        ensure!(large.contains("64Mi") || large.contains("65Mi"), "{large}");
        ensure!(large.contains('%'), "its limit is known: {large}");

        terminal.press(&["Enter"])?;
        terminal.wait(&["default/large  Guaranteed", "CONTAINER", "limit 128Mi"])?;
        terminal.press(&["Enter"])?;
        terminal.wait(&["default/large/main", "kernel mem", "restarts 0"])?;
        terminal.press(&["Escape"])?;
        terminal.wait(&["CONTAINER"])?;
        terminal.press(&["Escape"])?;
        terminal.wait(&["NODE USES"])?;

        terminal.press(&["q"])?;
        terminal.check_given_back(0)?;
    }
    agent.stop()
}

#[cfg_attr(feature = "privileged", test)]
fn top_follows_the_size_of_its_terminal_and_ends_by_a_signal() -> Result<()> {
    let mut agent = agent_with_pods("top-size")?;
    let terminal = Terminal::open(&agent, (80, 24))?;
    terminal.start_top(&agent, "--sort name")?;
    terminal.wait(&["default/busy", "q quit"])?;
    for size in [(200, 50), (12, 3), (1, 1), (250, 80), (80, 24)] {
        terminal.resize(size)?;
        let screen = terminal.wait_until("the width of the last line", |screen| {
            let last = screen
                .lines()
                .last()
                .map_or(0, |it| it.trim_end().chars().count());
            last > 0 && last <= usize::from(size.0)
        })?;
        let n_lines = screen.lines().count();
        ensure!(
            n_lines <= usize::from(size.1),
            "{n_lines} lines in {size:?}:\n{screen}"
        );
    }
    terminal.wait_until("all pods again", |it| is_first(it, "busy"))?;
    kill(terminal.pid_of_top()?, Signal::SIGTERM)?;
    terminal.check_given_back(0)?;

    terminal.start_top(&agent, "--sort name")?;
    terminal.wait(&["default/busy", "q quit"])?;
    terminal.press(&["C-c"])?;
    terminal.wait_until("the second end", |it| it.matches("ended 0").count() == 2)?;
    agent.stop()
}

#[cfg_attr(feature = "privileged", test)]
fn top_outlives_its_agent() -> Result<()> {
    let mut agent = agent_with_pods("top-away")?;
    let terminal = Terminal::open(&agent, (100, 30))?;
    terminal.start_top(&agent, "")?;
    terminal.wait(&["default/quiet", "every 0.3 s"])?;
    agent.stop()?;
    terminal.wait(&["AGENT AWAY since", "no agent listens", "default/quiet"])?;
    // What the next agent tells before it is asked, and what it tells later.
    agent.put(&Manifest::new("early").container(Container::idle("main")))?;
    agent.start()?;
    terminal.wait_until("the agent back", |screen| {
        !screen.contains("AWAY")
            && screen.contains("every 0.3 s")
            && screen.contains("default/quiet")
    })?;
    terminal.wait(&["default/early/main"])?;
    agent.put(&Manifest::new("late").container(Container::idle("main")))?;
    terminal.wait(&["default/late/main"])?;
    terminal.press(&["q"])?;
    terminal.check_given_back(0)?;
    agent.stop()
}

#[cfg_attr(feature = "privileged", test)]
fn top_without_a_terminal_or_an_agent_says_what_to_do() -> Result<()> {
    let mut agent = agent_with_pods("top-once")?;
    let frame = agent.command(&["top", "--once", "--interval", "1s", "--sort", "name"])?;
    ensure!(is_first(&frame, "busy"), "{frame}");
    ensure!(
        !frame.contains('\x1b') && !frame.contains("quit"),
        "{frame}"
    );
    let refused = agent.client(&["top"]).output()?;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2), "{:?}", refused.status);
    ensure!(message.contains("--once"), "{message}");
    agent.stop()?;
    let away = agent.client(&["top", "--once"]).output()?;
    let message = String::from_utf8_lossy(&away.stderr).into_owned();
    ensure!(away.status.code() == Some(1), "{:?}", away.status);
    ensure!(message.contains("no agent listens"), "{message}");
    if message.contains('\x1b') {
        bail!("nothing of a screen without one: {message:?}");
    }
    Ok(())
}

/// Stopped from outside, it leaves the terminal to the shell, and takes it again when it goes on.
#[cfg_attr(feature = "privileged", test)]
fn a_stopped_top_gives_the_terminal_back_for_as_long() -> Result<()> {
    let mut agent = Agent::new("top-stop")?;
    agent.start()?;
    let terminal = Terminal::open(&agent, (100, 30))?;
    terminal.start_top(&agent, "")?;
    terminal.wait(&["NODE USES"])?;
    kill(terminal.pid_of_top()?, Signal::SIGTSTP)?;
    let stopped = 128 + u8::try_from(Signal::SIGSTOP as i32)?;
    terminal.check_given_back(stopped)?;
    terminal.press(&["fg", "Enter"])?;
    terminal.wait(&["NODE USES"])?;
    terminal.press(&["q"])?;
    terminal.wait_until("the shell", |it| !it.contains("NODE USES"))?;
    Ok(())
}

/// A terminal that shows what it gets and never says where its cursor is.
#[cfg_attr(feature = "privileged", test)]
fn a_terminal_that_answers_nothing_is_enough() -> Result<()> {
    let mut agent = Agent::new("top-mute")?;
    agent.start()?;
    let size = Winsize {
        ws_row: 30,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None)?;
    let slave = || pty.slave.try_clone();
    let mut top = agent
        .client(&["top"])
        .stdin(slave()?)
        .stdout(slave()?)
        .stderr(slave()?)
        .spawn()?;
    let mut terminal = File::from(pty.master);
    let mut reader = terminal.try_clone()?;
    let (tell, told) = channel();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n) = reader.read(&mut bytes) {
            if n == 0 || tell.send(bytes[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut shown = String::new();
    let drawn = wait_for("a frame", || {
        for bytes in told.try_iter() {
            shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(shown.contains("NODE") && shown.contains("quit"))
    });
    terminal.write_all(b"q")?;
    let ended = wait_for("its end", || Ok(top.try_wait()?.is_some()));
    if ended.is_err() {
        top.kill()?;
    }
    drawn.with_context(|| format!("shown: {shown:?}"))?;
    ended?;
    ensure!(top.wait()?.success(), "shown: {shown:?}");
    Ok(())
}
