//! Plugin registration API v1: service `pluginregistration.Registration`, which a plugin serves on
//! a socket of its own for the kubelet to find.

use prost::Message;

/// The type of plugins that this agent takes.
pub const DEVICE_PLUGIN: &str = "DevicePlugin";

/// Paths of the methods.
pub mod path {
    pub const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
    pub const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
}

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct PluginInfo {
    /// `DevicePlugin`, `CSIPlugin`, `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub plugin_type: String,
    /// Of a device plugin: the resource.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of the socket that serves; empty: this one.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}
