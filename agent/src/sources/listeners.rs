//! Who listens at a TCP address, as far as it is seen from here: sockets by `/proc/net` (proc_pid_net(5)), of this
//! network namespace, and their processes by the descriptors that they have open.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::sys::Root;

/// State `TCP_LISTEN` (include/net/tcp_states.h).
const LISTEN: &str = "0A";

/// The process that a listener at `address` would meet there. `None`: there is none, or none that is seen. `likely` is
/// looked at first, and then the descriptors of every process of the node.
pub fn process_at(root: &Root, address: SocketAddr, likely: Option<u32>) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
    let tables: Vec<String> = tables.filter_map(|it| root.read_text(it).ok()).collect();
    let links: Vec<String> = tables
        .iter()
        .flat_map(|it| inodes_at(it, address))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if links.is_empty() {
        return None;
    }
    let is_open = |pid: &u32| {
        let directory = format!("/proc/{pid}/fd");
        let descriptors = root.list(&directory).unwrap_or_default();
        descriptors.iter().any(|it| {
            let link = root.read_link(format!("{directory}/{it}"));
            link.is_ok_and(|it| links.iter().any(|link| it.as_os_str() == link.as_str()))
        })
    };
    likely.filter(is_open).or_else(|| {
        let pids = root.list("/proc").unwrap_or_default();
        let mut pids = pids.iter().filter_map(|it| it.parse().ok());
        pids.find(is_open)
    })
}

/// `NAME (pid N)`
pub fn name(root: &Root, pid: u32) -> String {
    match root.read_text(format!("/proc/{pid}/comm")) {
        // Anybody may give his process any name.
        Ok(name) => format!(
            "{} (pid {pid})",
            name.trim_end().replace(char::is_control, "?")
        ),
        Err(_) => format!("process {pid}"),
    }
}

/// Sockets that listen at an address, or at all addresses with its port.
fn inodes_at(table: &str, address: SocketAddr) -> impl Iterator<Item = &str> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let (ip, port) = fields.nth(1)?.rsplit_once(':')?;
        let is_port = u16::from_str_radix(port, 16) == Ok(address.port());
        let is_listener = fields.nth(1)? == LISTEN;
        let ip = parse_ip(ip)?;
        let asked = address.ip().to_canonical();
        let takes_all_of =
            |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
        let meets = ip == asked || takes_all_of(ip, asked) || takes_all_of(asked, ip);
        (is_port && is_listener && meets).then(|| fields.nth(5))?
    })
}

/// Words of 32 bits as the machine reads them.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8);
    let words = words.map(|it| u32::from_str_radix(str::from_utf8(it).ok()?, 16).ok());
    let words: Vec<[u8; 4]> = words
        .map(|it| it.map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [v4] => Some(Ipv4Addr::from(*v4).into()),
        [_, _, _, _] => {
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed fixture fails the test; files of the test alone"
)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_listener_is_found_by_its_address_and_its_descriptor() {
        let base = Scratch::new("listeners");
        let v4 = "   0: 0100007F:24F8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0\n   \
                  1: 0200007F:24F8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0\n   \
                  2: 0100007F:24F9 0100007F:24F8 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0\n   \
                  3: 00000000:24FA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100 0\n";
        let v6 = "   0: 00000000000000000000000001000000:24FB 00000000000000000000000000000000:0000 0A 00000000:00000000 \
                  00:00000000 00000000     0        0 15 1 0 100 0\n   \
                  1: 00000000000000000000000000000000:24FC 00000000000000000000000000000000:0000 0A 00000000:00000000 \
                  00:00000000 00000000     0        0 16 1 0 100 0\n";
        let root = Root::at(base.directory());
        root.create_dir_all("/proc/net").unwrap();
        base.write("proc/net/tcp", format!("{HEAD}{v4}"));
        base.write("proc/net/tcp6", format!("{HEAD}{v6}"));
        for (pid, inode) in [(21, 11), (22, 12), (23, 13), (24, 14), (25, 15), (26, 16)] {
            let fd = base.path(format!("proc/{pid}/fd"));
            root.create_dir_all(format!("/proc/{pid}/fd")).unwrap();
            base.write(format!("proc/{pid}/comm"), "holder\n");
            std::os::unix::fs::symlink("/dev/null", fd.join("0")).unwrap();
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), fd.join("3")).unwrap();
        }
        for (address, pid) in [
            ("127.0.0.1:9464", Some(21)),
            ("127.0.0.2:9464", Some(22)),
            ("127.0.0.3:9464", None),
            ("127.0.0.1:9465", None),
            ("127.0.0.1:9466", Some(24)),
            ("[::]:9466", Some(24)),
            ("[::1]:9467", Some(25)),
            ("127.0.0.1:9467", None),
            ("0.0.0.0:9467", None),
            ("[::1]:9466", None),
            ("127.0.0.1:9468", Some(26)),
        ] {
            let found = process_at(&root, address.parse().unwrap(), Some(99));
            assert_eq!(found, pid, "{address}");
        }
        for likely in [21, 22] {
            let all = "0.0.0.0:9464".parse().unwrap();
            assert_eq!(process_at(&root, all, Some(likely)), Some(likely));
        }
        assert_eq!(name(&root, 21), "holder (pid 21)");
        base.write("proc/22/comm", "\u{1b}[31m\n");
        assert_eq!(name(&root, 22), "?[31m (pid 22)");
        assert_eq!(name(&root, 99), "process 99");
    }
}
