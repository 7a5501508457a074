//! The terminal while `ballast top` has it.
//!
//! Invariant: it is given back as it was, however the program ends: by its user, by a signal, by a
//! fault of the terminal, by a panic of any thread (whose message is printed after that).

use std::io::{self, Stdout, Write, stdout};
use std::panic;
use std::sync::mpsc::SyncSender;
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};
use ratatui_core::layout::{Position, Rect};
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::event;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::app::Message;
use super::input;

/// Gives the terminal back when it is dropped.
pub(super) struct Tty {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Tty {
    /// Raw mode on the alternate screen.
    pub(super) fn take() -> io::Result<Self> {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            give_back();
            previous(panic);
        }));
        enable_raw_mode()?;
        let taken = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .and_then(|mut terminal| {
                terminal.hide_cursor()?;
                Ok(Self { terminal })
            });
        if taken.is_err() {
            give_back();
        }
        taken
    }

    /// Empties the screen, to draw all of it. `Terminal::clear` would ask the terminal first where its
    /// cursor is, and some do not answer.
    pub(super) fn wipe(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Gives the terminal to whoever is there while this process is stopped.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        give_back();
        raise(Signal::SIGSTOP)?;
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.terminal.hide_cursor()?;
        self.wipe()
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whatever is possible: a terminal that is gone has nothing to be given back.
fn give_back() {
    let _ = disable_raw_mode();
    let mut out = stdout();
    let _ = execute!(out, LeaveAlternateScreen, Show);
    let _ = out.flush();
}

/// Sends what is typed, and that the terminal is gone.
pub(super) fn follow_keys(messages: SyncSender<Message>) {
    thread::spawn(move || {
        loop {
            let message = match event::read() {
                Ok(event) => input::message(&event),
                Err(_) => Some(Message::Stop),
            };
            let is_last = matches!(message, Some(Message::Stop));
            if message.is_some_and(|it| messages.send(it).is_err()) || is_last {
                return;
            }
        }
    });
}

/// Signals that ask for the end or for a rest. Called before any other thread is started, so that none of them
/// takes one in the way that ends a process at once.
pub(super) fn follow_signals(messages: SyncSender<Message>) -> nix::Result<()> {
    let signals: SigSet = [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGTSTP,
    ]
    .into_iter()
    .collect();
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let message = match signal {
                Signal::SIGTSTP => Message::Rest,
                _ => Message::Stop,
            };
            if messages.send(message).is_err() {
                // Nobody listens: the end has come already.
                return;
            }
        }
    });
    Ok(())
}
