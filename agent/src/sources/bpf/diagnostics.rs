//! What the programs log about themselves, forwarded to the agent's log. Off by default: then the
//! verifier removes the log statements as dead code.

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

/// For the programs' `AYA_LOG_LEVEL`. In an object that nobody has set it for, everything is logged.
pub(super) const OFF: u8 = 0;

/// The value of the programs' `AYA_LOG_LEVEL`: off, or a number of aya-log-common's `Level`.
pub(super) fn level(enabled: bool) -> u8 {
    const DEBUG: u8 = 4;
    if enabled { DEBUG } else { OFF }
}

/// The log ring of one object.
pub(super) struct Reader(EbpfLogger<ToTracing>);

impl Reader {
    /// `None` where the object logs nothing.
    pub(super) fn start(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init_with_logger(ebpf, ToTracing).ok().map(Self)
    }

    /// Forwards what has been logged since the last call.
    pub(super) fn flush(&mut self) {
        self.0.flush();
    }
}

struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        tracing::debug!(program = record.target(), "{}", record.args());
    }

    fn flush(&self) {}
}
