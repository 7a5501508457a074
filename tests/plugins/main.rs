//! The agent's side of the device plugin API against plugins of other processes, and that of CRI against a runtime
//! that runs nothing, and the agent's way to an API server and to a kubelet of the test. Needs a temporary directory and
//! nothing else.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a failed fixture fails the test"
)]

mod api_connect;
mod api_server;
mod cri;
mod node;
mod pod_resources;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use ballast::device_plugin::{
    Answer, Call, Deadlines, Disconnect, PluginError, PluginEvent, StartError,
};
use ballast::grpc::messages::device_plugin::RegisterRequest;
use ballast::model::device::RefusalReason;
use ballast::model::numa::NumaMask;
use ballast_tests::wait::patience;

use node::{Node, ids};

const GPU: &str = "example.com/gpu";
const NIC: &str = "example.com/nic";

#[test]
fn a_plugin_registers_streams_its_devices_and_answers() {
    let mut node = Node::new("answers");
    let control = node.path("control");
    let control_option = control.to_string_lossy().into_owned();
    let options = [
        "--numa",
        "2",
        "--preferred",
        "last",
        "--pre-start",
        "--control",
    ];
    node.spawn(
        GPU,
        "3",
        &[&options[..], &[control_option.as_str()]].concat(),
    );

    let (gpu, options) = node.connected(GPU);
    assert!(options.pre_start_required && options.has_preferred_allocation);
    let devices = node.devices(&gpu);
    let found: Vec<_> = devices
        .iter()
        .map(|it| (it.id.as_str(), it.is_healthy, it.numa.map(NumaMask::bits)))
        .collect();
    let expected = [
        ("dev-0", true, Some(1)),
        ("dev-1", true, Some(2)),
        ("dev-2", true, Some(1)),
    ];
    assert_eq!(found, expected);

    fs::write(&control, "unhealthy dev-1").unwrap();
    let healthy: Vec<_> = node.devices(&gpu).iter().map(|it| it.is_healthy).collect();
    assert_eq!(healthy, [true, false, true]);

    let preferred = Call::PreferredAllocation {
        available: ids(&["dev-0", "dev-1", "dev-2"]),
        must_include: ids(&["dev-0"]),
        size: 2,
    };
    assert_eq!(
        node.ask(GPU, preferred),
        Ok(Answer::PreferredAllocation {
            ids: ids(&["dev-0", "dev-2"])
        })
    );
    let both = || ids(&["dev-0", "dev-2"]);
    let allocated = node.ask(GPU, Call::Allocate { ids: both() });
    let Ok(Answer::Allocate { bytes, response }) = allocated else {
        panic!("{allocated:?}");
    };
    assert_eq!(
        ballast::device_plugin::decode_response(&bytes),
        Ok(response.clone())
    );
    assert_eq!(response.envs["EXAMPLE_DEVICES"], "dev-0,dev-2");
    assert_eq!(response.annotations["example.com/devices"], "2");
    assert_eq!(response.devices[1].container_path, "/dev/dev-2");
    assert_eq!(response.devices[1].host_path, "/dev/null");
    assert_eq!(response.devices[1].permissions, "rw");
    assert_eq!(response.mounts[0].host_path, "/etc");
    assert!(response.mounts[0].is_read_only);
    assert_eq!(response.cdi_devices[0], "example.com/gpu=dev-0");
    let started = node.ask(GPU, Call::PreStartContainer { ids: both() });
    assert_eq!(started, Ok(Answer::PreStartContainer));
}

#[test]
fn a_start_removes_sockets_alone_and_plugins_register_again() {
    let mut node = Node::new("restart");
    node.spawn(GPU, "1", &[]);
    let (first, _) = node.connected(GPU);
    node.devices(&first);

    let kept = node.path("device-plugins/kubelet_internal_checkpoint");
    fs::write(&kept, "{}").unwrap();
    let directory = node.path("device-plugins");
    fs::create_dir(directory.join("vendor")).unwrap();
    let stale = directory.join("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    node.restart();
    let (again, _) = node.connected(GPU);
    assert_eq!(again.instance, 1, "each run counts by itself");
    assert_eq!(node.devices(&again).len(), 1);
    assert!(!stale.exists());
    assert!(kept.exists() && directory.join("vendor").exists());
    let mode = fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);

    match node.start_another() {
        Err(StartError::Listen(error)) => assert!(error.to_string().contains("in use"), "{error}"),
        other => panic!("{other:?}"),
    }
    let call = Call::PreStartContainer { ids: ids(&[]) };
    assert!(
        node.ask(GPU, call).is_ok(),
        "the sockets of the first are left alone"
    );
}

#[test]
fn the_newest_plugin_of_a_resource_is_its_plugin() {
    let mut node = Node::new("replace");
    let old = node.spawn(GPU, "1", &[]);
    let (first, _) = node.connected(GPU);
    node.devices(&first);
    let control = node.path("control");
    node.spawn(GPU, "2", &["--control", &control.to_string_lossy()]);
    assert_eq!(
        node.event(),
        PluginEvent::Disconnected {
            plugin: first.clone(),
            why: Disconnect::Replaced
        }
    );
    let (second, _) = node.connected(GPU);
    assert!(second.instance > first.instance);
    assert_eq!(node.devices(&second).len(), 2);

    // The late end of the old one, and of what it still says, is not heard.
    node.kill(old);
    fs::write(&control, "unhealthy dev-0").unwrap();
    assert!(!node.devices(&second)[0].is_healthy);
    let allocated = node.ask(
        GPU,
        Call::Allocate {
            ids: ids(&["dev-1"]),
        },
    );
    assert!(allocated.is_ok(), "{allocated:?}");
}

#[test]
fn a_plugin_that_dies_is_told_and_asked_no_more() {
    let mut node = Node::new("dies");
    let control = node.path("control");
    node.spawn(GPU, "1", &["--control", &control.to_string_lossy()]);
    let (plugin, _) = node.connected(GPU);
    node.devices(&plugin);
    fs::write(&control, "crash").unwrap();
    match node.event() {
        PluginEvent::Disconnected { plugin: it, why } => {
            assert_eq!(it, plugin);
            assert!(matches!(why, Disconnect::StreamEnded(_)), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let asked = node.ask(
        GPU,
        Call::Allocate {
            ids: ids(&["dev-0"]),
        },
    );
    let resource = GPU.to_owned();
    assert_eq!(asked, Err(PluginError::NotConnected { resource }));
    fs::remove_file(&control).unwrap();
    node.spawn(GPU, "1", &[]);
    let (next, _) = node.connected(GPU);
    assert!(next.instance > plugin.instance);
}

#[test]
fn a_plugin_that_hangs_delays_nobody_else() {
    let deadlines = Deadlines {
        allocate: Duration::from_secs(3),
        ..Deadlines::default()
    };
    let mut node = Node::with_deadlines("hangs", deadlines);
    node.spawn(GPU, "1", &["--slow", "600000"]);
    let (gpu, _) = node.connected(GPU);
    node.devices(&gpu);
    node.spawn(NIC, "1", &["--pre-start"]);
    let (nic, _) = node.connected(NIC);
    node.devices(&nic);

    let begun = Instant::now();
    let slow = node.begin_ask(
        GPU,
        Call::Allocate {
            ids: ids(&["dev-0"]),
        },
    );
    let quick = node.ask(
        NIC,
        Call::Allocate {
            ids: ids(&["dev-0"]),
        },
    );
    assert!(quick.is_ok(), "{quick:?}");
    let answer = slow.recv_timeout(patience()).unwrap();
    let took = begun.elapsed();
    let expected = PluginError::TimedOut {
        resource: GPU.to_owned(),
        method: "Allocate",
        deadline: deadlines.allocate,
    };
    assert_eq!(answer, Err(expected));
    assert!(took >= deadlines.allocate, "{took:?}");
}

#[test]
fn what_an_allocation_must_not_be_is_an_error_of_that_call() {
    for (fault, expected) in [
        ("refuse", "the devices are on strike"),
        ("nothing", "that cannot be used"),
        ("garbage-allocate", "that cannot be used"),
    ] {
        let mut node = Node::new(fault);
        node.spawn(GPU, "1", &["--fault", fault]);
        let (plugin, _) = node.connected(GPU);
        node.devices(&plugin);
        let answer = node.ask(
            GPU,
            Call::Allocate {
                ids: ids(&["dev-0"]),
            },
        );
        let error = answer.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(GPU), "{error}");
        let call = Call::PreStartContainer { ids: ids(&[]) };
        assert!(node.ask(GPU, call).is_ok(), "it stays a plugin");
    }
}

#[test]
fn a_list_that_breaks_the_rules_ends_the_plugin_and_no_other() {
    let mut node = Node::new("lists");
    node.spawn(NIC, "1", &[]);
    let (nic, _) = node.connected(NIC);
    node.devices(&nic);
    for (fault, expected) in [
        ("garbage", "protobuf"),
        ("twice", "dev-0 is there twice"),
        ("many", "65537 devices"),
        ("large", "too large"),
    ] {
        let bad = node.spawn(GPU, "2", &["--fault", fault]);
        let (plugin, _) = node.connected(GPU);
        match node.event() {
            PluginEvent::Disconnected {
                plugin: it,
                why: Disconnect::Misbehaved(why),
            } => {
                assert_eq!(it, plugin);
                assert!(why.to_lowercase().contains(expected), "{fault}: {why}");
            }
            other => panic!("{fault}: {other:?}"),
        }
        match node.event() {
            PluginEvent::Refused {
                resource, reason, ..
            } => {
                assert_eq!((resource.as_str(), reason), (GPU, RefusalReason::Devices));
            }
            other => panic!("{fault}: {other:?}"),
        }
        node.kill(bad);
    }
    let allocated = node.ask(
        NIC,
        Call::Allocate {
            ids: ids(&["dev-0"]),
        },
    );
    assert!(allocated.is_ok(), "{allocated:?}");
}

#[test]
fn a_stream_that_ends_with_an_error_is_an_end_and_silence_is_none() {
    let mut node = Node::new("ends");
    node.spawn(GPU, "1", &["--fault", "error"]);
    let (plugin, _) = node.connected(GPU);
    match node.event() {
        PluginEvent::Disconnected { plugin: it, why } => {
            assert_eq!(it, plugin);
            assert_eq!(
                why,
                Disconnect::StreamEnded("Unknown: no devices today".to_owned())
            );
        }
        other => panic!("{other:?}"),
    }
    node.spawn(NIC, "1", &["--fault", "silent"]);
    node.connected(NIC);
    let call = Call::PreStartContainer { ids: ids(&[]) };
    assert!(node.ask(NIC, call).is_ok());
}

#[test]
fn a_registration_that_breaks_the_rules_is_refused_in_words_that_plugins_know() {
    let deadlines = Deadlines {
        connect: Duration::from_secs(1),
        registration: Duration::from_secs(1),
        ..Deadlines::default()
    };
    let mut node = Node::with_deadlines("refused", deadlines);
    let directory = node.path("device-plugins");
    fs::write(directory.join("file"), "").unwrap();
    let elsewhere = node.path("elsewhere.sock");
    let outside = UnixListener::bind(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, directory.join("link")).unwrap();
    std::os::unix::fs::symlink(node.path("."), directory.join("beyond")).unwrap();
    let mute = UnixListener::bind(directory.join("mute.sock")).unwrap();
    let version = "requested API version \"v1alpha\" is not supported by kubelet. Supported \
                   version is [\"v1beta1\"]";
    for (version, endpoint, resource, reason, expected) in [
        ("v1alpha", "x.sock", GPU, RefusalReason::Version, version),
        (
            "v1beta1",
            "x.sock",
            "gpu",
            RefusalReason::ResourceName,
            "the ResourceName \"gpu\" is invalid",
        ),
        (
            "v1beta1",
            "../elsewhere.sock",
            GPU,
            RefusalReason::Endpoint,
            "not the path",
        ),
        (
            "v1beta1",
            "kubelet.sock",
            GPU,
            RefusalReason::Endpoint,
            "not the path",
        ),
        (
            "v1beta1",
            "file",
            GPU,
            RefusalReason::Endpoint,
            "is not a socket",
        ),
        (
            "v1beta1",
            "link",
            GPU,
            RefusalReason::Endpoint,
            "is not a socket",
        ),
        (
            "v1beta1",
            "beyond/elsewhere.sock",
            GPU,
            RefusalReason::Endpoint,
            "is not a socket",
        ),
        (
            "v1beta1",
            "absent.sock",
            GPU,
            RefusalReason::Unreachable,
            "absent.sock is not there",
        ),
        (
            "v1beta1",
            "mute.sock",
            GPU,
            RefusalReason::Unreachable,
            "GetDevicePluginOptions",
        ),
    ] {
        let status = node
            .register(RegisterRequest {
                version: version.to_owned(),
                endpoint: endpoint.to_owned(),
                resource_name: resource.to_owned(),
            })
            .unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unknown);
        assert!(status.message().contains(expected), "{endpoint}: {status}");
        match node.event() {
            PluginEvent::Refused {
                resource: it,
                reason: told,
                why,
            } => {
                assert_eq!((it.as_str(), told), (resource, reason), "{endpoint}");
                assert_eq!(why, status.message());
            }
            other => panic!("{endpoint}: {other:?}"),
        }
    }
    drop((outside, mute));
    node.spawn(GPU, "1", &[]);
    node.connected(GPU);
}

#[test]
fn a_plugin_may_serve_later_than_it_registers() {
    let mut node = Node::new("later");
    let socket = node.path("device-plugins/late.sock");
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "late.sock".to_owned(),
        resource_name: GPU.to_owned(),
    };
    let registering = node.begin_register(request);
    // The socket of another plugin under the name that is waited for.
    node.spawn(GPU, "1", &[]);
    let (first, _) = node.connected(GPU);
    node.devices(&first);
    let own = fs::read_dir(node.path("device-plugins"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .find(|it| it.to_string_lossy().contains("example.com_gpu"))
        .unwrap();
    fs::hard_link(own, &socket).unwrap();
    registering.recv_timeout(patience()).unwrap().unwrap();
    assert!(matches!(node.event(), PluginEvent::Disconnected { .. }));
    node.connected(GPU);
}

#[test]
fn a_registration_socket_is_found_attended_to_and_missed() {
    let mut node = Node::new("registry");
    let registry = node.path("plugins_registry");
    fs::write(registry.join("notes"), "no socket").unwrap();
    let option = registry.to_string_lossy().into_owned();
    let child = node.spawn(GPU, "2", &["--registry", &option]);
    let (plugin, _) = node.connected(GPU);
    assert_eq!(node.devices(&plugin).len(), 2);
    assert!(
        node.ask(
            GPU,
            Call::Allocate {
                ids: ids(&["dev-0"])
            }
        )
        .is_ok()
    );
    node.wait_output(child, "registered");

    let sockets: BTreeSet<_> = fs::read_dir(&registry)
        .unwrap()
        .map(|it| it.unwrap().path())
        .filter(|it| it.extension().is_some_and(|it| it == "sock"))
        .collect();
    assert_eq!(sockets.len(), 1);
    fs::remove_file(sockets.first().unwrap()).unwrap();
    assert_eq!(
        node.event(),
        PluginEvent::Disconnected {
            plugin: plugin.clone(),
            why: Disconnect::SocketRemoved
        }
    );
    node.kill(child);
    node.spawn(GPU, "1", &["--registry", &option]);
    let (next, _) = node.connected(GPU);
    assert!(next.instance > plugin.instance);
    assert!(registry.join("notes").exists());
}

#[test]
fn a_registration_socket_in_a_directory_below_is_found_and_missed() {
    let mut node = Node::new("registry-below");
    let below = node.path("plugins_registry/vendor/gpu");
    fs::create_dir_all(&below).unwrap();
    let option = below.to_string_lossy().into_owned();
    let child = node.spawn(GPU, "1", &["--registry", &option]);
    let (plugin, _) = node.connected(GPU);
    assert_eq!(node.devices(&plugin).len(), 1);
    node.wait_output(child, "registered");
    fs::remove_dir_all(&below).unwrap();
    let why = Disconnect::SocketRemoved;
    assert_eq!(node.event(), PluginEvent::Disconnected { plugin, why });
}

#[test]
fn a_plugin_that_fails_while_its_socket_stays_is_tried_again() {
    let mut node = Node::new("again");
    let registry = node.path("plugins_registry");
    let option = registry.to_string_lossy().into_owned();
    node.spawn(GPU, "1", &["--registry", &option, "--fault", "error"]);
    let (first, _) = node.connected(GPU);
    assert!(matches!(node.event(), PluginEvent::Disconnected { .. }));
    let (second, _) = node.connected(GPU);
    assert!(second.instance > first.instance);
}
