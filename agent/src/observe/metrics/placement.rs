//! What the placement of pods has to show.

use std::time::Duration;

use super::{Metrics, set_time};
use crate::model::admission::RefusalReason;
use crate::model::time::WallTime;

impl Metrics {
    /// One admission, decided by the topology policy. `refusal`: `None` if the pod is in.
    pub fn admission(
        &self,
        policy: &'static str,
        refusal: Option<RefusalReason>,
        took: Duration,
        at: WallTime,
    ) {
        let placement = &self.shared.placement;
        let (result, reason) = match refusal {
            None => ("admitted", "none"),
            Some(reason) => ("refused", reason.as_str()),
        };
        let labels = [policy, result, reason];
        placement.admissions.with_label_values(&labels).inc();
        let duration = placement.duration.with_label_values(&[policy]);
        duration.observe(took.as_secs_f64());
        if refusal.is_some() {
            set_time(&placement.last_refusal, &[reason], at);
        }
    }
}
