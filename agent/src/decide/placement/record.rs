//! An admission with all that it was decided from, so that it can be decided again: elsewhere, later,
//! by another version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::admission::{Decided, Outcome, admit};
use super::devices::PluginAnswers;
use super::managers::{Books, Managers, PlacementError, PlacementSettings};
use super::remedies::remedies;
use crate::model::admission::{AdmissionReport, Refusal};
use crate::model::placement::DeviceAllocation;
use crate::model::pod::Pod;
use crate::model::status::ApiVersion;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordKind {
    #[default]
    AdmissionRecord,
}

/// All that an admission depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionInput {
    pub settings: PlacementSettings,
    pub books: Books,
    pub pod: Pod,
    pub answers: PluginAnswers,
    /// Why the node does not let the pod in, whatever the managers say: it is under pressure or full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barred: Option<Refusal>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRecord {
    pub api_version: ApiVersion,
    pub kind: RecordKind,
    pub input: AdmissionInput,
    pub report: AdmissionReport,
}

/// Why a record cannot be decided again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("make the managers of the record")]
    Settings(#[from] PlacementError),
    #[error("the record lacks a plugin's answer: it was taken before the admission was decided")]
    Unanswered,
}

/// An admission, explained where it is a refusal. `None`: a plugin has to be asked first.
pub fn decide(managers: &Managers, pod: &Pod, answers: &PluginAnswers) -> Outcome {
    let mut outcome = admit(managers, pod, answers);
    if let Outcome::Decided(decided) = &mut outcome
        && let Some(refusal) = &decided.report.refusal
    {
        decided.report.remedies = remedies(managers, pod, answers, refusal);
    }
    outcome
}

impl AdmissionRecord {
    pub fn new(input: AdmissionInput, report: AdmissionReport) -> Self {
        Self {
            api_version: ApiVersion::V1Alpha1,
            kind: RecordKind::AdmissionRecord,
            input,
            report,
        }
    }

    /// The same record with the report made anew from its input.
    pub fn replay(&self) -> Result<Self, ReplayError> {
        let Decided { report, .. } = self.decide_again()?;
        Ok(Self::new(self.input.clone(), report))
    }

    /// The devices that the pod was given, by container and resource.
    pub fn devices(
        &self,
    ) -> Result<BTreeMap<String, BTreeMap<String, DeviceAllocation>>, ReplayError> {
        let Decided { managers, .. } = self.decide_again()?;
        let pod = &self.input.pod;
        let names = pod.all_containers().map(|it| &it.name);
        let given = names.filter_map(|name| {
            let devices = managers.devices.allocations_of(&pod.uid, name)?;
            Some((name.clone(), devices.clone()))
        });
        Ok(given.collect())
    }

    fn decide_again(&self) -> Result<Decided, ReplayError> {
        let mut managers = Managers::new(&self.input.settings)?;
        managers.adopt(self.input.books.clone());
        if let Some(refusal) = self.input.barred.clone() {
            return Ok(Decided::refused(managers, refusal));
        }
        match decide(&managers, &self.input.pod, &self.input.answers) {
            Outcome::Decided(decided) => Ok(*decided),
            Outcome::Ask(_) => Err(ReplayError::Unanswered),
        }
    }
}
