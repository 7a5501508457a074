//! The eBPF objects that the build embedded; empty ones where it had no tool chain.

use aya::include_bytes_aligned;

use super::Stream;

static OOM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/oom.o"));
static PROCESS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/process.o"));
static CGROUP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cgroup.o"));
static STALL: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/stall.o"));
pub(super) static DEVICE: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/device.o"));

pub(super) fn of(stream: Stream) -> &'static [u8] {
    match stream {
        Stream::Oom => OOM,
        Stream::Process => PROCESS,
        Stream::Cgroup => CGROUP,
        Stream::Stall => STALL,
    }
}

/// The name of a stream's ring in its object.
pub(super) fn ring(stream: Stream) -> &'static str {
    match stream {
        Stream::Oom => "OOM_EVENTS",
        Stream::Process => "PROCESS_EVENTS",
        Stream::Cgroup => "CGROUP_EVENTS",
        Stream::Stall => "STALL_EVENTS",
    }
}

/// Whether this build holds programs at all.
pub(super) fn are_built() -> bool {
    [OOM, PROCESS, CGROUP, STALL, DEVICE]
        .iter()
        .all(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A global that an object lacks cannot be set before loading. The log level is the library's
    /// symbol, and where nobody sets it everything is logged.
    #[test]
    fn objects_have_the_globals_that_are_set_before_loading() {
        for stream in Stream::ALL {
            let object = of(stream);
            if object.is_empty() {
                // A build without the tool chain, which is the same for all.
                assert!(!are_built());
                continue;
            }
            for global in ["OFFSETS", aya_log::LEVEL] {
                let symbol = format!("\0{global}\0");
                assert!(
                    object
                        .windows(symbol.len())
                        .any(|it| it == symbol.as_bytes()),
                    "{global} in the symbols of {}.o",
                    stream.name()
                );
            }
        }
    }
}
