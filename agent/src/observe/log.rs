//! Log output: lines for people on a terminal, JSON for collectors, always to stderr.

mod queue;
mod repeats;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::Queue;
use self::repeats::Repeats;
pub use self::repeats::take_left_out;

/// How long the end of the process waits for a reader of stderr.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

static QUEUE: Queue = Queue::new();

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStyle {
    /// For people, in colour on a terminal.
    Text,
    /// One object per line.
    Json,
}

impl LogStyle {
    /// Text where a person reads along, JSON otherwise.
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Text
        } else {
            Self::Json
        }
    }
}

/// Writes each event, which comes in one piece, as one line: what it tells may be the name of a process
/// or a file, which others choose.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        let mut line = Vec::with_capacity(event.len() + 1);
        for byte in text {
            match byte {
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                byte => line.push(*byte),
            }
        }
        line.push(b'\n');
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log filter {filter:?} is not a list such as info,ballast::observe=debug")]
    Filter {
        filter: String,
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("set up logging")]
    Install {
        source: tracing_subscriber::util::TryInitError,
    },
    #[error("start the thread that writes the log")]
    Thread { source: io::Error },
}

/// Sends everything that passes `filter` (a level, or directives as in [`Targets`]) to stderr.
/// Once per process; what was logged before is lost. Nobody waits for the reader of stderr but [`flush`], which is
/// for the end of the process.
pub fn init(style: LogStyle, filter: &str) -> Result<(), LogError> {
    let filter: Targets = filter.parse().map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let registry = tracing_subscriber::registry()
        .with(filter)
        .with(Repeats::default());
    let installed = match style {
        LogStyle::Text => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(|| OneLine(&QUEUE))
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false);
            registry.with(layer).try_init()
        }
        LogStyle::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(|| &QUEUE)
                .with_current_span(false)
                .with_span_list(false);
            registry.with(layer).try_init()
        }
    };
    installed.map_err(|source| LogError::Install { source })?;
    let started = QUEUE.start(io::stderr(), move |n| not_there(style, n));
    started.map_err(|source| LogError::Thread { source })
}

/// Waits until what was logged is written, [`LAST_WORDS`] at most.
pub fn flush() {
    QUEUE.flush(LAST_WORDS);
}

/// The line in the place of `n` that could not be written, which no filter leaves out.
fn not_there(style: LogStyle, n: u64) -> Vec<u8> {
    const WHY: &str = "lines are not in the log: stderr did not take them";
    let mut now = String::new();
    // A string takes everything.
    SystemTime.format_time(&mut Writer::new(&mut now)).ok();
    let line = match style {
        LogStyle::Text => format!("{now}  WARN {n} {WHY}\n"),
        LogStyle::Json => {
            let message = format!("{n} {WHY}");
            format!(
                r#"{{"timestamp":"{now}","level":"WARN","message":"{message}","target":"ballast::observe::log"}}"#
            ) + "\n"
        }
    };
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_it_tells() {
        use tracing_subscriber::fmt::MakeWriter;

        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no panic").write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let to = lines.clone();
        let make = move || OneLine(to.clone());
        assert!(MakeWriter::make_writer(&make).flush().is_ok());
        let layer = tracing_subscriber::fmt::layer().with_writer(make);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(comm = "a\nb", "killed {}", "x\nERROR y\r");
        });
        let bytes = lines.0.lock().expect("no panic").clone();
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("killed x\\nERROR y\\r"), "{text}");
    }

    #[test]
    fn a_bad_filter_is_an_error_that_shows_it() {
        let error = init(LogStyle::Json, "ballast=loud").expect_err("loud is no level");
        assert!(error.to_string().contains("ballast=loud"), "{error}");
    }
}
