//! A question with its bound in time, counted whatever becomes of it.

use std::time::Duration;

use super::{Sink, Told};
use crate::model::api_server::{ApiAnswer, ApiResource, ApiVerb, Asked};
use crate::sys::clock;

/// The answer did not come in time.
pub(super) struct Late;

/// Asks, and tells `sink` how that went.
pub(super) async fn asked<T>(
    sink: &Sink,
    (verb, resource): (ApiVerb, ApiResource),
    bound: Duration,
    asking: impl Future<Output = kube::Result<T>>,
) -> Result<kube::Result<T>, Late> {
    let began = clock::boottime();
    let answer = tokio::time::timeout(bound, asking).await;
    sink(Told::Asked(Asked {
        verb,
        resource,
        answer: match &answer {
            Ok(Ok(_)) => ApiAnswer::Good,
            Ok(Err(kube::Error::Api(status))) => ApiAnswer::Refused(status.code),
            Ok(Err(_)) | Err(_) => ApiAnswer::None,
        },
        took: clock::boottime().saturating_sub(began),
    }));
    answer.map_err(|_late| Late)
}
