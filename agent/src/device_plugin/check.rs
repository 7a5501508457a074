//! What a plugin says, checked before anybody hears it.

use std::path::{Component, Path, PathBuf};

use super::limits::{DeviceList, MAX_ID_BYTES, MAX_WHY_CHARS};
use crate::grpc::messages::device_plugin::{self as wire, HEALTHY, VERSION};
use crate::model::device::Device;
use crate::model::numa::NumaMask;
use crate::model::topology::NumaNodeId;

/// Why a list of devices is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("{n} devices are more than {}", DeviceList::MAX_DEVICES)]
    TooMany { n: usize },
    #[error("a device has no id")]
    NoId,
    #[error("the id of a device has {n_bytes} bytes, more than {MAX_ID_BYTES}")]
    LongId { n_bytes: usize },
    #[error("the id {0} is there twice")]
    Twice(String),
}

/// The devices in the order of their ids.
pub fn devices(list: DeviceList) -> Result<Vec<Device>, ListError> {
    if list.n_left_out > 0 {
        let n = list.devices.len() + list.n_left_out;
        return Err(ListError::TooMany { n });
    }
    let mut devices = Vec::with_capacity(list.devices.len());
    for it in list.devices {
        if it.id.is_empty() {
            return Err(ListError::NoId);
        }
        if it.id.len() > MAX_ID_BYTES {
            return Err(ListError::LongId {
                n_bytes: it.id.len(),
            });
        }
        devices.push(Device {
            is_healthy: it.health == HEALTHY,
            numa: it.topology.as_ref().map(numa),
            id: it.id,
        });
    }
    devices.sort_by(|a, b| a.id.cmp(&b.id));
    let twice = devices.windows(2).find(|it| it[0].id == it[1].id);
    match twice {
        Some(pair) => Err(ListError::Twice(pair[0].id.clone())),
        None => Ok(devices),
    }
}

/// Nodes that cannot be any are left out, as kubelet's masks do.
fn numa(topology: &wire::Topology) -> NumaMask {
    let ids = topology.nodes.iter().filter_map(|it| {
        let id = NumaNodeId(u32::try_from(it.id).ok()?);
        NumaMask::EMPTY.with(id).ok()
    });
    ids.fold(NumaMask::EMPTY, NumaMask::union)
}

/// In kubelet's words, which plugins log.
pub fn version(version: &str) -> Result<(), String> {
    match version == VERSION {
        true => Ok(()),
        false => Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is {:?}",
            [VERSION]
        )),
    }
}

/// In kubelet's words, which plugins log.
pub fn resource_name(name: &str) -> Result<(), String> {
    match crate::model::device::is_extended_resource_name(name) {
        true => Ok(()),
        false => Err(format!("the ResourceName {name:?} is invalid")),
    }
}

/// Where the socket of a plugin is, by the endpoint of its registration: a path that begins in the
/// directory of the registration socket, with `/` or without, and does not leave it.
pub fn endpoint(endpoint: &str) -> Result<PathBuf, String> {
    let below: Option<PathBuf> = Path::new(endpoint)
        .components()
        .filter(|it| !matches!(it, Component::RootDir | Component::CurDir))
        .map(|it| match it {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let registration = Path::new(super::REGISTRATION_SOCKET);
    below
        .filter(|it| it.file_name().is_some() && it.as_path() != registration)
        .filter(|_| !endpoint.contains('\0'))
        .ok_or_else(|| {
            format!(
                "the endpoint {endpoint:?} is not the path of the plugin's socket below the \
                 directory of {}",
                super::REGISTRATION_SOCKET
            )
        })
}

/// A text of a plugin as it may be told: one line of bounded length.
pub fn told(text: &str) -> String {
    let plain = |it: char| if it.is_control() { ' ' } else { it };
    text.chars().take(MAX_WHY_CHARS).map(plain).collect()
}

/// An error of a call as it may be told.
pub(super) fn told_status(status: &tonic::Status) -> String {
    let message = told(status.message());
    match message.is_empty() {
        true => format!("{:?}", status.code()),
        false => format!("{:?}: {message}", status.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn device(id: &str, health: &str, nodes: Option<&[i64]>) -> wire::Device {
        wire::Device {
            id: id.to_owned(),
            health: health.to_owned(),
            topology: nodes.map(|ids| wire::Topology {
                nodes: ids.iter().map(|&id| wire::NumaNode { id }).collect(),
            }),
        }
    }

    fn list(devices: Vec<wire::Device>) -> DeviceList {
        DeviceList {
            devices,
            n_left_out: 0,
        }
    }

    #[test]
    fn devices_come_in_the_order_of_their_ids_with_what_is_said_of_them() {
        let found = devices(list(vec![
            device("c", "Healthy", Some(&[-1, 64, i64::MAX])),
            device("b", "Unhealthy", Some(&[0, 3])),
            device("a", "healthy", None),
        ]))
        .expect("good devices");
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.id.as_str(), it.is_healthy, it.numa.map(NumaMask::bits)))
            .collect();
        assert_eq!(
            told,
            [
                ("a", false, None),
                ("b", false, Some(0b1001)),
                ("c", true, Some(0))
            ]
        );
    }

    #[test]
    fn a_list_that_breaks_a_rule_is_refused_whole() {
        let good = || device("a", "Healthy", None);
        let long = "x".repeat(MAX_ID_BYTES + 1);
        for (bad, expected) in [
            (vec![good(), device("", "Healthy", None)], ListError::NoId),
            (
                vec![good(), device(&long, "Healthy", None)],
                ListError::LongId {
                    n_bytes: long.len(),
                },
            ),
            (vec![good(), good()], ListError::Twice("a".to_owned())),
        ] {
            assert_eq!(devices(list(bad)), Err(expected));
        }
    }

    #[test]
    fn devices_beyond_the_limit_are_counted_and_not_kept() {
        let n = DeviceList::MAX_DEVICES + 3;
        // Field 1, length 0, n times: two bytes a device.
        let bytes = [0x0a, 0].repeat(n);
        let list = DeviceList::decode(bytes.as_slice()).expect("valid protobuf");
        assert_eq!(list.devices.len(), DeviceList::MAX_DEVICES);
        assert_eq!(devices(list), Err(ListError::TooMany { n }));
    }

    #[test]
    fn an_endpoint_lies_below_the_directory_as_with_kubelet() {
        for (text, expected) in [
            ("gpu.sock", Some("gpu.sock")),
            ("..gpu", Some("..gpu")),
            ("a/b", Some("a/b")),
            ("a//./b/", Some("a/b")),
            ("./gpu.sock", Some("gpu.sock")),
            ("/var/x.sock", Some("var/x.sock")),
            ("a/kubelet.sock", Some("a/kubelet.sock")),
            ("", None),
            ("/", None),
            (".", None),
            ("..", None),
            ("../x.sock", None),
            ("a/../x.sock", None),
            ("a\0b", None),
            ("kubelet.sock", None),
            ("/./kubelet.sock", None),
        ] {
            let found = endpoint(text).ok();
            assert_eq!(found.as_deref(), expected.map(Path::new), "{text:?}");
        }
    }

    #[test]
    fn refusals_are_in_the_words_that_plugins_know() {
        assert_eq!(
            version("v1beta2").expect_err("another version"),
            "requested API version \"v1beta2\" is not supported by kubelet. Supported version is \
             [\"v1beta1\"]"
        );
        assert_eq!(
            resource_name("gpu").expect_err("no domain"),
            "the ResourceName \"gpu\" is invalid"
        );
    }
}
