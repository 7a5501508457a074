//! What every object needs.

/// GPL-compatible, which the kernel asks for before it lends its tracing helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Nothing here panics; a program that could would not pass the verifier.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
