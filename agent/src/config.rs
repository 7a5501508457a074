//! Configuration: `raw` is the shape of the file, `checked` what the rest of the agent sees.
//! In: text. Out: a `Config`, or every fault at once with its field path. Reads no file itself.

pub mod checked;

pub use checked::*;
