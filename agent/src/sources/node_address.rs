//! The address by which others know the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The one that the kernel gives to what goes by the default route, of IPv4 if there is one, as kubelet takes it without
/// `--node-ip` (pkg/kubelet/nodestatus/setters.go, v1.36: `ResolveBindAddress`). `None`: there is no default route.
/// Nothing is sent.
pub fn node_address() -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849): no node has a route to them but the default one.
    let away = [
        (
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::from([192, 0, 2, 1]),
        ),
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    ];
    let address = |(any, away): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Port 9, discard: no datagram is sent.
        socket.connect((away, 9)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback() && !address.is_unspecified()).then_some(address)
    };
    away.into_iter().find_map(address)
}
