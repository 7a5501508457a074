//! Pure policy: data in, decision out. No IO, no clock, no log, no global state.

pub mod env;
pub mod lifecycle;
