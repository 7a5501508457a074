//! Log output: lines for people on a terminal, JSON for collectors, always to stderr.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
}

/// Sends everything that passes `filter` (a level, or directives as in [`Targets`]) to stderr.
/// Once per process; what was logged before is lost.
pub fn init(style: LogStyle, filter: &str) -> Result<(), LogError> {
    let filter: Targets = filter.parse().map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let installed = match style {
        LogStyle::Text => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false);
            registry.with(layer).try_init()
        }
        LogStyle::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(std::io::stderr)
                .with_current_span(false)
                .with_span_list(false);
            registry.with(layer).try_init()
        }
    };
    installed.map_err(|source| LogError::Install { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_an_error_that_shows_it() {
        let error = init(LogStyle::Json, "ballast=loud").expect_err("loud is no level");
        assert!(error.to_string().contains("ballast=loud"), "{error}");
    }
}
