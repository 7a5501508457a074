//! What a kernel says of itself and of this process: its version, its lockdown state, the
//! capabilities it grants.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::text::ParseError;

/// The leading numbers of a kernel release (`/proc/sys/kernel/osrelease`).
///
/// Good for saying what a kernel should have; whether it has it is asked of the kernel where that
/// is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
    /// 0 where the release has none (`7.2-rc1`).
    pub patch: u32,
}

impl KernelVersion {
    pub const fn new(major: u32, minor: u32) -> Self {
        Self {
            major,
            minor,
            patch: 0,
        }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for KernelVersion {
    type Err = ParseError;

    /// Reads `6.18.44-fc-v657`, `7.2-rc1`, `5.10.0+`: numbers up to the first other character.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let end = text
            .find(|it: char| it != '.' && !it.is_ascii_digit())
            .unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor)), patch) => Ok(Self {
                major,
                minor,
                patch: patch.and_then(Result::ok).unwrap_or(0),
            }),
            _ => Err(ParseError::invalid(text, "a kernel release, as 6.12.1")),
        }
    }
}

/// `/sys/kernel/security/lockdown` (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lockdown {
    None,
    Integrity,
    Confidentiality,
}

impl FromStr for Lockdown {
    type Err = ParseError;

    /// The word in brackets: `none [integrity] confidentiality`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let current = text
            .split_whitespace()
            .find_map(|it| it.strip_prefix('[')?.strip_suffix(']'));
        match current {
            Some("none") => Ok(Self::None),
            Some("integrity") => Ok(Self::Integrity),
            Some("confidentiality") => Ok(Self::Confidentiality),
            _ => Err(ParseError::invalid(text, "a lockdown state")),
        }
    }
}

/// The capabilities that the agent uses (capabilities(7)); numbers of
/// include/uapi/linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Capability {
    #[serde(rename = "CAP_CHOWN")]
    Chown = 0,
    #[serde(rename = "CAP_DAC_READ_SEARCH")]
    DacReadSearch = 2,
    #[serde(rename = "CAP_KILL")]
    Kill = 5,
    #[serde(rename = "CAP_SETGID")]
    SetGid = 6,
    #[serde(rename = "CAP_SETUID")]
    SetUid = 7,
    #[serde(rename = "CAP_NET_ADMIN")]
    NetAdmin = 12,
    #[serde(rename = "CAP_IPC_LOCK")]
    IpcLock = 14,
    #[serde(rename = "CAP_SYS_PTRACE")]
    SysPtrace = 19,
    #[serde(rename = "CAP_SYS_ADMIN")]
    SysAdmin = 21,
    #[serde(rename = "CAP_SYS_NICE")]
    SysNice = 23,
    #[serde(rename = "CAP_SYS_RESOURCE")]
    SysResource = 24,
    #[serde(rename = "CAP_PERFMON")]
    Perfmon = 38,
    #[serde(rename = "CAP_BPF")]
    Bpf = 39,
}

impl Capability {
    pub const ALL: [Self; 13] = [
        Self::Chown,
        Self::DacReadSearch,
        Self::Kill,
        Self::SetGid,
        Self::SetUid,
        Self::NetAdmin,
        Self::IpcLock,
        Self::SysPtrace,
        Self::SysAdmin,
        Self::SysNice,
        Self::SysResource,
        Self::Perfmon,
        Self::Bpf,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Chown => "CAP_CHOWN",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysNice => "CAP_SYS_NICE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::Kill => "CAP_KILL",
            Self::SetGid => "CAP_SETGID",
            Self::SetUid => "CAP_SETUID",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The effective capabilities among [`Capability::ALL`].
pub fn capabilities_of_mask(mask: u64) -> BTreeSet<Capability> {
    let has = |it: &Capability| mask & (1 << (*it as u32)) != 0;
    Capability::ALL.into_iter().filter(has).collect()
}

/// The value of a `Name:\tvalue` line of `/proc/PID/status`.
pub fn status_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|it| it.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// The effective capability mask of `/proc/PID/status`.
pub fn effective_mask(status: &str) -> Option<u64> {
    u64::from_str_radix(status_field(status, "CapEff")?, 16).ok()
}

/// The effective capabilities of `/proc/PID/status`, among [`Capability::ALL`].
pub fn effective_capabilities(status: &str) -> Option<BTreeSet<Capability>> {
    effective_mask(status).map(capabilities_of_mask)
}

/// The effective user id of `/proc/PID/status`.
pub fn effective_uid(status: &str) -> Option<u32> {
    status_field(status, "Uid")?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Whether a process has ended and waits for its parent, by `/proc/PID/status`.
pub fn is_zombie(status: &str) -> bool {
    status_field(status, "State").is_some_and(|it| it.starts_with('Z'))
}

/// Nanoseconds of a clock tick in `/proc`: USER_HZ is 100 on x86-64 and arm64 (include/asm-generic/param.h).
pub const NS_PER_TICK: u64 = 10_000_000;

/// When a process started, in clock ticks since boot: field 22 of `/proc/PID/stat` (proc_pid_stat(5)).
pub fn start_ticks(stat: &str) -> Option<u64> {
    stat_field(stat, 22)
}

/// The process that it is a child of: field 4 of `/proc/PID/stat`. 0: none that this PID namespace has.
pub fn parent_pid(stat: &str) -> Option<u32> {
    stat_field(stat, 4)
}

/// It has ended: field 3 of `/proc/PID/stat` is Z or X, and field 20, its threads, is not more than that one.
pub fn is_over(stat: &str) -> bool {
    let is_alone = || stat_field::<u32>(stat, 20).is_none_or(|it| it <= 1);
    matches!(stat_field(stat, 3), Some('Z' | 'X')) && is_alone()
}

/// One from the third on. Field 2, the name, is in parentheses and may hold anything, parentheses and spaces too.
fn stat_field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 1000 200";
        let ended = rest.replace("S 1 7", "Z 1 7");
        // Its first thread alone has ended.
        let goes_on = ended.replace("20 0 1 0", "20 0 2 0");
        for (name, want) in [
            ("sh", Some(8123)),
            ("a) (b", Some(8123)),
            (") S 1 2", Some(8123)),
        ] {
            let stat = format!("7 ({name}) {rest}");
            assert_eq!(start_ticks(&stat), want);
            assert_eq!(parent_pid(&stat), Some(1));
            for (rest, is_it) in [(rest, false), (&*ended, true), (&*goes_on, false)] {
                assert_eq!(is_over(&format!("7 ({name}) {rest}")), is_it, "{rest}");
            }
        }
        for stat in [
            "",
            "7 (sh",
            "7 (sh) S 1 7",
            "7 (sh) S 1 7 7 0 -1 x 1 2 3 4 5 6 7 8 20 0 1 0 x",
        ] {
            assert_eq!(start_ticks(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn releases_of_all_kinds_have_a_version() {
        for (text, expected) in [
            ("6.18.44-fc-v657\n", Some((6, 18, 44))),
            ("7.2-rc1", Some((7, 2, 0))),
            ("5.10.0+", Some((5, 10, 0))),
            ("6.1.0-37-cloud-amd64", Some((6, 1, 0))),
            ("4.18.0-553.el8.x86_64", Some((4, 18, 0))),
            ("6.1", Some((6, 1, 0))),
            ("6.1.", Some((6, 1, 0))),
            ("6", None),
            ("6.", None),
            ("", None),
            ("6..1", None),
            ("v6.1", None),
            ("99999999999.1", None),
        ] {
            let version = text.parse::<KernelVersion>().ok();
            let expected = expected.map(|(major, minor, patch)| KernelVersion {
                major,
                minor,
                patch,
            });
            assert_eq!(version, expected, "{text:?}");
        }
        assert!(KernelVersion::new(5, 14) < KernelVersion::new(6, 1));
    }

    #[test]
    fn the_lockdown_state_is_the_one_in_brackets() {
        for (text, expected) in [
            ("[none] integrity confidentiality\n", Some(Lockdown::None)),
            (
                "none [integrity] confidentiality",
                Some(Lockdown::Integrity),
            ),
            (
                "none integrity [confidentiality]",
                Some(Lockdown::Confidentiality),
            ),
            ("none integrity confidentiality", None),
            ("[other]", None),
            ("[", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Lockdown>().ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn status_gives_capabilities_and_the_user() {
        let status = "Name:\tballast\nUid:\t1000\t0\t0\t0\nCapEff:\t000001fffeffffff\n";
        let missing: Vec<_> = Capability::ALL
            .into_iter()
            .filter(|it| !effective_capabilities(status).is_some_and(|all| all.contains(it)))
            .collect();
        assert_eq!(missing, [Capability::SysResource]);
        assert_eq!(effective_uid(status), Some(0));
        assert_eq!(effective_capabilities("CapEff:\tnone\n"), None);
        assert_eq!(effective_uid("Uid:\t0\n"), None);
        for (state, expected) in [("Z (zombie)", true), ("S (sleeping)", false)] {
            assert_eq!(is_zombie(&format!("Name:\tZ\nState:\t{state}\n")), expected);
        }
    }
}
