//! Wakes the agent when a CPU goes online or offline: the kernel's uevents
//! (lib/kobject_uevent.c, Linux 6.18). They tell when to look, never what is true: a lost one costs
//! the time to the next look at `/sys/devices/system/cpu/online`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// What the kernel itself sends; group 2 is udev's.
const KERNEL_GROUP: u32 = 1;

/// A uevent is no longer than its buffer in the kernel, `UEVENT_BUFFER_SIZE`, and its header.
const MESSAGE: usize = 4096;

/// CPUs that come and go are noticed by the clock only.
#[derive(Debug, thiserror::Error)]
#[error("listen to the kernel's uevents")]
pub struct UeventError(#[from] Errno);

/// A netlink socket. Readable, in the sense of `poll`, while there is news.
#[derive(Debug)]
pub struct CpuWatch(OwnedFd);

impl CpuWatch {
    pub fn open() -> Result<Self, UeventError> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Self(socket))
    }

    /// Takes what is queued, without waiting. Whether CPUs may have gone online or offline.
    pub fn drain(&self) -> Result<bool, UeventError> {
        /// A flood that goes on leaves the socket readable, and the caller comes back.
        const MAX_READS: usize = 256;
        let mut message = [0; MESSAGE];
        let mut is_news = false;
        for _ in 0..MAX_READS {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                Ok(n) => is_news |= is_about_cpu(message.get(..n).unwrap_or_default()),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                // The queue ran over: nobody knows what was in it.
                Err(Errno::ENOBUFS) => is_news = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(is_news)
    }
}

impl AsFd for CpuWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `offline@/devices/system/cpu/cpu1`, then `KEY=value` lines that end with a 0 byte each.
fn is_about_cpu(message: &[u8]) -> bool {
    let has = |wanted: &[u8]| message.split(|it| *it == 0).any(|it| it == wanted);
    has(b"SUBSYSTEM=cpu") && (has(b"ACTION=online") || has(b"ACTION=offline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpus_that_come_or_go_are_news() {
        for (message, is_news) in [
            (
                "offline@/devices/system/cpu/cpu1\0ACTION=offline\0\
                 DEVPATH=/devices/system/cpu/cpu1\0SUBSYSTEM=cpu\0SEQNUM=1\0",
                true,
            ),
            ("online@/x\0ACTION=online\0SUBSYSTEM=cpu\0", true),
            ("change@/x\0ACTION=change\0SUBSYSTEM=cpu\0", false),
            ("offline@/x\0ACTION=offline\0SUBSYSTEM=memory\0", false),
            ("libudev\0ACTION=offline\0SUBSYSTEM=cpus\0", false),
            ("", false),
            ("\0\0", false),
        ] {
            assert_eq!(is_about_cpu(message.as_bytes()), is_news, "{message:?}");
        }
    }
}
