//! `NO_PROXY`: which servers are reached without a proxy, exactly as Go's programs read it
//! (golang.org/x/net/http/httpproxy, `config.init` and `useProxy`), kubelet and kubectl among them.

use std::net::IpAddr;

use hyper::Uri;
use hyper::http::uri::Scheme;

/// Whether `server` is reached without a proxy. `list`: the value of `NO_PROXY`; it may be empty.
pub(super) fn is_direct(server: &Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default().to_ascii_lowercase();
    let default = match server.scheme() == Some(&Scheme::HTTP) {
        true => 80,
        false => 443,
    };
    let port = server.port_u16().unwrap_or(default).to_string();
    let host = host.trim_matches(['[', ']']);
    let address = address(host);
    if host == "localhost" || address.is_some_and(|it| it.is_loopback()) {
        return true;
    }
    let mut entries = list.split(',').map(|it| it.trim().to_ascii_lowercase());
    entries.any(|it| is_of(host, address, &port, &it))
}

/// Whether an entry of the list means the server. `entry`: in small letters, without blanks around it.
fn is_of(host: &str, address: Option<IpAddr>, port: &str, entry: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some(network) = Network::parse(entry) {
        return address.is_some_and(|it| network.contains(it));
    }
    let (of_host, of_port) = split_port(entry);
    let is_of_port = of_port.is_empty() || of_port == port;
    if let Some(of_address) = self::address(of_host) {
        return is_of_port && address == Some(of_address);
    }
    // A domain never means an address.
    is_of_port && address.is_none() && is_below(host, of_host)
}

/// `.b` and `*.b` mean what is below `b`; `b` means itself, too.
fn is_below(host: &str, of: &str) -> bool {
    match of.strip_prefix("*.").or(of.strip_prefix('.')) {
        Some(of) => {
            let above = host.strip_suffix(of);
            above.is_some_and(|it| it.ends_with('.'))
        }
        None if of.is_empty() => false,
        None => {
            let above = host.strip_suffix(of);
            above.is_some_and(|it| it.is_empty() || it.ends_with('.'))
        }
    }
}

/// Splits `HOST:PORT` or `[ADDRESS]:PORT`. Without a port all of it is the host, as with an IPv6 address without
/// brackets.
fn split_port(entry: &str) -> (&str, &str) {
    match entry.rsplit_once(':') {
        Some((host, port)) if host.starts_with('[') && host.ends_with(']') => {
            (&host[1..host.len() - 1], port)
        }
        Some((host, port)) if !host.contains([':', '[', ']']) => (host, port),
        _ => (entry, ""),
    }
}

/// An IPv4 address that is written as IPv6 is the IPv4 address.
fn address(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().ok();
    address.map(|it| it.to_canonical())
}

/// `ADDRESS/BITS`
struct Network {
    address: IpAddr,
    n_bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address = address.parse::<IpAddr>().ok()?;
        let all = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let n_bits = bits.parse::<u32>().ok().filter(|it| *it <= all)?;
        Some(match (address.to_canonical(), n_bits.checked_sub(96)) {
            // An IPv4 network that is written as IPv6.
            (v4 @ IpAddr::V4(_), Some(n_bits)) if address.is_ipv6() => Self {
                address: v4,
                n_bits,
            },
            _ => Self { address, n_bits },
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        // A shift by all bits is none that Rust does: then every address is in the network.
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(it)) => {
                let differing = network.to_bits() ^ it.to_bits();
                differing.checked_shr(32 - self.n_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(it)) => {
                let differing = network.to_bits() ^ it.to_bits();
                differing.checked_shr(128 - self.n_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_read_as_gos_programs_read_it() {
        for (server, list, right) in [
            ("https://a.b", "", false),
            ("https://a.b", " , ,", false),
            ("https://a.b", "*", true),
            ("https://10.0.0.1:6443", "*", true),
            ("https://[fd00::1]:6443", "c.d, * ", true),
            // Itself and what is below it.
            ("https://b", "b", true),
            ("https://a.b", "b", true),
            ("https://x.a.b", "b", true),
            ("https://ab", "b", false),
            ("https://A.B", "b", true),
            ("https://a.b", "A.B", true),
            ("https://a.b", "c.d,b", true),
            ("https://a.b", "c.d , b ", true),
            ("https://a.b", "x.a.b", false),
            // What is below it alone.
            ("https://b", ".b", false),
            ("https://a.b", ".b", true),
            ("https://b", "*.b", false),
            ("https://a.b", "*.b", true),
            ("https://a.b", "a.*", false),
            ("https://a.b", "*b", false),
            // Ports.
            ("https://api.b:6443", "api.b:6443", true),
            ("https://api.b:6443", ".b:6443", true),
            ("https://api.b:6443", "*.b:6443", true),
            ("https://api.b:6443", "b:6443", true),
            ("https://api.b:6443", "b:443", false),
            ("https://api.b", "b:443", true),
            ("http://api.b", "b:80", true),
            ("https://api.b", "b:", true),
            ("https://api.b", ":443", false),
            // Addresses.
            ("https://10.0.0.1:6443", "10.0.0.1", true),
            ("https://10.0.0.1:6443", "10.0.0.1:6443", true),
            ("https://10.0.0.1:6443", "10.0.0.1:443", false),
            ("https://10.0.0.1", "10.0.0.2", false),
            ("https://10.0.0.1", "0.1", false),
            ("https://10.0.0.1", ".1", false),
            ("https://[fd00::1]:6443", "fd00::1", true),
            ("https://[fd00::1]:6443", "FD00:0::1", true),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", true),
            ("https://[fd00::1]:6443", "[fd00::1]:443", false),
            ("https://[fd00::1]", "[fd00::1]", false),
            ("https://10.0.0.1", "::ffff:10.0.0.1", true),
            // Networks, which have no ports.
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://10.1.2.3", "10.9.9.9/8", true),
            ("https://11.1.2.3", "10.0.0.0/8", false),
            ("https://10.1.2.3", "10.1.2.3/32", true),
            ("https://10.1.2.4", "10.1.2.3/32", false),
            ("https://10.1.2.3", "0.0.0.0/0", true),
            ("https://10.1.2.3", "10.0.0.0/33", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8:6443", false),
            ("https://[fd00:1::1]", "fd00::/8", true),
            ("https://[fe00:1::1]", "fd00::/8", false),
            ("https://[fd00:1::1]", "::/0", true),
            ("https://10.1.2.3", "::/0", false),
            ("https://10.1.2.3", "::ffff:10.0.0.0/104", true),
            ("https://a.b", "0.0.0.0/0", false),
            // This machine.
            ("https://localhost:6443", "", true),
            ("https://127.1.2.3:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://a.localhost", "", false),
        ] {
            let asked: Uri = server.parse().expect(server);
            assert_eq!(is_direct(&asked, list), right, "{server} {list:?}");
        }
    }
}
