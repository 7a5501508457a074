//! gRPC on Unix sockets, as the device plugin and pod resources APIs use it: the protocol is
//! tonic's, the connections are hyper's. Messages are in [`messages`].
//!
//! Invariant: nothing here waits without the caller being able to give up: a call that is dropped
//! resets its stream, and a server whose future is dropped ends its connections.

mod authority;
pub mod client;
pub mod messages;
pub mod server;

use std::time::Duration;

/// Of one list of headers, bytes: gRPC's own are below 1 KiB, an error text comes in one.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Bytes that a peer may send ahead on one call, and on all of a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How long a connection that is to end may take with it.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
