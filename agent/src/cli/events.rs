//! `ballast events`.

use std::fmt::Write;

use super::client::{Client, ClientError};
use super::format::{self, Paint, Tone, printable};
use super::oom::render_record;
use super::{CliError, EventsArgs, Output, Screen};
use crate::model::event::AttributionMethod;
use crate::model::record::{EventDetail, EventKind, EventRecord};
use crate::model::status::ApiVersion;
use crate::model::time::WallTime;
use crate::observe::protocol::{Answer, EventsRequest, RecordsRequest, Request};
use crate::sys::clock;

/// Shows the records that the agent keeps and, with `--follow`, what happens from now on.
///
/// A followed stream ends with [`ClientError::Ended`] when the agent stops.
pub fn events(args: &EventsArgs, screen: &mut Screen) -> Result<(), CliError> {
    if args.record {
        return records(args, screen);
    }
    let path = args.socket.path()?;
    let now = WallTime::from_epoch(clock::wall());
    let request = Request::Events(EventsRequest {
        api_version: ApiVersion::V1Alpha1,
        follow: args.follow,
        kind: args.kind.clone(),
        since: args.since.map(|it| it.time(now)),
        after: args.after,
    });
    let mut client = Client::ask(&path, &request, args.follow)?;
    while let Some(answer) = client.next_answer()? {
        let Answer::Event(record) = answer else {
            return Err(ClientError::NoAnswer.into());
        };
        let mut line = match args.output {
            Output::Text => render_event(&record, screen.has_colour),
            Output::Json => {
                serde_json::to_string(&record).map_err(|source| ClientError::Answer { source })?
            }
        };
        line.push('\n');
        if !screen.write(&line)? {
            return Ok(());
        }
    }
    if args.follow {
        return Err(ClientError::Ended.into());
    }
    Ok(())
}

/// Shows the forensic records of OOM kills.
fn records(args: &EventsArgs, screen: &mut Screen) -> Result<(), CliError> {
    if args.kind.iter().any(|it| *it != EventKind::Oom) {
        return Err(CliError::RecordKind);
    }
    let now = WallTime::from_epoch(clock::wall());
    let request = Request::Records(RecordsRequest {
        api_version: ApiVersion::V1Alpha1,
        since: args.since.map(|it| it.time(now)),
    });
    let mut client = Client::ask(&args.socket.path()?, &request, false)?;
    let paint = Paint {
        has_colour: screen.has_colour,
    };
    while let Some(answer) = client.next_answer()? {
        let Answer::Record(record) = answer else {
            return Err(ClientError::NoAnswer.into());
        };
        let mut text = match args.output {
            Output::Text => render_record(&record, paint),
            Output::Json => {
                serde_json::to_string(&record).map_err(|source| ClientError::Answer { source })?
            }
        };
        text.push('\n');
        if !screen.write(&text)? {
            return Ok(());
        }
    }
    Ok(())
}

/// One line without its newline: time (UTC, without the year), kind, reason, pod and container,
/// message, and for an OOM kill how its limit is known, how fast it was handled, and its record.
pub fn render_event(record: &EventRecord, has_colour: bool) -> String {
    let paint = Paint { has_colour };
    let event = &record.event;
    let time = event.time.to_string();
    let day = time.get(5..10).unwrap_or_default();
    let mut line = format!("{day} {} {:<9} ", event.time.time_of_day(), event.kind);
    let tone = match event.kind {
        EventKind::Oom => Tone::Bad,
        EventKind::Agent if matches!(event.detail, Some(EventDetail::Dropped { .. })) => {
            Tone::Warning
        }
        _ => Tone::Plain,
    };
    line.push_str(&paint.apply(tone, &printable(&event.reason)));
    if let Some(subject) = event.subject() {
        let _ = write!(line, " {}", printable(&subject));
    }
    let _ = write!(line, ": {}", printable(&event.message));
    if let Some(EventDetail::Oom(detail)) = &event.detail {
        let method = match event.method {
            Some(AttributionMethod::Exact) => "exact",
            Some(AttributionMethod::Derived) => "derived",
            Some(AttributionMethod::None) | None => "limit unknown",
        };
        let latency = format::micros(detail.handling_latency_us);
        let _ = write!(line, " ({method}, after {latency})");
        if let Some(id) = detail.record_id {
            let _ = write!(line, ", record {id}");
        }
    }
    line
}
