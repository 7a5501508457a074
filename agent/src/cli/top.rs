//! `ballast top`: a live view of the node, its pods and what happens, over the agent's socket.
//!
//! Messages of four threads (samples, events, keys, signals) go through one channel to this one,
//! which owns the state (`app`), and draws it (`view`) after each batch. `rows` makes rates of
//! samples.

mod app;
mod feed;
#[cfg(test)]
mod fixture;
mod input;
mod rows;
mod tty;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use self::app::{App, Message};
pub use self::rows::SortKey;
use self::tty::Tty;
use self::view::Theme;
use super::{CliError, Screen, SocketArgs};

/// Messages that wait for this thread: an agent with many events is slowed down and not buffered.
const MAX_WAITING: usize = 256;

/// Lines that a frame of `--once` has beside its pods.
const ONCE_LINES: usize = 40;

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Time between two looks: 2s, 500ms, 1m; 200ms to 60s.
    #[arg(short, long, value_name = "TIME", default_value = "2s")]
    pub interval: Interval,
    /// What pods are sorted by.
    #[arg(short, long, value_enum, value_name = "KEY", default_value = "cpu")]
    pub sort: SortKey,
    /// Print one frame as text and end, after one interval for the rates. All pods are in it.
    #[arg(long)]
    pub once: bool,
}

/// 200 ms to 60 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Duration);

/// The text is no interval.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time from 200ms to 60s, as 2s or 500ms")]
pub struct ParseIntervalError {
    text: String,
}

impl FromStr for Interval {
    type Err = ParseIntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(digits), _) => (digits, 1),
            (None, Some(digits)) => (digits, 1000),
            (None, None) => match text.strip_suffix('m') {
                Some(digits) => (digits, 60_000),
                None => (text, 1000),
            },
        };
        let is_number = digits.bytes().all(|it| it.is_ascii_digit());
        let n = Some(digits)
            .filter(|_| is_number)
            .and_then(|it| it.parse::<u64>().ok());
        n.and_then(|it| it.checked_mul(unit_ms))
            .filter(|ms| (200..=60_000).contains(ms))
            .map(|ms| Self(Duration::from_millis(ms)))
            .ok_or_else(|| ParseIntervalError {
                text: text.to_owned(),
            })
    }
}

/// Shows the node until its user has seen enough.
///
/// An agent that does not run is an error; one that goes away later is waited for.
pub fn top(args: &TopArgs, screen: &mut Screen) -> Result<(), CliError> {
    let path = args.socket.path()?;
    if args.once {
        return once(args, &path, screen);
    }
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        return Err(CliError::NoTerminal);
    }
    let sample = feed::sample(&path)?;
    let app = App::new(sample, args.sort, args.interval.0);
    let (to_app, messages) = sync_channel(MAX_WAITING);
    tty::follow_signals(to_app.clone()).map_err(|it| CliError::Terminal { source: it.into() })?;
    let tty = Tty::take().map_err(|source| CliError::Terminal { source })?;
    tty::follow_keys(to_app.clone());
    feed::follow_samples(path.clone(), args.interval.0, to_app.clone());
    feed::follow_events(path, to_app);
    let theme = Theme {
        has_colour: screen.has_colour,
    };
    show(app, theme, tty, &messages).map_err(|source| CliError::Terminal { source })
}

fn show(mut app: App, theme: Theme, mut tty: Tty, messages: &Receiver<Message>) -> io::Result<()> {
    while !app.is_over {
        if std::mem::take(&mut app.wants_rest) {
            tty.rest()?;
        }
        if std::mem::take(&mut app.is_dirty) {
            tty.wipe()?;
        }
        tty.terminal
            .draw(|frame| view::draw(&app, theme, frame.area(), frame.buffer_mut()))?;
        // The threads that send outlive this one.
        let Ok(message) = messages.recv() else { break };
        app.update(message);
        for message in messages.try_iter().take(MAX_WAITING) {
            app.update(message);
        }
    }
    Ok(())
}

/// One frame, as tall as its pods need, and as wide where no terminal says how wide.
fn once(args: &TopArgs, path: &Path, screen: &mut Screen) -> Result<(), CliError> {
    let mut app = App::new(feed::sample(path)?, args.sort, args.interval.0);
    thread::sleep(args.interval.0);
    app.update(Message::Sample(Box::new(feed::sample(path)?)));
    for record in feed::events(path)? {
        app.update(Message::Event(Box::new(record)));
    }
    let width = match io::stdout().is_terminal() {
        true => screen.width,
        false => view::whole_width(&app),
    };
    screen.write(&whole_frame(&app, width)).map(|_| ())
}

fn whole_frame(app: &App, width: usize) -> String {
    let n_lines = app.pods().len() + ONCE_LINES;
    let size = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, size(width), size(n_lines)));
    view::draw(app, Theme { has_colour: false }, buffer.area, &mut buffer);
    // Without the keys, which nobody can press, and what is empty above them.
    let text = view::to_text(&buffer);
    let (frame, _keys) = text.trim_end().rsplit_once('\n').unwrap_or_default();
    format!("{}\n", frame.trim_end())
}

#[cfg(test)]
mod tests;
