//! Log output: lines for people on a terminal, JSON for collectors, always to stderr.

use std::io::IsTerminal;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The level when neither the configuration nor `BALLAST_LOG` says otherwise.
pub const DEFAULT_FILTER: &str = "info";

/// `log.format` of the configuration and `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    Text,
    Json,
}

/// The word is none of the formats.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no log format {text:?}: one of auto, text, json")]
pub struct ParseFormatError {
    text: String,
}

impl FromStr for LogFormat {
    type Err = ParseFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ParseFormatError {
                text: text.to_owned(),
            }),
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

/// Sends everything that passes `filter` (a level, or directives as in [`EnvFilter`]) to stderr.
/// Once per process; what was logged before is lost.
pub fn init(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let is_terminal = std::io::stderr().is_terminal();
    let registry = tracing_subscriber::registry().with(filter);
    let installed = if is_text(format, is_terminal) {
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(is_terminal)
            .with_target(false);
        registry.with(layer).try_init()
    } else {
        let layer = tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(std::io::stderr)
            .with_current_span(false)
            .with_span_list(false);
        registry.with(layer).try_init()
    };
    installed.map_err(|source| LogError::Install { source })
}

fn is_text(format: LogFormat, is_terminal: bool) -> bool {
    match format {
        LogFormat::Auto => is_terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_text_only_on_a_terminal() {
        for (format, is_terminal, expected) in [
            (LogFormat::Auto, true, true),
            (LogFormat::Auto, false, false),
            (LogFormat::Text, false, true),
            (LogFormat::Json, true, false),
        ] {
            assert_eq!(is_text(format, is_terminal), expected, "{format:?}");
        }
    }

    #[test]
    fn a_bad_filter_is_an_error_that_shows_it() {
        let error = init(LogFormat::Json, "ballast=loud").expect_err("loud is no level");
        assert!(error.to_string().contains("ballast=loud"), "{error}");
    }
}
