//! Which sysctls a pod may ask for (kubelet 1.36, pkg/kubelet/sysctl/allowlist.go): those that are on a
//! list and that the kernel keeps apart by namespace, in namespaces that the pod does not share with the
//! host. Pinned by suite `admission`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::pod::Pod;

/// Longest pattern that Kubernetes takes, in bytes.
const MAX_PATTERN: usize = 253;

/// The rule for patterns, which kubelet's message quotes.
const PATTERN_RULE: &str = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]";

/// What kubelet calls safe (kubelet 1.36, pkg/kubelet/sysctl/safe_sysctls.go): it has an effect on no other pod.
/// Kubelet leaves out those that the kernel does not keep apart yet; since 4.15 it does for each.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Sysctls of the IPC namespace; the last two are what is left of the patterns `kernel.shm*` and
/// `kernel.msg*`.
const OF_IPC: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.shm",
    "kernel.msg",
];

/// A kernel namespace that sysctls belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    /// `None`: the sysctl is not known to be namespaced.
    fn of(sysctl: &str) -> Option<Self> {
        if OF_IPC.contains(&sysctl) || sysctl.starts_with("fs.mqueue.") {
            Some(Self::Ipc)
        } else {
            sysctl.starts_with("net.").then_some(Self::Net)
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
        })
    }
}

/// Why a pattern cannot be taken, in kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error(
        "sysctl {} must have at most {MAX_PATTERN} characters and match regex {PATTERN_RULE}",
        quoted(.0)
    )]
    Malformed(String),
    /// With the part of the pattern before `*`.
    #[error("the sysctls {} are not known to be namespaced", quoted(.0))]
    NotNamespaced(String),
}

/// A pod asks for a sysctl that it may not have; kubelet's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    #[error("forbidden sysctl: {} not allowlisted", quoted(.0))]
    NotAllowed(String),
    #[error("forbidden sysctl: {} not allowed with host {namespace} enabled", quoted(.sysctl))]
    OfHost {
        sysctl: String,
        namespace: Namespace,
    },
}

/// See the module. At first none is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedSysctls {
    names: BTreeMap<String, Namespace>,
    prefixes: BTreeMap<String, Namespace>,
}

impl AllowedSysctls {
    /// Those that kubelet calls safe.
    pub fn safe() -> Self {
        let known = SAFE.map(|it| Some((it.to_owned(), Namespace::of(it)?)));
        Self {
            names: known.into_iter().flatten().collect(),
            prefixes: BTreeMap::new(),
        }
    }

    /// A pattern is a name, with `.` or `/` between its parts, or a prefix and `*`.
    pub fn allow(&mut self, pattern: &str) -> Result<(), PatternError> {
        if !is_pattern(pattern) {
            return Err(PatternError::Malformed(pattern.to_owned()));
        }
        let name = normalized(pattern);
        let (name, kind) = match name.split_once('*') {
            Some((prefix, _)) => (prefix, &mut self.prefixes),
            None => (name.as_str(), &mut self.names),
        };
        let namespace = Namespace::of(name);
        let namespace = namespace.ok_or_else(|| PatternError::NotNamespaced(name.to_owned()))?;
        kind.insert(name.to_owned(), namespace);
        Ok(())
    }

    /// The first sysctl that the pod may not have is the reason.
    pub fn check(&self, pod: &Pod) -> Result<(), Forbidden> {
        for sysctl in pod.sysctls.iter().map(|it| normalized(it)) {
            let Some(namespace) = self.namespace(&sysctl) else {
                return Err(Forbidden::NotAllowed(sysctl));
            };
            let is_of_host = match namespace {
                Namespace::Ipc => pod.is_on_host_ipc,
                Namespace::Net => pod.is_on_host_network,
            };
            if is_of_host {
                return Err(Forbidden::OfHost { sysctl, namespace });
            }
        }
        Ok(())
    }

    /// All prefixes of one name are of one namespace.
    fn namespace(&self, sysctl: &str) -> Option<Namespace> {
        if let Some(namespace) = self.names.get(sysctl) {
            return Some(*namespace);
        }
        let mut prefixes = self.prefixes.iter();
        let (_, namespace) = prefixes.find(|(prefix, _)| sysctl.starts_with(prefix.as_str()))?;
        Some(*namespace)
    }
}

/// As patterns.
impl Serialize for AllowedSysctls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let prefixes = self.prefixes.keys().map(|it| format!("{it}*"));
        serializer.collect_seq(self.names.keys().cloned().chain(prefixes))
    }
}

/// Parts joined by `.` or `/`, which begin and end with a letter or a digit; the last one may have `*`
/// for its end.
fn is_pattern(text: &str) -> bool {
    let is_outer = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    let is_inner = |it: u8| is_outer(it) || matches!(it, b'-' | b'_');
    let is_stem =
        |part: &str| part.bytes().next().is_none_or(is_outer) && part.bytes().all(is_inner);
    let is_part = |part: &str| is_stem(part) && part.bytes().next_back().is_some_and(is_outer);
    let mut parts = text.split(['.', '/']);
    let last = parts.next_back().unwrap_or_default();
    let is_last_good = match last.strip_suffix('*') {
        Some(stem) => is_stem(stem),
        None => is_part(last),
    };
    text.len() <= MAX_PATTERN && is_last_good && parts.all(is_part)
}

/// With `.` between the parts of the name. What separates first tells which separator it is.
fn normalized(sysctl: &str) -> String {
    match sysctl.find(['.', '/']) {
        Some(at) if sysctl[at..].starts_with('/') => sysctl
            .chars()
            .map(|it| match it {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        Some(_) | None => sysctl.to_owned(),
    }
}

/// As Go quotes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for it in text.chars() {
        match it {
            '"' | '\\' => quoted.extend(['\\', it]),
            '\n' => quoted += r"\n",
            '\r' => quoted += r"\r",
            '\t' => quoted += r"\t",
            '\u{7}' => quoted += r"\a",
            '\u{8}' => quoted += r"\b",
            '\u{b}' => quoted += r"\v",
            '\u{c}' => quoted += r"\f",
            it if it.is_ascii_control() => quoted += &format!("\\x{:02x}", u32::from(it)),
            it => quoted.push(it),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
