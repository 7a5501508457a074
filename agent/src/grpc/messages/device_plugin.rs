//! Device plugin API v1beta1: services `v1beta1.Registration` and `v1beta1.DevicePlugin`.

use std::collections::BTreeMap;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

/// The one version there is.
pub const VERSION: &str = "v1beta1";

/// What a device says of itself when it may be given out; anything else means that it may not.
pub const HEALTHY: &str = "Healthy";

/// Paths of the methods.
pub mod path {
    pub const REGISTER: &str = "/v1beta1.Registration/Register";
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    pub const PREFERRED_ALLOCATION: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    pub const PRE_START_CONTAINER: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// Name of the plugin's socket in the directory of device plugins.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Options {
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// ListAndWatchResponse, with an end: an empty device is 2 bytes on the wire and 72 here, so a
/// message of a size that is fine could take 150 MB.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceList {
    /// At most [`MAX_DEVICES`](Self::MAX_DEVICES).
    pub devices: Vec<Device>,
    /// Devices that were there beyond them.
    pub n_left_out: usize,
}

impl DeviceList {
    /// Of one resource. Room for a device per mebibyte of a large GPU's memory, as some plugins
    /// share it out.
    pub const MAX_DEVICES: usize = 65_536;

    const DEVICES: u32 = 1;
}

impl Message for DeviceList {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        encoding::message::encode_repeated(Self::DEVICES, &self.devices, buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != Self::DEVICES {
            return encoding::skip_field(wire_type, tag, buffer, context);
        }
        if self.devices.len() < Self::MAX_DEVICES {
            return encoding::message::merge_repeated(
                wire_type,
                &mut self.devices,
                buffer,
                context,
            );
        }
        self.n_left_out += 1;
        encoding::skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        encoding::message::encoded_len_repeated(Self::DEVICES, &self.devices)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct PreferredAllocationRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerPreferredAllocationRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerPreferredAllocationRequest {
    #[prost(string, repeated, tag = "1")]
    pub available_ids: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include_ids: Vec<String>,
    #[prost(int32, tag = "3")]
    pub size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PreferredAllocationResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// The ids for one container: an answer of GetPreferredAllocation, a question of Allocate.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceIds {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// Each container's part as the plugin sent it, a [`ContainerAllocateResponse`]: that is what the
/// checkpoint keeps.
#[derive(Clone, PartialEq, Message)]
pub struct AllocateResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub containers: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerAllocateResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeviceSpec {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PreStartContainerRequest {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}
