//! Lines on their way to stderr. Whoever logs never waits for its reader: a logger or a terminal that has stopped
//! would hold up each thread that logs, those that evict and record OOM kills among them.
//!
//! One thread writes, in the order of the lines. Lines that come while the queue is full are dropped and counted, and so
//! are those that stderr refuses, as a file on a full disk does.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A line is dropped where so many bytes wait: some thousand lines, the first of a fault among them.
const FULL: usize = 1 << 20;

/// See the module.
pub(super) struct Queue {
    state: Mutex<State>,
    /// A line has come, or was written.
    changed: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of `lines`.
    n_bytes: usize,
    /// Not told yet.
    n_dropped: u64,
    is_writing: bool,
}

impl State {
    fn is_written(&self) -> bool {
        self.lines.is_empty() && !self.is_writing
    }
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lines: VecDeque::new(),
                n_bytes: 0,
                n_dropped: 0,
                is_writing: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Starts the thread that writes each line to `out`. `not_there` makes the line that stands in the place of so many.
    pub(super) fn start(
        &'static self,
        mut out: impl Write + Send + 'static,
        not_there: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<()> {
        let write = move || {
            let mut n_failed = 0;
            loop {
                let line = self.take(&not_there);
                let written = match n_failed {
                    0 => write_whole(&mut out, &line),
                    n => write_whole(&mut out, &[not_there(n), line].concat()),
                };
                n_failed = match written {
                    Ok(()) => 0,
                    Err(_) => n_failed + 1,
                };
            }
        };
        let thread = thread::Builder::new().name("stderr".to_owned());
        thread.spawn(write).map(drop)
    }

    /// Never waits. The line has its end.
    pub(super) fn push(&self, line: &[u8]) {
        // What is allocated may have to wait for memory: not under the lock.
        let line = line.to_vec();
        let mut state = self.lock();
        // Where some are dropped, all are until that is told: the line that tells it stands in their place.
        if state.n_dropped > 0 || state.n_bytes >= FULL {
            state.n_dropped += 1;
            return;
        }
        state.n_bytes += line.len();
        state.lines.push_back(line);
        self.changed.notify_all();
    }

    /// Waits until all lines are written or refused, and no longer than `longest`. Whether they are.
    pub(super) fn flush(&self, longest: Duration) -> bool {
        let is_pending = |it: &mut State| !it.is_written();
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), longest, is_pending);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_written()
    }

    /// Waits for the next line. Once the queue is half empty, a line takes the place of those that were dropped.
    fn take(&self, not_there: impl Fn(u64) -> Vec<u8>) -> Vec<u8> {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.is_writing = true;
                state.n_bytes -= line.len();
                if state.n_dropped > 0 && state.n_bytes <= FULL / 2 {
                    let told = not_there(std::mem::take(&mut state.n_dropped));
                    state.n_bytes += told.len();
                    state.lines.push_back(told);
                }
                return line;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What does not block for a moment is waited for: somebody else may have set stderr so.
fn write_whole(out: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => line = &line[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Each write, of a whole line, goes to the queue.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Takes no line before it is opened, as a pipe that nobody reads.
    #[derive(Clone, Default)]
    struct Pipe {
        written: Arc<Mutex<Vec<u8>>>,
        is_open: Arc<(Mutex<bool>, Condvar)>,
    }

    impl Pipe {
        fn open(&self) {
            let (is_open, opened) = &*self.is_open;
            *is_open.lock().unwrap() = true;
            opened.notify_all();
        }

        fn lines(&self) -> Vec<String> {
            let bytes = self.written.lock().unwrap().clone();
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (is_open, opened) = &*self.is_open;
            let is_open = is_open.lock().unwrap();
            drop(opened.wait_while(is_open, |it| !*it).unwrap());
            self.written.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn started(pipe: &Pipe) -> &'static Queue {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let not_there = |n| format!("{n} dropped\n").into_bytes();
        queue.start(pipe.clone(), not_there).unwrap();
        queue
    }

    #[test]
    fn nobody_waits_for_a_pipe_that_is_not_read_and_what_is_dropped_is_counted() {
        let pipe = Pipe::default();
        let queue = started(&pipe);
        let rest = "x".repeat(1000);
        for i in 0..10_000 {
            queue.push(format!("{i} {rest}\n").as_bytes());
        }
        assert_eq!(pipe.lines(), [""; 0]);
        assert!(!queue.flush(Duration::from_millis(10)));
        pipe.open();
        assert!(queue.flush(LONG));
        queue.push(b"after\n");
        assert!(queue.flush(LONG));

        let lines = pipe.lines();
        let Some(([kept @ .., told], after)) = lines.split_last().map(|(it, rest)| (rest, it))
        else {
            panic!("{lines:?}");
        };
        assert_eq!(after, "after");
        let n_kept = kept.len();
        assert!((900..1100).contains(&n_kept), "{n_kept}");
        for (i, line) in kept.iter().enumerate() {
            assert!(line.starts_with(&format!("{i} ")), "{i}: {line}");
        }
        assert_eq!(told, &format!("{} dropped", 10_000 - n_kept));
    }

    /// As a file on a full disk.
    #[test]
    fn what_is_refused_is_counted_and_told_once_it_is_taken_again() {
        struct Full(Pipe, u32);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 += 1;
                match self.1 {
                    2..=4 => Err(io::ErrorKind::StorageFull.into()),
                    5 => Err(io::ErrorKind::WouldBlock.into()),
                    _ => self.0.write(bytes),
                }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let pipe = Pipe::default();
        pipe.open();
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let not_there = |n| format!("{n} refused\n").into_bytes();
        queue.start(Full(pipe.clone(), 0), not_there).unwrap();
        for i in 0..6 {
            queue.push(format!("{i}\n").as_bytes());
            assert!(queue.flush(LONG));
        }
        assert_eq!(pipe.lines(), ["0", "3 refused", "4", "5"]);
    }

    #[test]
    fn lines_of_a_pipe_that_is_read_are_written_in_their_order() {
        let pipe = Pipe::default();
        pipe.open();
        let queue = started(&pipe);
        assert!(queue.flush(Duration::ZERO), "nothing is to be written");
        for i in 0..500 {
            queue.push(format!("{i}\n").as_bytes());
        }
        assert!(queue.flush(LONG));
        let right: Vec<_> = (0..500).map(|i| i.to_string()).collect();
        assert_eq!(pipe.lines(), right);
    }
}
