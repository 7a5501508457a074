//! Records shared by the eBPF programs and the agent. No logic.
#![no_std]
