use serde_json::json;

use super::*;
use crate::model::pod::PodOrigin;

fn list(patterns: &[&str]) -> AllowedSysctls {
    let mut list = AllowedSysctls::default();
    for pattern in patterns {
        list.allow(pattern).expect("a good pattern");
    }
    list
}

fn pod(sysctl: &str) -> Pod {
    let source = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "containers": [{"name": "app"}],
            "securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]},
        },
    });
    let source = serde_json::from_value(source).expect("a v1.Pod");
    Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod")
}

#[test]
fn a_sysctl_is_allowed_by_its_name_or_a_prefix_with_either_separator() {
    let list = list(&["kernel.sem", "net/core/*", "kernel.shm*"]);
    for (sysctl, is_allowed) in [
        ("kernel.sem", true),
        ("kernel/sem", true),
        ("kernel.sem2", false),
        ("net.core.somaxconn", true),
        ("net.ipv4.tcp_syncookies", false),
        ("kernel.shmmax", true),
        ("kernel.msgmax", false),
        ("vm.swappiness", false),
    ] {
        assert_eq!(list.check(&pod(sysctl)).is_ok(), is_allowed, "{sysctl}");
    }
}

#[test]
fn all_that_is_safe_is_known_and_nothing_else_is_allowed_by_itself() {
    let safe = AllowedSysctls::safe();
    for sysctl in SAFE {
        assert_eq!(safe.check(&pod(sysctl)), Ok(()));
    }
    assert!(safe.check(&pod("net.core.somaxconn")).is_err());
}

#[test]
fn the_first_separator_of_a_name_tells_which_one_it_uses() {
    for (name, normal) in [
        (
            "net/ipv4/conf/eth0.1/forwarding",
            "net.ipv4.conf.eth0/1.forwarding",
        ),
        (
            "net.ipv4.conf.eth0/1.forwarding",
            "net.ipv4.conf.eth0/1.forwarding",
        ),
        ("kernel", "kernel"),
        ("", ""),
    ] {
        assert_eq!(normalized(name), normal);
    }
}

#[test]
fn a_namespace_of_the_host_is_not_the_pods_to_change() {
    let list = list(&["net.*", "fs.mqueue.*"]);
    let on_host = |sysctl: &str| Pod {
        is_on_host_network: true,
        is_on_host_ipc: true,
        ..pod(sysctl)
    };
    for (sysctl, message) in [
        (
            "net/core/somaxconn",
            r#"forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled"#,
        ),
        (
            "fs.mqueue.msg_max",
            r#"forbidden sysctl: "fs.mqueue.msg_max" not allowed with host IPC enabled"#,
        ),
        (
            "kernel.sem",
            r#"forbidden sysctl: "kernel.sem" not allowlisted"#,
        ),
    ] {
        let forbidden = list.check(&on_host(sysctl)).expect_err("of the host");
        assert_eq!(forbidden.to_string(), message);
    }
    let only_ipc = Pod {
        is_on_host_ipc: true,
        ..pod("net.core.somaxconn")
    };
    assert_eq!(list.check(&only_ipc), Ok(()));
}

#[test]
fn patterns_are_names_that_the_kernel_keeps_apart() {
    let long = format!("net.{}", "a".repeat(249));
    let too_long = format!("{long}a");
    for (pattern, fault) in [
        ("net.ipv4.tcp_*", None),
        ("net.ipv4.tcp-*", None),
        (long.as_str(), None),
        (too_long.as_str(), Some("match regex")),
        ("net.ipv4.tcp_", Some("match regex")),
        ("net.ipv4.conf.*.forwarding", Some("match regex")),
        ("net..core", Some("match regex")),
        ("Net.core", Some("match regex")),
        ("", Some("match regex")),
        (
            "*",
            Some(r#"the sysctls "" are not known to be namespaced"#),
        ),
        (
            "kernel.*",
            Some(r#"the sysctls "kernel." are not known to be namespaced"#),
        ),
        (
            "net*",
            Some(r#"the sysctls "net" are not known to be namespaced"#),
        ),
        ("vm.swappiness", Some(r#""vm.swappiness" are not known"#)),
    ] {
        let error = AllowedSysctls::default().allow(pattern).err();
        let error = error.map(|it| it.to_string());
        match fault {
            None => assert_eq!(error, None, "{pattern}"),
            Some(fault) => assert!(error.is_some_and(|it| it.contains(fault)), "{pattern}"),
        }
    }
}

#[test]
fn names_are_quoted_as_go_does() {
    assert_eq!(quoted("a\"\\\n\u{1}\u{7f}é"), r#""a\"\\\n\x01\x7fé""#);
}
