//! What plugins are asked in an admission, and what they said.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{DeviceError, Ids, Stop};

/// A question to the plugin of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "call")]
pub enum PluginQuestion {
    /// Which devices go well together.
    #[serde(rename_all = "camelCase")]
    Preferred {
        resource: String,
        available: BTreeSet<String>,
        /// Of `available`.
        must_include: BTreeSet<String>,
        /// How many in all.
        size: u32,
    },
    /// What the container that is to have these devices gets.
    #[serde(rename_all = "camelCase")]
    Allocate {
        resource: String,
        container: String,
        ids: BTreeSet<String>,
    },
}

impl PluginQuestion {
    pub fn resource(&self) -> &str {
        match self {
            Self::Preferred { resource, .. } | Self::Allocate { resource, .. } => resource,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "answer")]
pub enum PluginAnswer {
    /// Any ids: fewer, more or others than were asked for.
    Preferred { ids: BTreeSet<String> },
    /// v1beta1.ContainerAllocateResponse as protobuf.
    Allocated { response: Vec<u8> },
    /// There is none.
    Failed { why: String },
}

/// What plugins have said so far, by question. Written as a list of pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    from = "Vec<(PluginQuestion, PluginAnswer)>",
    into = "Vec<(PluginQuestion, PluginAnswer)>"
)]
pub struct PluginAnswers(BTreeMap<PluginQuestion, PluginAnswer>);

impl PluginAnswers {
    pub fn insert(&mut self, question: PluginQuestion, answer: PluginAnswer) {
        self.0.insert(question, answer);
    }

    /// What plugins of these resources have said counts no more.
    pub fn forget(&mut self, resources: &BTreeSet<String>) {
        self.0.retain(|it, _| !resources.contains(it.resource()));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn preferred(&self, question: PluginQuestion) -> Result<Ids, Stop> {
        self.answer(question, |answer| match answer {
            PluginAnswer::Preferred { ids } => Some(ids.clone()),
            _ => None,
        })
    }

    pub(super) fn allocated(&self, question: PluginQuestion) -> Result<Vec<u8>, Stop> {
        self.answer(question, |answer| match answer {
            PluginAnswer::Allocated { response } => Some(response.clone()),
            _ => None,
        })
    }

    fn answer<T>(
        &self,
        question: PluginQuestion,
        wanted: impl Fn(&PluginAnswer) -> Option<T>,
    ) -> Result<T, Stop> {
        let failed = |why: &str| DeviceError::Plugin {
            resource: question.resource().to_owned(),
            why: why.to_owned(),
        };
        match self.0.get(&question) {
            None => Err(Stop::Ask(question)),
            Some(PluginAnswer::Failed { why }) => Err(failed(why).into()),
            Some(answer) => {
                let answer = wanted(answer);
                answer.ok_or_else(|| failed("the answer is one to another question").into())
            }
        }
    }
}

impl From<Vec<(PluginQuestion, PluginAnswer)>> for PluginAnswers {
    fn from(answers: Vec<(PluginQuestion, PluginAnswer)>) -> Self {
        Self(answers.into_iter().collect())
    }
}

impl From<PluginAnswers> for Vec<(PluginQuestion, PluginAnswer)> {
    fn from(answers: PluginAnswers) -> Self {
        answers.0.into_iter().collect()
    }
}
