//! Signals by their names in the API (pkg/apis/core/types.go, v1.36: `Signal`).

/// By number, from 1 on, as x86-64 and arm64 have them. The C library keeps those between them and `SIGRTMIN`.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// `None`: there is no such signal.
pub(super) fn number(name: &str) -> Option<u8> {
    let name = match name {
        "SIGCLD" => "SIGCHLD",
        "SIGIOT" => "SIGABRT",
        "SIGPOLL" => "SIGIO",
        other => other,
    };
    (1..=64).find(|it| name_of(*it).as_deref() == Some(name))
}

fn name_of(number: u8) -> Option<String> {
    match number {
        34 => Some("SIGRTMIN".to_owned()),
        35..=49 => Some(format!("SIGRTMIN+{}", number - 34)),
        50..=63 => Some(format!("SIGRTMAX-{}", 64 - number)),
        64 => Some("SIGRTMAX".to_owned()),
        _ => {
            let name = NAMES.get(usize::from(number).checked_sub(1)?);
            name.map(|it| (*it).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_its_number() {
        for (name, right) in [
            ("SIGHUP", Some(1)),
            ("SIGTERM", Some(15)),
            ("SIGCLD", Some(17)),
            ("SIGCHLD", Some(17)),
            ("SIGSYS", Some(31)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+15", Some(49)),
            ("SIGRTMAX-14", Some(50)),
            ("SIGRTMAX", Some(64)),
            ("SIGRTMIN+16", None),
            ("SIGRTMAX-0", None),
            ("TERM", None),
            ("sigterm", None),
            ("", None),
        ] {
            assert_eq!(number(name), right, "{name}");
        }
        // As many as the API has names (`supportedStopSignalsLinux`), less those of the same number.
        let all = (0..=u8::MAX).filter_map(name_of);
        assert_eq!(all.count(), 65 - 3);
    }
}
