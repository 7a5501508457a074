//! Which devices a container may use: those that every program needs, and those that it was given.
//!
//! Invariant: the same devices give the same rules, whatever their order.

use crate::model::device_access::{
    AllocatedDevice, DeviceAccess, DeviceKind, DevicePermissions, DeviceRule, DeviceSet,
};

/// Devices of every container: what the runtimes of OCI containers allow, without the console.
///
/// Making nodes is allowed of everything, as there: it opens nothing. Whoever may make a node on the
/// host may as well change the mode of one that is there, which no device rule stops, and unpackers
/// and image builders make nodes that they never open.
///
/// `/dev/console` is left out. In an OCI container it is a terminal of its own; here it would be the
/// host's, where an operator types. So are `/dev/kmsg`, `/dev/fuse`, `/dev/kvm`, GPUs and disks:
/// those are what device plugins give out.
const DEFAULT: [(DeviceKind, Option<u32>, Option<u32>, DevicePermissions); 11] = {
    use DeviceKind::{Block, Char};
    use DevicePermissions as Permissions;
    [
        (Block, None, None, Permissions::MKNOD),
        (Char, None, None, Permissions::MKNOD),
        // /dev/null, zero, full, random, urandom.
        (Char, Some(1), Some(3), Permissions::ALL),
        (Char, Some(1), Some(5), Permissions::ALL),
        (Char, Some(1), Some(7), Permissions::ALL),
        (Char, Some(1), Some(8), Permissions::ALL),
        (Char, Some(1), Some(9), Permissions::ALL),
        // The terminal that a process has already, if any; making terminals, and those made.
        (Char, Some(5), Some(0), Permissions::ALL),
        (Char, Some(5), Some(2), Permissions::ALL),
        (Char, Some(136), None, Permissions::ALL),
        // /dev/net/tun: making an interface with it takes CAP_NET_ADMIN.
        (Char, Some(10), Some(200), Permissions::ALL),
    ]
};

/// What a container with these devices may use. `allocated` may be in any order and name a device
/// twice.
pub fn device_access(allocated: &[AllocatedDevice]) -> DeviceAccess {
    let default = DEFAULT
        .into_iter()
        .map(|(kind, major, minor, permissions)| DeviceRule {
            devices: DeviceSet { kind, major, minor },
            permissions,
        });
    let given = allocated.iter().map(|it| DeviceRule {
        devices: it.numbers.into(),
        permissions: it.permissions,
    });
    DeviceAccess::Only(default.chain(given).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_access::DeviceNumbers;

    fn device(kind: DeviceKind, major: u32, minor: u32, permissions: &str) -> AllocatedDevice {
        AllocatedDevice {
            host_path: format!("/dev/{major}-{minor}").into(),
            numbers: DeviceNumbers { kind, major, minor },
            permissions: permissions.parse().expect("permissions"),
        }
    }

    #[test]
    fn every_container_has_the_pseudo_devices_and_no_disk_or_console() {
        let access = device_access(&[]).to_string();
        for rule in [
            "b *:* m",
            "c *:* m",
            "c 1:3 rwm",
            "c 1:9 rwm",
            "c 5:2 rwm",
            "c 136:* rwm",
        ] {
            assert!(access.contains(rule), "{rule}: {access}");
        }
        for rule in ["c 5:1", "c 1:11", "c 10:229", "b 7:", "r, c *:*"] {
            assert!(!access.contains(rule), "{rule}: {access}");
        }
    }

    #[test]
    fn allocated_devices_are_added_whatever_their_order() {
        let gpu = device(DeviceKind::Char, 195, 0, "rw");
        let again = device(DeviceKind::Char, 195, 0, "m");
        let disk = device(DeviceKind::Block, 259, 1, "r");
        let access = device_access(&[gpu.clone(), disk.clone(), again.clone()]);
        assert_eq!(access, device_access(&[again, gpu, disk]));
        let text = access.to_string();
        assert!(text.contains("b 259:1 r, "), "{text}");
        assert!(text.contains("c 195:0 rwm"), "{text}");
    }

    #[test]
    fn a_device_that_everybody_has_changes_nothing() {
        let null = device(DeviceKind::Char, 1, 3, "rw");
        assert_eq!(device_access(&[null]), device_access(&[]));
    }
}
