//! The eBPF programs that are loaded on the node.

use std::io;

use aya::programs::{ProgramError, ProgramInfo, loaded_programs};

/// Looks at those programs of the node that have one of these ids; one that is gone is left out. An error: the
/// kernel shows programs only to who has `CAP_SYS_ADMIN` (kernel/bpf/syscall.c, Linux 6.18).
pub fn look_at_programs(ids: &[u32], mut each: impl FnMut(ProgramInfo)) -> io::Result<()> {
    for info in loaded_programs() {
        match info {
            Ok(info) if ids.contains(&info.id()) => each(info),
            Ok(_) => {}
            Err(ProgramError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Err(error.io_error);
            }
            Err(_) => {}
        }
    }
    Ok(())
}
