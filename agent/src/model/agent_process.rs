//! What the agent itself uses, from the text of its files below `/proc/self`.

use std::time::Duration;

use super::kernel::status_field;
use super::text::limit;

/// Clock ticks per second in `/proc`: USER_HZ, 100 on x86-64 and arm64 (include/asm-generic/param.h).
const TICKS_PER_SECOND: u64 = 100;

/// `None`: could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time since the start.
    pub cpu: Option<Duration>,
    pub open_fds: Option<u64>,
    /// The soft limit; `None` also stands for no limit.
    pub max_fds: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub resident_bytes: Option<u64>,
    pub threads: Option<u64>,
    /// Capabilities in the effective set.
    pub n_capabilities: Option<u32>,
}

impl ProcessUsage {
    /// From `stat`, `status`, `limits` and the number of entries of `fd` (Documentation/filesystems/
    /// proc.rst). What is missing or not understood is `None`.
    pub fn from_texts(
        stat: Option<&str>,
        status: Option<&str>,
        limits: Option<&str>,
        open_fds: Option<u64>,
    ) -> Self {
        let field = |name: &str| status.and_then(|it| status_field(it, name));
        let kib = |name: &str| {
            let n: u64 = field(name)?.strip_suffix(" kB")?.trim().parse().ok()?;
            n.checked_mul(1024)
        };
        let capabilities = field("CapEff").and_then(|it| u64::from_str_radix(it, 16).ok());
        Self {
            cpu: stat.and_then(cpu_time),
            open_fds,
            max_fds: limits.and_then(max_open_files),
            virtual_bytes: kib("VmSize"),
            resident_bytes: kib("VmRSS"),
            threads: field("Threads").and_then(|it| it.parse().ok()),
            n_capabilities: capabilities.map(u64::count_ones),
        }
    }
}

/// Fields 14 and 15 of `stat`, counted after the name, which may hold spaces and parentheses.
fn cpu_time(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let ticks = user.checked_add(system)?;
    let milliseconds = ticks.checked_mul(1000 / TICKS_PER_SECOND)?;
    Some(Duration::from_millis(milliseconds))
}

fn max_open_files(limits: &str) -> Option<u64> {
    let [soft, _] = limit(limits, "Max open files")?;
    soft.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "812 (bal) last) S 1 812 812 0 -1 4194560 900 0 0 0 125 75 0 0 20 0 3 0 \
                        5000 1048576 256";
    const STATUS: &str = "Name:\tballast\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n\
                          Threads:\t3\nCapEff:\t000001ffffffffff\n";
    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit\n\
                          Max open files            1024                 524288               files\n";

    #[test]
    fn every_file_gives_its_part() {
        let usage = ProcessUsage::from_texts(Some(STAT), Some(STATUS), Some(LIMITS), Some(9));
        assert_eq!(
            usage,
            ProcessUsage {
                cpu: Some(Duration::from_secs(2)),
                open_fds: Some(9),
                max_fds: Some(1024),
                virtual_bytes: Some(2 << 20),
                resident_bytes: Some(512 << 10),
                threads: Some(3),
                n_capabilities: Some(41),
            }
        );
    }

    #[test]
    fn what_is_missing_or_strange_is_not_known() {
        let none = ProcessUsage::default();
        assert_eq!(ProcessUsage::from_texts(None, None, None, None), none);
        for text in [
            "",
            "1 (x",
            "1 (x) S 1",
            "VmRSS: many kB",
            "VmRSS:\t18446744073709551615 kB",
            "CapEff:\txyz",
            "Max open files            unlimited            unlimited            files",
        ] {
            let usage = ProcessUsage::from_texts(Some(text), Some(text), Some(text), None);
            assert_eq!(usage, none, "{text:?}");
        }
    }
}
