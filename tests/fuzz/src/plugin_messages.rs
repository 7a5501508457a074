//! Messages of device plugins, as they come off the wire: the first byte says which, the rest is the
//! message. What is taken has the properties that the agent relies on.

use std::path::{Component, Path};

use ballast::config::Compat;
use ballast::decide::placement::devices::DeviceManager;
use ballast::device_plugin::limits::{DeviceList, MAX_ID_BYTES};
use ballast::device_plugin::{check, decode_response};
use ballast::grpc::messages::device_plugin::{
    AllocateResponse, Options, PreferredAllocationResponse, RegisterRequest, VERSION,
};
use ballast::grpc::messages::plugin_registration::PluginInfo;
use ballast::model::device::{ContainerDevices, PluginOptions, is_extended_resource_name};
use ballast::model::numa::NumaMask;
use prost::Message;

use crate::machine::RESOURCE;

/// The messages, in the order of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Register,
    DeviceList,
    Allocate,
    Preferred,
    Options,
    Info,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Register,
        Self::DeviceList,
        Self::Allocate,
        Self::Preferred,
        Self::Options,
        Self::Info,
    ];
}

pub fn run(data: &[u8]) {
    let [kind, message @ ..] = data else { return };
    match Kind::ALL[usize::from(*kind) % Kind::ALL.len()] {
        Kind::Register => {
            if let Some(request) = decoded::<RegisterRequest>(message) {
                check_registration(&request);
            }
        }
        Kind::DeviceList => device_list(message),
        Kind::Allocate => {
            if let Some(response) = decoded::<AllocateResponse>(message) {
                check_responses(&response);
            }
        }
        Kind::Preferred => {
            decoded::<PreferredAllocationResponse>(message);
        }
        Kind::Options => {
            decoded::<Options>(message);
        }
        Kind::Info => {
            decoded::<PluginInfo>(message);
        }
    }
}

/// What is read is written in a form that reads as the same.
fn decoded<T: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let message = T::decode(bytes).ok()?;
    let again = T::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(&message));
    Some(message)
}

fn check_registration(request: &RegisterRequest) {
    if check::version(&request.version).is_ok() {
        assert_eq!(request.version, VERSION);
    }
    let name = &request.resource_name;
    match check::resource_name(name) {
        Ok(()) => {
            assert!(is_extended_resource_name(name));
            assert!(name.bytes().all(|it| it.is_ascii_graphic()), "{name:?}");
        }
        Err(why) => check_told(&why),
    }
    match check::endpoint(&request.endpoint) {
        Ok(below) => {
            let is_name = |it: Component<'_>| matches!(it, Component::Normal(_));
            assert!(below.components().all(is_name), "{below:?}");
            assert!(below.file_name().is_some());
            assert!(!request.endpoint.contains('\0'));
            assert_ne!(below, Path::new("kubelet.sock"));
        }
        Err(why) => check_told(&why),
    }
}

/// Text of a plugin is told as one line.
fn check_told(text: &str) {
    let told = check::told(text);
    assert!(!told.contains(char::is_control), "{told:?}");
}

fn device_list(message: &[u8]) {
    let Ok(list) = DeviceList::decode(message) else {
        return;
    };
    assert!(list.devices.len() <= DeviceList::MAX_DEVICES);
    let n = list.devices.len();
    let devices = match check::devices(list) {
        Ok(devices) => devices,
        Err(error) => return check_told(&error.to_string()),
    };
    assert_eq!(devices.len(), n);
    assert!(devices.is_sorted_by(|a, b| a.id < b.id), "order, or twice");
    for it in &devices {
        assert!(!it.id.is_empty() && it.id.len() <= MAX_ID_BYTES);
    }
    let n_healthy = devices.iter().filter(|it| it.is_healthy).count();
    let mut manager = DeviceManager::new(NumaMask::from_bits(0b11), Compat::Ballast);
    manager.connected(RESOURCE, 1, PluginOptions::default());
    manager.set_devices(RESOURCE, 1, devices);
    let capacity = manager.capacity()[RESOURCE];
    assert_eq!((capacity.capacity, capacity.allocatable), (n, n_healthy));
}

fn check_responses(response: &AllocateResponse) {
    let parts = response.containers.iter();
    let parts: Vec<_> = parts.filter_map(|it| decode_response(it).ok()).collect();
    for part in &parts {
        for (name, value) in &part.envs {
            let entry = format!("{name}={value}");
            assert!(!entry.contains('\0'), "{entry:?}");
            let parted = entry.split_once('=');
            assert_eq!(parted, Some((name.as_str(), value.as_str())));
            assert!(!name.is_empty());
        }
        for device in &part.devices {
            let is_right = |it| "rwm".contains(it);
            assert!(device.permissions.chars().all(is_right), "{device:?}");
        }
        // A response does not differ from itself.
        let merged = ContainerDevices::merge([("a", part), ("b", part)]);
        let alone = ContainerDevices::merge([("a", part)]);
        assert_eq!(merged.envs, alone.envs);
        assert_eq!(merged.envs, part.envs);
        assert_eq!(merged.mounts, alone.mounts);
        assert_eq!(merged.devices, alone.devices);
    }
}
