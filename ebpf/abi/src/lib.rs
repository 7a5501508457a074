//! What the eBPF programs and the agent share: ring buffer records, map values, offsets. No logic.
//!
//! Invariants: `repr(C)`, fixed-width fields, largest first, padding spelled out, a unit on every
//! field, a size assertion behind every struct. The object ships inside the agent, so records carry
//! no version; pinned maps outlive both and are named after [`VERSION`] and the object's bytes.
#![no_std]

mod events;
mod maps;
mod offsets;

pub use events::*;
pub use maps::*;
pub use offsets::{ABSENT, Offsets};

/// Part of the name of everything pinned. Raised with any change to a record or a map value.
pub const VERSION: u32 = 4;

/// Derives zerocopy's traits for the agent; they refuse hidden padding. The size is pinned so that
/// no change of layout goes unnoticed.
macro_rules! shared {
    ($(#[$attr:meta])* pub struct $name:ident($size:literal) { $($body:tt)* }) => {
        $(#[$attr])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[cfg_attr(
            feature = "user",
            derive(
                PartialEq,
                Eq,
                zerocopy::FromBytes,
                zerocopy::IntoBytes,
                zerocopy::KnownLayout,
                zerocopy::Immutable
            )
        )]
        pub struct $name { $($body)* }
        // Changed on purpose? Then raise `VERSION`.
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() <= 8);
    };
}
use shared;
