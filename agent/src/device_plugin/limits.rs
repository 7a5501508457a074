//! How much one plugin, and all of them, may take of the agent.

use std::time::Duration;

pub use crate::grpc::messages::device_plugin::DeviceList;
use crate::grpc::server;

/// Resources with a plugin at a time. Nodes have a handful.
pub const MAX_PLUGINS: usize = 64;

/// Largest list of devices on the wire: kubelet's gRPC library takes as much by default.
pub const MAX_LIST_BYTES: usize = 4 << 20;

/// Longest id of a device, bytes. Ids are UUIDs, PCI addresses, serial numbers.
pub const MAX_ID_BYTES: usize = 1024;

/// Largest answer to Allocate: twice what the kernel takes as one environment variable.
pub const MAX_RESPONSE_BYTES: usize = 256 << 10;

/// Largest request of a registration, and largest answer with options or on a registration socket.
pub const MAX_SMALL_BYTES: usize = 64 << 10;

/// Between two lists of a plugin that are read; more wait at the plugin.
pub const LIST_INTERVAL: Duration = Duration::from_millis(100);

/// Questions to one plugin without an answer; more wait, as when all containers of a node start at once.
pub const MAX_CALLS: usize = 32;

/// How long a question waits for others to be answered.
pub const MAX_CALL_WAIT: Duration = Duration::from_secs(30);

/// Messages on their way between tasks. A list of devices of the largest size is 10 MB, so few.
pub const QUEUE: usize = 64;

/// Registration sockets that are attended to; those after them by name are not.
pub const MAX_REGISTRATION_SOCKETS: usize = 256;

/// Directories in which registration sockets are looked for; those after them by name are passed over.
pub const MAX_REGISTRATION_DIRECTORIES: usize = 64;

/// Characters of an error text of a plugin that are told.
pub const MAX_WHY_CHARS: usize = 512;

/// The registration socket.
pub const REGISTRATION: server::Limits = server::Limits {
    max_connections: 32,
    idle: Duration::from_secs(60),
};
