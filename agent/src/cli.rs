//! The command line: its arguments, and the verbs that talk to a running agent. In: arguments and
//! answers of the agent's socket. Out: text or JSON on stdout.
//!
//! Invariant: rendering is pure, from a document to text, so golden tests pin it. Text that came
//! from processes is made harmless before it reaches a terminal.

mod client;
mod events;
mod explain;
pub(crate) mod format;
mod oom;
mod pressure;
mod status;
mod top;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::client::ClientError;
pub use self::events::{events, render_event};
pub use self::explain::{explain, render_node, render_pod};
pub use self::status::{render_status, status};
pub use self::top::{Interval, SortKey, TopArgs, top};
use crate::model::record::EventKind;
use crate::model::time::WallTime;

/// Node resource manager for Kubernetes nodes and for nodes without Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "ballast", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent.
    Run(RunArgs),
    /// Say whether this node can run the agent, and what it would lack.
    Check(CheckArgs),
    /// Show the node's budget, and its pods with QoS class, state and usage.
    Status(StatusArgs),
    /// Show what happened: OOM kills, processes, cgroups, stalls, pods, containers.
    Events(EventsArgs),
    /// Show the node, its pods and what happens live, full screen.
    Top(TopArgs),
    /// Say why a pod is what and where it is, or who holds what of the node.
    #[command(subcommand)]
    Explain(ExplainTarget),
    /// Decide a recorded admission or eviction story again, and compare.
    Replay(ReplayArgs),
}

#[derive(Debug, Subcommand)]
pub enum ExplainTarget {
    /// Why a pod has its class, what it may use, where its containers run and why there; of a pod
    /// that was refused, what would let it in.
    Pod(ExplainPodArgs),
    /// Who holds which CPUs and devices, what is left on each NUMA node, how near each eviction threshold is, what wakes
    /// the agent, and who would go first.
    Node(ExplainNodeArgs),
}

#[derive(Debug, Args)]
pub struct ExplainNodeArgs {
    /// The node that is meant, if it is not any: the agent knows its own alone.
    pub name: Option<String>,
    #[command(flatten)]
    pub status: StatusArgs,
}

#[derive(Debug, Args)]
pub struct ExplainPodArgs {
    /// NAME or NAMESPACE/NAME.
    pub name: PodName,
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Form of the answer.
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: Output,
    /// Print the record of the admission alone, for ballast replay.
    #[arg(long, conflicts_with = "output")]
    pub record: bool,
}

/// A pod on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub namespace: Option<String>,
    pub name: String,
}

/// The text does not name a pod.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither NAME nor NAMESPACE/NAME")]
pub struct ParsePodNameError {
    text: String,
}

impl FromStr for PodName {
    type Err = ParsePodNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
            let text = text.to_owned();
            return Err(ParsePodNameError { text });
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// An admission as ballast explain pod NAME --record prints it, or an eviction story as the agent
    /// records it; - for standard input.
    pub file: PathBuf,
    /// Also run the eviction policy of this configuration over the story: a whole one, or its kubelet
    /// and eviction parts alone.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Form of what is said about a story; an admission is JSON in any case.
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The agent's configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How log lines look: auto is text on a terminal, JSON otherwise. Wins over log.format of the
    /// configuration.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormatArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormatArg {
    Auto,
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check this configuration too, and the node against it; in mode own also the manifests that it names.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Form of the answer.
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Form of the answer.
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Form of the answer; JSON is one object per line.
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: Output,
    /// Stay, and show what happens from now on.
    #[arg(short, long)]
    pub follow: bool,
    /// Only these kinds: oom, process, cgroup, stall, pod, container, node, agent.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub kind: Vec<EventKind>,
    /// Only what happened since then: 30s, 10m, 2h, 1d, or a time as 2025-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Only records after the one with this sequence number.
    #[arg(long, value_name = "SEQUENCE")]
    pub after: Option<u64>,
    /// Instead of events, the forensic records of OOM kills, also those of agents before this one:
    /// the full cgroup, who else was there, and the minute before. Only with --kind oom or none.
    #[arg(long, conflicts_with_all = ["follow", "after"])]
    pub record: bool,
}

/// Which agent to talk to.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// The agent's socket [default: /run/ballast/ballast.sock].
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub socket: Option<PathBuf>,
    /// Take the socket from this configuration.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// Beginning of a span that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Ago(Duration),
    At(WallTime),
}

/// The text is neither an age nor a time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an age as 30s, 10m, 2h, 1d nor a time as 2025-01-31T12:00:00Z")]
pub struct ParseSinceError {
    text: String,
}

impl Since {
    pub fn time(self, now: WallTime) -> WallTime {
        match self {
            Self::Ago(age) => now.before(age),
            Self::At(time) => time,
        }
    }
}

impl FromStr for Since {
    type Err = ParseSinceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = || text.parse().map(Self::At).ok();
        parse_age(text).map(Self::Ago).or_else(at).ok_or_else(|| {
            let text = text.to_owned();
            ParseSinceError { text }
        })
    }
}

fn parse_age(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let seconds_per_unit = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return None,
    };
    let digits = text.strip_suffix(unit)?;
    if !digits.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    n.checked_mul(seconds_per_unit).map(Duration::from_secs)
}

/// Reads the command line; prints help or a usage error and ends the process where that is due
/// (status 0 and 2).
pub fn parse() -> Cli {
    Cli::parse()
}

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("write the answer")]
    Write { source: io::Error },
    #[error(
        "the pod's namespace is {named} in its name and {given} in --namespace; right would be one"
    )]
    TwoNamespaces { named: String, given: String },
    #[error("the agent here is of node {own}; {asked} is asked there")]
    OtherNode { own: String, asked: String },
    #[error("--record is of OOM kills alone: leave out --kind, or make it oom")]
    RecordKind,
    #[error("ballast top needs a terminal; for one frame as text there is --once")]
    NoTerminal,
    #[error("use the terminal")]
    Terminal { source: io::Error },
    #[error("{pod} has no record to print: {why}")]
    NoRecord { pod: String, why: String },
}

impl CliError {
    /// Exit status: 2 for arguments or a configuration that cannot be used, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Client(ClientError::Config { .. } | ClientError::ConfigForm { .. })
            | Self::TwoNamespaces { .. }
            | Self::RecordKind
            | Self::NoTerminal => 2,
            Self::Client(_)
            | Self::Write { .. }
            | Self::Terminal { .. }
            | Self::OtherNode { .. }
            | Self::NoRecord { .. } => 1,
        }
    }
}

/// Where an answer is written.
pub struct Screen<'a> {
    pub out: &'a mut dyn Write,
    /// Columns; tables try to fit.
    pub width: usize,
    pub has_colour: bool,
}

/// Columns where the output is no terminal or does not tell.
pub const DEFAULT_WIDTH: usize = 80;

impl<'a> Screen<'a> {
    /// Stdout: in colour, unless `is_plain`, and as wide as the terminal if it is one.
    pub fn stdout(out: &'a mut (impl Write + IsTerminal + AsFd), is_plain: bool) -> Self {
        let is_terminal = out.is_terminal();
        let size = rustix::termios::tcgetwinsize(&mut *out).ok();
        let width = size
            .map(|it| usize::from(it.ws_col))
            .filter(|columns| is_terminal && *columns > 0)
            .unwrap_or(DEFAULT_WIDTH);
        Self {
            out,
            width,
            has_colour: is_terminal && !is_plain,
        }
    }

    /// Writes and flushes. `false`: the reader has gone away, which ends a verb without a word.
    pub fn write(&mut self, text: &str) -> Result<bool, CliError> {
        let written = self
            .out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush());
        match written {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(source) => Err(CliError::Write { source }),
        }
    }
}

impl SocketArgs {
    /// The socket to use: as given, or of the configuration, or the default.
    pub fn path(&self) -> Result<PathBuf, ClientError> {
        match (&self.socket, &self.config) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(config)) => client::socket_of_config(config),
            (None, None) => Ok(Path::new(crate::observe::protocol::DEFAULT_SOCKET).to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
