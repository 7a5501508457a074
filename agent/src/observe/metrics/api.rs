//! The API server: what it was asked, and what it was told by Events; and the kubelet that is asked for pods in its
//! place. There are no series of what nobody asks.

use super::labels::{ApiCode, EventResult};
use super::{Metrics, observe, set_time};
use crate::model::api_server::{ApiAnswer, ApiResource, ApiVerb, Asked, PodsFrom};
use crate::model::kube_event::Reason;
use crate::model::time::WallTime;

/// What is asked.
const QUESTIONS: [(ApiVerb, ApiResource); 5] = [
    (ApiVerb::List, ApiResource::Pods),
    (ApiVerb::Watch, ApiResource::Pods),
    (ApiVerb::Get, ApiResource::NodesPods),
    (ApiVerb::Create, ApiResource::Events),
    (ApiVerb::Patch, ApiResource::Events),
];

impl Metrics {
    /// Pods are asked of `from`, and the API server is told by Events if `writes_events`.
    pub fn begin_api(&self, from: PodsFrom, writes_events: bool) {
        let families = &self.shared.api;
        for (verb, resource) in QUESTIONS {
            let is_asked = match resource {
                ApiResource::Pods => from == PodsFrom::ApiServer,
                ApiResource::NodesPods => from == PodsFrom::Kubelet,
                ApiResource::Events => writes_events,
                ApiResource::NodesConfigz => false,
            };
            if !is_asked {
                continue;
            }
            let (verb, resource) = (verb.as_str(), resource.as_str());
            for code in ApiCode::ALL {
                let labels = [verb, resource, code.as_str()];
                families.requests.with_label_values(&labels);
            }
            families.duration.with_label_values(&[verb, resource]);
        }
        if writes_events {
            for reason in Reason::ALL {
                for result in EventResult::ALL {
                    let labels = [reason.as_str(), result.as_str()];
                    families.events.with_label_values(&labels);
                }
            }
        }
    }

    pub fn api_asked(&self, asked: &Asked, at: WallTime) {
        let families = &self.shared.api;
        let (verb, resource) = (asked.verb.as_str(), asked.resource.as_str());
        let labels = [verb, resource, ApiCode::of(asked.answer).as_str()];
        families.requests.with_label_values(&labels).inc();
        observe(&families.duration, &[verb, resource], asked.took);
        if asked.answer == ApiAnswer::Good {
            self.api_told(asked.resource, at);
        }
    }

    /// It has answered, or told something without being asked again.
    pub fn api_told(&self, resource: ApiResource, at: WallTime) {
        let family = &self.shared.api.last_success;
        set_time(family, &[resource.as_str()], at);
    }

    /// What has become of the Events of one reason, since the agent started.
    pub fn set_api_events(&self, reason: Reason, counts: [(EventResult, u64); 3]) {
        for (result, n) in counts {
            let labels = [reason.as_str(), result.as_str()];
            let counter = self.shared.api.events.with_label_values(&labels);
            counter.inc_by(n.saturating_sub(counter.get()));
        }
    }
}
