//! `cpu_manager_state` (pkg/kubelet/cm/cpumanager/state/checkpoint.go, v1.36): version 2, version 3 with the CPUs of
//! pods as a whole, version 4 of kubelet 1.37, which is only read, and version 1 of old kubelets, which names
//! containers by their id and is only read.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::{Serialize, Serializer};

use super::cpu_ranges::CpuRanges;
use super::dump::{self, Dump};
use super::json::{self, Fields, FromJson, JsonError, Node};
use super::{PodEntries, StateFileError};
use crate::model::cpuset::{CpuSet, CpuSetError, MAX_CPU};
use crate::model::placement::{ByContainer, CpuState};
use crate::model::pod::PodUid;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuFile {
    /// `none` or `static`.
    pub policy: String,
    pub shared_pool: CpuRanges,
    pub containers: ByContainer<CpuRanges>,
    pub pods: BTreeMap<PodUid, CpuRanges>,
}

/// Container id to pod and container name, of what the runtime knows when the agent starts.
pub type ContainerIds = BTreeMap<String, (PodUid, String)>;

impl CpuFile {
    pub fn new(policy: &str, state: &CpuState) -> Self {
        let sets = |sets: &BTreeMap<String, CpuSet>| {
            let sets = sets.iter();
            sets.map(|(name, cpus)| (name.clone(), cpus.into()))
                .collect()
        };
        let containers = state.containers.iter();
        let pods = state.pods.iter();
        Self {
            policy: policy.to_owned(),
            shared_pool: (&state.shared_pool).into(),
            containers: containers
                .map(|(uid, it)| (uid.clone(), sets(it)))
                .collect(),
            pods: pods.map(|(uid, cpus)| (uid.clone(), cpus.into())).collect(),
        }
    }

    /// Reads any version; `policy` is the one that is configured. The checksum is that of the
    /// text as it stands, so sets may be written in any form.
    pub fn read(
        bytes: &[u8],
        policy: &str,
        pod_entries: PodEntries,
        containers: &ContainerIds,
    ) -> Result<Self, StateFileError> {
        let raw = match (Raw::read_v4(bytes, pod_entries), pod_entries) {
            (Some(raw), _) => raw,
            (None, PodEntries::Yes) => Raw::read_v3(bytes)
                .or_else(|_| Raw::read_v2(bytes, pod_entries))
                .or_else(|_| Raw::read_v1(bytes, containers))?,
            (None, PodEntries::No) => {
                Raw::read_v2(bytes, pod_entries).or_else(|_| Raw::read_v1(bytes, containers))?
            }
        };
        if raw.policy != policy {
            return Err(StateFileError::PolicyDiffers {
                configured: policy.to_owned(),
                found: raw.policy,
            });
        }
        raw.try_into()
    }

    /// The bytes of the file.
    pub fn to_text(&self, pod_entries: PodEntries) -> String {
        let mut raw = Raw::of(self, pod_entries);
        raw.checksum = raw.computed(CURRENT_TYPE);
        json::to_text(&raw)
    }

    /// What the checksum is made of.
    pub fn hash_input(&self, pod_entries: PodEntries) -> String {
        dump::text(&Raw::of(self, pod_entries).dumped(CURRENT_TYPE))
    }
}

impl TryFrom<&CpuFile> for CpuState {
    type Error = CpuSetError;

    fn try_from(file: &CpuFile) -> Result<Self, Self::Error> {
        let mut state = Self {
            shared_pool: (&file.shared_pool).try_into()?,
            ..Self::default()
        };
        for (uid, sets) in &file.containers {
            let containers = state.containers.entry(uid.clone()).or_default();
            for (name, cpus) in sets {
                containers.insert(name.clone(), cpus.try_into()?);
            }
        }
        for (uid, cpus) in &file.pods {
            state.pods.insert(uid.clone(), cpus.try_into()?);
        }
        Ok(state)
    }
}

/// The type that kubelet hashes, of whatever version; and the one that it accepts beside it.
const CURRENT_TYPE: &str = "CPUManagerCheckpoint";
const V2_TYPE: &str = "CPUManagerCheckpointV2";

/// The sets of one pod by container name, as text.
type Sets = BTreeMap<String, String>;

/// The file as it is written. An entry is the [`Sets`] of a pod, or in version 1 the set of a
/// container id.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Raw<Entry> {
    #[serde(rename = "policyName")]
    policy: String,
    #[serde(rename = "defaultCpuSet")]
    shared_pool: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, Entry>,
    /// `None` in the versions that have no place for it.
    #[serde(skip_serializing_if = "is_none_or_empty")]
    pod_entries: Option<BTreeMap<PodUid, PodCpus>>,
    checksum: u64,
}

fn is_none_or_empty<K, V>(entries: &Option<BTreeMap<K, V>>) -> bool {
    entries.as_ref().is_none_or(BTreeMap::is_empty)
}

impl Raw<Sets> {
    fn of(file: &CpuFile, pod_entries: PodEntries) -> Self {
        let texts = |sets: &BTreeMap<String, CpuRanges>| {
            let sets = sets.iter();
            sets.map(|(name, cpus)| (name.clone(), cpus.to_string()))
                .collect()
        };
        let containers = file.containers.iter();
        let pods = file.pods.iter();
        let pods = pods.map(|(uid, cpus)| (uid.clone(), PodCpus(cpus.clone())));
        Self {
            policy: file.policy.clone(),
            shared_pool: file.shared_pool.to_string(),
            entries: containers
                .map(|(uid, it)| (uid.0.clone(), texts(it)))
                .collect(),
            pod_entries: match pod_entries {
                PodEntries::Yes => Some(pods.collect()),
                PodEntries::No => None,
            },
            checksum: 0,
        }
    }

    fn read_v4(bytes: &[u8], pod_entries: PodEntries) -> Option<Self> {
        let mut raw: Self = super::sealed(bytes)?;
        let pods = raw.pod_entries.take().unwrap_or_default();
        raw.pod_entries = (pod_entries == PodEntries::Yes).then_some(pods);
        raw.has_few_pods().then_some(raw)
    }

    fn read_v3(bytes: &[u8]) -> Result<Self, StateFileError> {
        let mut raw: Self = json::parse(bytes)?;
        raw.pod_entries.get_or_insert_default();
        let is_good = raw.has_few_pods() && raw.checksum == raw.computed(CURRENT_TYPE);
        is_good.then_some(raw).ok_or(StateFileError::Corrupt)
    }

    /// A CPU belongs to one pod at most; the ids are written out one by one to be hashed.
    fn has_few_pods(&self) -> bool {
        let sets = self.pod_entries.iter().flat_map(BTreeMap::values);
        let n_cpus = sets.fold(0, |sum: u64, PodCpus(it)| sum.saturating_add(it.len()));
        n_cpus <= u64::from(MAX_CPU.0) + 1
    }

    /// Version 2, of which a version 3 is one too if its checksum is left out of account.
    fn read_v2(bytes: &[u8], pod_entries: PodEntries) -> Result<Self, StateFileError> {
        let raw = Self::read_without_pods(bytes)?;
        let is_good = raw.checksum == 0
            || raw.checksum == raw.computed(CURRENT_TYPE)
            || pod_entries == PodEntries::No && raw.checksum == raw.computed(V2_TYPE);
        is_good.then_some(raw).ok_or(StateFileError::Corrupt)
    }

    fn read_v1(bytes: &[u8], containers: &ContainerIds) -> Result<Self, StateFileError> {
        let v1: Raw<String> = Raw::read_without_pods(bytes)?;
        if v1.checksum != 0 && v1.checksum != v1.computed(CURRENT_TYPE) {
            return Err(StateFileError::Corrupt);
        }
        let mut entries: BTreeMap<String, Sets> = BTreeMap::new();
        for (id, cpus) in v1.entries {
            let known = containers.get(&id);
            let (pod, container) = known.ok_or(StateFileError::UnknownContainer(id))?;
            let sets = entries.entry(pod.0.clone()).or_default();
            sets.insert(container.clone(), cpus);
        }
        Ok(Self {
            policy: v1.policy,
            shared_pool: v1.shared_pool,
            entries,
            pod_entries: None,
            checksum: v1.checksum,
        })
    }
}

impl<Entry: FromJson> Raw<Entry> {
    /// A version that has no place for pods as a whole, and so leaves them out of the checksum.
    fn read_without_pods(bytes: &[u8]) -> Result<Self, JsonError> {
        Ok(Self {
            pod_entries: None,
            ..json::parse(bytes)?
        })
    }
}

impl TryFrom<Raw<Sets>> for CpuFile {
    type Error = StateFileError;

    fn try_from(raw: Raw<Sets>) -> Result<Self, Self::Error> {
        let shared_pool = raw.shared_pool.parse();
        let shared_pool = shared_pool.map_err(|source| StateFileError::SharedPool {
            text: raw.shared_pool,
            source,
        })?;
        let mut containers = ByContainer::new();
        for (pod, texts) in raw.entries {
            let pod = PodUid(pod);
            let mut sets = BTreeMap::new();
            for (container, text) in texts {
                match text.parse() {
                    Ok(cpus) => sets.insert(container, cpus),
                    Err(source) => {
                        return Err(StateFileError::CpuSet {
                            text,
                            container,
                            pod,
                            source,
                        });
                    }
                };
            }
            containers.insert(pod, sets);
        }
        let pods = raw.pod_entries.unwrap_or_default();
        Ok(Self {
            policy: raw.policy,
            shared_pool,
            containers,
            pods: pods
                .into_iter()
                .map(|(uid, PodCpus(it))| (uid, it))
                .collect(),
        })
    }
}

impl<Entry: FromJson> FromJson for Raw<Entry> {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            policy: fields.take("policyName")?,
            shared_pool: fields.take("defaultCpuSet")?,
            entries: fields.take("entries")?,
            pod_entries: fields.take("podEntries")?,
            checksum: fields.take("checksum")?,
        }))
    }
}

/// The set of a pod, in an object of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodCpus(CpuRanges);

impl Serialize for PodCpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([("cpuSet", self.0.to_string())])
    }
}

impl FromJson for PodCpus {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        let text: String = fields.take("cpuSet")?;
        let cpus = text.parse().ok();
        let cpus = cpus.ok_or_else(|| JsonError::Type {
            field: "cpuSet".to_owned(),
            wanted: "a set of CPUs",
        })?;
        Ok(Some(Self(cpus)))
    }
}

/// The Go type of an entry.
trait GoType {
    const GO_TYPE: &'static str;
}

impl GoType for Sets {
    const GO_TYPE: &'static str = "map[string]string";
}

impl GoType for String {
    const GO_TYPE: &'static str = "string";
}

/// A file under a name of its type.
struct Dumped<'a, Entry> {
    type_name: &'static str,
    raw: &'a Raw<Entry>,
}

impl<Entry: Dump + GoType> Raw<Entry> {
    fn dumped(&self, type_name: &'static str) -> Dumped<'_, Entry> {
        let raw = self;
        Dumped { type_name, raw }
    }

    fn computed(&self, type_name: &'static str) -> u64 {
        dump::checksum(&self.dumped(type_name))
    }
}

impl<Entry: Dump + GoType> Dump for Dumped<'_, Entry> {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        let raw = self.raw;
        write!(
            out,
            "(*state.{}){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]{})",
            self.type_name,
            raw.policy,
            raw.shared_pool,
            Entry::GO_TYPE
        )?;
        raw.entries.dump(out)?;
        if let Some(pods) = &raw.pod_entries {
            out.write_str(" PodEntries:(state.PodCPUAssignments)")?;
            pods.dump(out)?;
        }
        out.write_str(" Checksum:(checksum.Checksum)0}")
    }
}

impl Dump for PodCpus {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_str("{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map[")?;
        for (i, id) in self.0.ids().enumerate() {
            if i > 0 {
                out.write_char(' ')?;
            }
            write!(out, "{id}:{{}}")?;
        }
        out.write_str("]}}")
    }
}
