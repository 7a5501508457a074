//! Reading kernel memory at offsets that the loader found in the running kernel's BTF.

use aya_ebpf::helpers::{
    bpf_ktime_get_boot_ns, bpf_probe_read_kernel, bpf_probe_read_kernel_str_bytes,
};
use ebpf_abi::{CGROUP_NAME_LEN, COMM_LEN, Lineage, Offsets, WATCH_EVERYTHING, Watch};

use crate::maps::WATCH;

/// The address of a kernel object. What it points to is known to the verifier (typed tracepoints)
/// or to the caller alone (raw ones).
pub(crate) type Pointer = *const u8;

/// Replaced by the loader and frozen before any program is verified.
#[unsafe(no_mangle)]
static OFFSETS: Offsets = Offsets::NONE;

/// One field of [`OFFSETS`]; volatile, or the compiler folds the zeros of the object file in.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::read_offset(|offsets| &raw const offsets.$field)
    };
}
#[allow(unused_imports, reason = "the stall object names no offset itself")]
pub(crate) use offset;

#[inline(always)]
pub(crate) fn read_offset(field: impl FnOnce(&'static Offsets) -> *const u32) -> u32 {
    // SAFETY: `field` takes the address of a field of a live static; an aligned u32.
    unsafe { core::ptr::read_volatile(field(&OFFSETS)) }
}

/// How kernel memory is read.
pub(crate) trait Memory {
    /// Helpers that read untyped memory may be called.
    const HELPERS: bool;

    /// A field of the object at `base`; 0 where the memory cannot be read.
    ///
    /// # Safety
    /// `base` points to an object of the type that `offset` belongs to, or to nothing readable.
    unsafe fn load<T: Copy + Default>(base: Pointer, offset: u32) -> T;

    /// As [`Memory::load`], for a field that is a pointer.
    ///
    /// # Safety
    /// As for [`Memory::load`].
    unsafe fn pointer(base: Pointer, offset: u32) -> Pointer;
}

/// Loads through BTF pointers. The verifier checks offset and size against the type; the kernel
/// turns a fault into 0.
pub(crate) struct Typed;

/// As [`Typed`], without any memory helper: the form that `lockdown=confidentiality` accepts.
pub(crate) struct Bare;

/// `bpf_probe_read_kernel` from bare addresses.
pub(crate) struct Probed;

macro_rules! direct {
    ($name:ident, $helpers:literal) => {
        impl Memory for $name {
            const HELPERS: bool = $helpers;

            #[inline(always)]
            unsafe fn load<T: Copy + Default>(base: Pointer, offset: u32) -> T {
                // SAFETY: the verifier accepts the load only inside an object of the pointer's
                // BTF type, aligned as that type is; a fault reads as 0, valid for integers.
                unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
            }

            #[inline(always)]
            unsafe fn pointer(base: Pointer, offset: u32) -> Pointer {
                // SAFETY: as in `load`; a null pointer is a valid `Pointer`.
                unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<Pointer>()) }
            }
        }
    };
}
direct!(Typed, true);
direct!(Bare, false);

impl Memory for Probed {
    const HELPERS: bool = true;

    #[inline(always)]
    unsafe fn load<T: Copy + Default>(base: Pointer, offset: u32) -> T {
        // SAFETY: the helper checks the address and fails instead of faulting.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<T>()) }
            .unwrap_or_default()
    }

    #[inline(always)]
    unsafe fn pointer(base: Pointer, offset: u32) -> Pointer {
        // SAFETY: as in `load`.
        unsafe { Self::load::<u64>(base, offset) as Pointer }
    }
}

#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// The beginning of `task.comm` as two words: the verifier counts every step of a byte loop.
///
/// # Safety
/// `task` is a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn comm<M: Memory>(task: Pointer) -> [u64; COMM_LEN / 8] {
    let comm = offset!(task_comm);
    // SAFETY: `comm` has 16 bytes at least.
    unsafe { [M::load::<u64>(task, comm), M::load::<u64>(task, comm + 8)] }
}

/// Copies the beginning of `task.comm`.
///
/// # Safety
/// `task` is a `task_struct`; `to` is valid for writes and aligned to 8.
#[inline(always)]
pub(crate) unsafe fn copy_comm<M: Memory>(task: Pointer, to: *mut [u8; COMM_LEN]) {
    // SAFETY: as above.
    unsafe { to.cast::<[u64; COMM_LEN / 8]>().write(comm::<M>(task)) }
}

/// The cgroup of a task in the hierarchy of the memory controller.
///
/// On v2 that is `dfl_cgrp`: the memory css would be an ancestor's where the controller is not
/// enabled down to the leaf. On v1 `dfl_cgrp` is the root for everything.
///
/// # Safety
/// `task` is a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn cgroup_of<M: Memory>(task: Pointer) -> Pointer {
    // SAFETY: the chain of types is task_struct, css_set, cgroup or css and cgroup.
    unsafe {
        let css_set = M::pointer(task, offset!(task_cgroups));
        if offset!(memory_is_unified) == 1 {
            M::pointer(css_set, offset!(css_set_dfl_cgrp))
        } else {
            M::pointer(
                M::pointer(css_set, offset!(css_set_memory)),
                offset!(css_cgroup),
            )
        }
    }
}

/// # Safety
/// `cgroup` is a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn cgroup_id<M: Memory>(cgroup: Pointer) -> u64 {
    // SAFETY: `cgroup.kn` is a `kernfs_node`.
    unsafe { M::load::<u64>(M::pointer(cgroup, offset!(cgroup_kn)), offset!(kn_id)) }
}

/// # Safety
/// `cgroup` is a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn hierarchy_of<M: Memory>(cgroup: Pointer) -> u32 {
    // SAFETY: `cgroup.root` is a `cgroup_root`.
    unsafe {
        M::load::<u32>(
            M::pointer(cgroup, offset!(cgroup_root)),
            offset!(root_hierarchy_id),
        )
    }
}

/// More levels than runtimes and nested init systems make below kubepods; a cgroup deeper than
/// this counts as outside of the root.
const MAX_DEPTH: u32 = 16;

/// The ancestors of a cgroup up to the watched root.
///
/// # Safety
/// `cgroup` is a `cgroup` of the watched hierarchy.
#[inline(always)]
pub(crate) unsafe fn lineage<M: Memory>(cgroup: Pointer, watch: &Watch) -> Lineage {
    // SAFETY: `cgroup.kn` is the `kernfs_node` of the cgroup's directory, which keeps that of the directory above, its
    // parent's. The root of the hierarchy has none.
    unsafe {
        let mut node = M::pointer(cgroup, offset!(cgroup_kn));
        let leaf = M::load::<u64>(node, offset!(kn_id));
        let mut lineage = Lineage {
            cgroup_id: leaf,
            ..Lineage::default()
        };
        if watch.root_id == 0 || M::load::<u32>(cgroup, offset!(cgroup_level)) < watch.root_level {
            return lineage;
        }
        // The last three cgroups on the way up: those below the root once it is reached. A window
        // and not an index, since each branch in the loop would double the verifier's states.
        let (mut one, mut two, mut three) = (0, 0, 0);
        let mut id = leaf;
        for _ in 0..MAX_DEPTH {
            if id == watch.root_id {
                lineage.below_root = [one, two, three];
                lineage.in_root = 1;
                break;
            }
            node = M::pointer(node, offset!(kn_parent));
            if node.is_null() {
                break;
            }
            three = two;
            two = one;
            one = id;
            id = M::load::<u64>(node, offset!(kn_id));
        }
        lineage
    }
}

/// Copies the names of the directories of the cgroups that [`lineage`] names below the root, in its order.
///
/// # Safety
/// `cgroup` is a `cgroup` in the watched root; `to` is valid for writes.
#[inline(always)]
pub(crate) unsafe fn copy_names(
    cgroup: Pointer,
    watch: &Watch,
    to: *mut [[u8; CGROUP_NAME_LEN]; 3],
) {
    // SAFETY: as in `lineage`. By the helper, since the addresses of nodes are kept over the loop, which would
    // be a state of its own for each depth with types.
    unsafe {
        let mut node = Probed::load::<u64>(cgroup, offset!(cgroup_kn));
        let (mut one, mut two, mut three) = (0, 0, 0);
        for _ in 0..MAX_DEPTH {
            // Levels do not say so: on a node that is a container, the agent does not see those above it.
            if Probed::load::<u64>(node as Pointer, offset!(kn_id)) == watch.root_id {
                break;
            }
            three = two;
            two = one;
            one = node;
            node = Probed::load::<u64>(node as Pointer, offset!(kn_parent));
        }
        let to = to.cast::<[u8; CGROUP_NAME_LEN]>();
        copy_name::<Probed>(one as Pointer, to);
        copy_name::<Probed>(two as Pointer, to.add(1));
        copy_name::<Probed>(three as Pointer, to.add(2));
    }
}

/// Copies the name of a cgroup's directory, which ends at the first NUL: what lies behind is not written. Where it
/// cannot be read, `to` is zeroed by the helper (kernel/trace/bpf_trace.c).
///
/// # Safety
/// `node` is a `kernfs_node` or null; `to` is valid for writes.
#[inline(always)]
pub(crate) unsafe fn copy_name<M: Memory>(node: Pointer, to: *mut [u8; CGROUP_NAME_LEN]) {
    // SAFETY: as above; `kn_name` is a pointer to text.
    unsafe {
        let from = M::pointer(node, offset!(kn_name));
        let to = core::slice::from_raw_parts_mut(to.cast::<u8>(), CGROUP_NAME_LEN);
        let _ = bpf_probe_read_kernel_str_bytes(from, to);
    }
}

/// What is watched now.
#[inline(always)]
pub(crate) fn watch() -> Watch {
    WATCH.get(0).copied().unwrap_or_default()
}

#[inline(always)]
pub(crate) fn is_reported(lineage: &Lineage, watch: &Watch) -> bool {
    lineage.in_root != 0 || watch.flags & WATCH_EVERYTHING != 0
}
