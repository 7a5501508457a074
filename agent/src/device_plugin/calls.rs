//! What a connected plugin is asked: its devices, all the time, and the rest when there is need.

use std::collections::BTreeSet;
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::registry::Command;
use super::response::{ResponseError, decode_response};
use super::{Answer, Call, Deadlines, Disconnect, PluginError, PluginId, Question, check, limits};
use crate::grpc::client::{Channel, Method};
use crate::grpc::messages::device_plugin::{self as wire, DeviceList, path};

const LIST_AND_WATCH: Method = Method {
    path: path::LIST_AND_WATCH,
    max_answer: limits::MAX_LIST_BYTES,
};

/// Passes on every list of devices of a plugin until its stream ends, and then that. A plugin that
/// is silent has no devices yet, and may stay so.
pub(super) async fn watch(plugin: PluginId, channel: Channel, commands: mpsc::Sender<Command>) {
    let why = match lists(&plugin, &channel, &commands).await {
        Ok(why) => why,
        Err(status) => {
            let text = check::told_status(&status);
            match status.code() {
                // What tonic says of a message that is too large, or is none.
                Code::OutOfRange | Code::Internal => Disconnect::Misbehaved(text),
                _ => Disconnect::StreamEnded(text),
            }
        }
    };
    // Without a registry the agent ends, and nobody is to be told.
    let _ = commands.send(Command::End { plugin, why }).await;
}

async fn lists(
    plugin: &PluginId,
    channel: &Channel,
    commands: &mpsc::Sender<Command>,
) -> Result<Disconnect, Status> {
    let mut stream = channel
        .server_streaming::<_, DeviceList>(LIST_AND_WATCH, wire::Empty {})
        .await?;
    while let Some(list) = stream.message().await? {
        let devices = match check::devices(list) {
            Ok(devices) => devices,
            Err(error) => return Ok(Disconnect::Misbehaved(check::told(&error.to_string()))),
        };
        let plugin = plugin.clone();
        let command = Command::Devices { plugin, devices };
        if commands.send(command).await.is_err() {
            break;
        }
        tokio::time::sleep(limits::LIST_INTERVAL).await;
    }
    Ok(Disconnect::StreamEnded("by the plugin".to_owned()))
}

/// Asks once, within the deadline of the call.
pub(super) async fn ask(
    channel: &Channel,
    question: Question,
    deadlines: &Deadlines,
) -> Result<Answer, PluginError> {
    let Question { resource, call } = question;
    match call {
        Call::PreferredAllocation {
            available,
            must_include,
            size,
        } => {
            let question = wire::PreferredAllocationRequest {
                containers: vec![wire::ContainerPreferredAllocationRequest {
                    available_ids: available.into_iter().collect(),
                    must_include_ids: must_include.into_iter().collect(),
                    size: i32::try_from(size).unwrap_or(i32::MAX),
                }],
            };
            let asked = Asked {
                resource,
                method: "GetPreferredAllocation",
                deadline: deadlines.preferred_allocation,
            };
            let method = Method {
                path: path::PREFERRED_ALLOCATION,
                // The answer is a part of the question.
                max_answer: limits::MAX_SMALL_BYTES + question.encoded_len(),
            };
            let answer: wire::PreferredAllocationResponse =
                asked.of(channel, method, question).await?;
            let first = answer.containers.into_iter().next().unwrap_or_default();
            let ids = BTreeSet::from_iter(first.ids);
            Ok(Answer::PreferredAllocation { ids })
        }
        Call::Allocate { ids } => {
            let ids = ids.into_iter().collect();
            let question = wire::AllocateRequest {
                containers: vec![wire::DeviceIds { ids }],
            };
            let asked = Asked {
                resource,
                method: "Allocate",
                deadline: deadlines.allocate,
            };
            let method = Method {
                path: path::ALLOCATE,
                max_answer: limits::MAX_RESPONSE_BYTES,
            };
            let answer: wire::AllocateResponse = asked.of(channel, method, question).await?;
            let first = answer.containers.into_iter().next();
            let bytes = first.ok_or(ResponseError::NoContainer);
            bytes
                .and_then(|bytes| {
                    let response = decode_response(&bytes)?;
                    Ok(Answer::Allocate { bytes, response })
                })
                .map_err(|source| PluginError::Response {
                    resource: asked.resource,
                    source,
                })
        }
        Call::PreStartContainer { ids } => {
            let ids = ids.into_iter().collect();
            let question = wire::PreStartContainerRequest { ids };
            let asked = Asked {
                resource,
                method: "PreStartContainer",
                deadline: deadlines.pre_start_container,
            };
            let method = Method {
                path: path::PRE_START_CONTAINER,
                max_answer: limits::MAX_SMALL_BYTES,
            };
            let wire::Empty {} = asked.of(channel, method, question).await?;
            Ok(Answer::PreStartContainer)
        }
    }
}

/// A call, as its errors tell of it.
struct Asked {
    resource: String,
    method: &'static str,
    deadline: Duration,
}

impl Asked {
    async fn of<Q, A>(
        &self,
        channel: &Channel,
        method: Method,
        question: Q,
    ) -> Result<A, PluginError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let answer = channel.unary(method, question, self.deadline).await;
        answer.map_err(|status| match status.code() {
            Code::DeadlineExceeded => PluginError::TimedOut {
                resource: self.resource.clone(),
                method: self.method,
                deadline: self.deadline,
            },
            _ => PluginError::Failed {
                resource: self.resource.clone(),
                method: self.method,
                why: check::told_status(&status),
            },
        })
    }
}
