//! `kubelet_internal_checkpoint` (pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go, v1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use serde::Serialize;

use super::StateFileError;
use super::dump::{self, Dump};
use super::json::{self, Fields, FromJson, JsonError, Node};
use crate::model::placement::{DeviceAllocation, DeviceState};
use crate::model::pod::PodUid;
use crate::model::topology::NumaNodeId;

/// Where kubelet keeps devices without a NUMA node.
const NO_NUMA_NODE: i64 = -1;

/// What the file says. Lists keep the order of the file, which its checksum depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFile {
    /// Kubelet writes `None` for a list that nothing was ever put in.
    #[serde(rename = "PodDeviceEntries")]
    pub entries: Option<Vec<DeviceEntry>>,
    /// Resource name to the ids of its healthy devices.
    #[serde(rename = "RegisteredDevices")]
    pub registered: BTreeMap<String, Vec<String>>,
}

/// What one container holds of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceEntry {
    #[serde(rename = "PodUID")]
    pub pod: String,
    #[serde(rename = "ContainerName")]
    pub container: String,
    #[serde(rename = "ResourceName")]
    pub resource: String,
    /// By NUMA node, -1 for none.
    #[serde(rename = "DeviceIDs", serialize_with = "json::by_key_text")]
    pub ids: BTreeMap<i64, Vec<String>>,
    /// v1beta1.ContainerAllocateResponse as protobuf.
    #[serde(rename = "AllocResp", serialize_with = "json::base64")]
    pub response: Vec<u8>,
}

/// The file with its checksum.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Sealed {
    data: DeviceFile,
    checksum: u64,
}

impl DeviceFile {
    pub fn read(bytes: &[u8]) -> Result<Self, StateFileError> {
        let file: Sealed = json::parse(bytes)?;
        let is_good = file.checksum == dump::checksum(&file.data);
        is_good.then_some(file.data).ok_or(StateFileError::Corrupt)
    }

    /// The bytes of the file.
    pub fn to_text(&self) -> String {
        json::to_text(&Sealed {
            checksum: dump::checksum(self),
            data: self.clone(),
        })
    }

    /// What the checksum is made of.
    pub fn hash_input(&self) -> String {
        dump::text(self)
    }
}

impl From<&DeviceState> for DeviceFile {
    fn from(state: &DeviceState) -> Self {
        let mut entries = Vec::new();
        for (pod, containers) in &state.containers {
            for (container, resources) in containers {
                for (resource, held) in resources {
                    let ids = held.ids.iter().map(|(node, ids)| {
                        let node = node.map_or(NO_NUMA_NODE, |it| i64::from(it.0));
                        (node, ids.iter().cloned().collect())
                    });
                    entries.push(DeviceEntry {
                        pod: pod.0.clone(),
                        container: container.clone(),
                        resource: resource.clone(),
                        ids: ids.collect(),
                        response: held.response.clone(),
                    });
                }
            }
        }
        let registered = state.registered.iter();
        Self {
            entries: Some(entries).filter(|it| !it.is_empty()),
            registered: registered
                .map(|(resource, ids)| (resource.clone(), ids.iter().cloned().collect()))
                .collect(),
        }
    }
}

impl TryFrom<&DeviceFile> for DeviceState {
    type Error = StateFileError;

    fn try_from(file: &DeviceFile) -> Result<Self, Self::Error> {
        let mut state = Self::default();
        for entry in file.entries.iter().flatten() {
            let mut ids: BTreeMap<Option<NumaNodeId>, BTreeSet<String>> = BTreeMap::new();
            for (node, of_node) in &entry.ids {
                let numa_node = match u32::try_from(*node) {
                    Ok(id) => Some(NumaNodeId(id)),
                    Err(_) if *node == NO_NUMA_NODE => None,
                    Err(_) => return Err(StateFileError::NumaNode(*node)),
                };
                ids.insert(numa_node, of_node.iter().cloned().collect());
            }
            let containers = state
                .containers
                .entry(PodUid(entry.pod.clone()))
                .or_default();
            let resources = containers.entry(entry.container.clone()).or_default();
            let response = entry.response.clone();
            resources.insert(entry.resource.clone(), DeviceAllocation { ids, response });
        }
        for (resource, ids) in &file.registered {
            let ids = ids.iter().cloned().collect();
            state.registered.insert(resource.clone(), ids);
        }
        Ok(state)
    }
}

impl FromJson for Sealed {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            data: fields.take("Data")?,
            checksum: fields.take("Checksum")?,
        }))
    }
}

impl FromJson for DeviceFile {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            entries: fields.take("PodDeviceEntries")?,
            registered: fields.take("RegisteredDevices")?,
        }))
    }
}

impl FromJson for DeviceEntry {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            pod: fields.take("PodUID")?,
            container: fields.take("ContainerName")?,
            resource: fields.take("ResourceName")?,
            ids: fields.take("DeviceIDs")?,
            response: fields.take("AllocResp")?,
        }))
    }
}

impl Dump for DeviceFile {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_str(
            "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)",
        )?;
        match &self.entries {
            Some(entries) => entries.dump(out)?,
            None => out.write_str("<nil>")?,
        }
        out.write_str(" RegisteredDevices:(map[string][]string)")?;
        self.registered.dump(out)?;
        out.write_char('}')
    }
}

impl Dump for DeviceEntry {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        write!(
            out,
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
             DeviceIDs:(checkpoint.DevicesPerNUMA)",
            self.pod, self.container, self.resource
        )?;
        self.ids.dump(out)?;
        out.write_str(" AllocResp:([]uint8)")?;
        self.response.dump(out)?;
        out.write_char('}')
    }
}
