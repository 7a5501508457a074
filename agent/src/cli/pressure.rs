//! What the node is short of, as text: for `status` and `explain`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use super::format::{self, Align, NOTHING, Paint, Table, Tone, printable};
use super::status::label;
use crate::model::eviction::{MemoryMethod, Signal, StallSource, StarvedResource};
use crate::model::status::{
    EvictionStanding, EvictionStatus, PodEntry, PressureStatus, SignalStatus, Standing,
    ThresholdStatus, WakerStatus,
};
use crate::units::Bytes;

/// Pods of the eviction order that are shown; the rest is counted.
const ORDER_SHOWN: usize = 10;

/// A reading is taken at least every 10 s, as kubelet's.
const OLD_READING: Duration = Duration::from_secs(10);

/// Who evicts the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictedBy {
    Agent,
    Kubelet,
}

impl EvictedBy {
    /// `is_managed`: the node, by the agent.
    pub(super) const fn of(is_managed: bool) -> Self {
        match is_managed {
            true => Self::Agent,
            false => Self::Kubelet,
        }
    }
}

/// Adds one line. Writing to a string does not fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => {
        let _ = writeln!($out, $($arg)*);
    };
}

/// Conditions, available memory, and of each signal the threshold that is met first.
pub(super) fn render_summary(
    pressure: &PressureStatus,
    width: usize,
    paint: Paint,
    out: &mut String,
) {
    render_head(pressure, paint, out);
    let mut table = Table::new([
        ("SIGNAL", Align::Left),
        ("AVAILABLE", Align::Right),
        ("EVICTS BELOW", Align::Right),
        ("LEFT", Align::Right),
    ]);
    let mut is_empty = true;
    for status in &pressure.signals {
        let nearest = status.thresholds.iter().max_by_key(|it| it.amount);
        let Some(threshold) = nearest else { continue };
        is_empty = false;
        let cells = [
            status.signal.to_string(),
            amount(status.signal, status.available),
            amount(status.signal, threshold.amount),
            left(status, threshold),
        ];
        table.row(cells, tone(status, threshold));
    }
    if !is_empty {
        out.push('\n');
        table.render(width, paint, out);
    }
}

/// All that is known: signals with every threshold, wakers, the eviction order.
pub(super) fn render_whole(
    pressure: &PressureStatus,
    by: EvictedBy,
    width: usize,
    paint: Paint,
    out: &mut String,
) {
    render_head(pressure, paint, out);
    if !pressure.signals.is_empty() {
        out.push('\n');
        render_signals(&pressure.signals, width, paint, out);
    }
    if !pressure.wakers.is_empty() {
        out.push('\n');
        render_wakers(&pressure.wakers, width, paint, out);
    }
    if !pressure.order.is_empty() {
        out.push('\n');
        render_order(&pressure.order, by, width, paint, out);
    }
    if let Some(last) = &pressure.last_eviction {
        let text = format!(
            "last evicted: {} for {} at {}",
            last.pod, last.signal, last.at
        );
        line!(out, "\n{}", printable(&text));
        line!(out, "  {}", printable(last.message.trim_end()));
        render_effect(last, "  ", out);
    }
}

/// Where eviction stands with one pod.
pub(super) fn render_standing(
    standing: &EvictionStanding,
    by: EvictedBy,
    paint: Paint,
    out: &mut String,
) {
    let heading = "WHEN MEMORY RUNS SHORT";
    line!(out, "{}", paint.apply(Tone::Heading, heading));
    match standing {
        EvictionStanding::InOrder {
            place,
            of,
            standing,
        } => {
            let priority = standing.priority;
            let whose = match by {
                EvictedBy::Agent => "the",
                EvictedBy::Kubelet => "kubelet's",
            };
            line!(
                out,
                "place {place} of {of} in {whose} eviction order, priority {priority}"
            );
            line!(out, "{}", use_against_request(standing));
            render_decider(by, out);
        }
        EvictionStanding::Critical => {
            let text = match by {
                EvictedBy::Agent => "it is not evicted: it is critical",
                EvictedBy::Kubelet => "kubelet does not evict it: it is critical",
            };
            line!(out, "{text}");
        }
        EvictionStanding::Evicted { eviction } => {
            let text = format!("it was evicted for {} at {}", eviction.signal, eviction.at);
            line!(out, "{}", paint.apply(Tone::Warning, &printable(&text)));
            render_effect(eviction, "", out);
        }
    }
}

/// How long the tasks of a pod waited for memory; nothing where that is not known.
pub(super) fn render_stalls(pod: &PodEntry, width: usize, paint: Paint, out: &mut String) {
    let Some(whole) = &pod.memory_stall else {
        return;
    };
    let mut table = Table::new([
        ("WAITED FOR MEMORY", Align::Left),
        ("SOME", Align::Right),
        ("ALL", Align::Right),
    ]);
    let containers = pod
        .containers
        .iter()
        .filter_map(|it| Some((label(it), it.memory_stall.as_ref()?)));
    for (name, stall) in std::iter::once(("the pod".to_owned(), whole)).chain(containers) {
        let all = stall
            .full_us
            .map_or_else(|| NOTHING.to_owned(), format::micros);
        table.row([name, format::micros(stall.some_us), all], Tone::Plain);
    }
    table.render(width, paint, out);
    if whole.source == StallSource::Reclaim {
        line!(
            out,
            "in reclaim, summed over tasks: the kernel keeps no PSI"
        );
    }
    out.push('\n');
}

fn render_head(pressure: &PressureStatus, paint: Paint, out: &mut String) {
    let conditions: Vec<&str> = pressure.conditions.iter().map(|it| it.as_str()).collect();
    let conditions = match conditions.as_slice() {
        [] => "none".to_owned(),
        some => paint.apply(Tone::Bad, &some.join(", ")),
    };
    line!(out, "pressure: {conditions}");
    for message in pressure.ineffective.values().collect::<BTreeSet<_>>() {
        let text = printable(message);
        line!(out, "{}", paint.apply(Tone::Bad, &text));
    }
    let least = pressure.memory_available.values().min();
    let views: Vec<String> = pressure
        .memory_available
        .iter()
        .map(|(method, available)| {
            let is_least =
                pressure.memory_method == MemoryMethod::Least && Some(available) == least;
            let decides = match is_least || *method == pressure.memory_method {
                true => " (decides)",
                false => "",
            };
            let available = format::bytes(Bytes(*available));
            format!("{available} {}{decides}", method_name(*method))
        })
        .collect();
    let views = match views.as_slice() {
        [] => "not known".to_owned(),
        some => some.join(", "),
    };
    line!(out, "memory available: {views}");
}

const fn method_name(method: MemoryMethod) -> &'static str {
    match method {
        MemoryMethod::Least => "least",
        MemoryMethod::WorkingSet => "working set",
        MemoryMethod::Estimate => "estimate",
        MemoryMethod::Meminfo => "meminfo",
    }
}

fn render_signals(signals: &[SignalStatus], width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("SIGNAL", Align::Left),
        ("AVAILABLE", Align::Right),
        ("CAPACITY", Align::Right),
        ("EVICTS", Align::Left),
        ("BELOW", Align::Right),
        ("LEFT", Align::Right),
    ]);
    for status in signals {
        let signal = status.signal;
        let mut of_signal = [
            signal.to_string(),
            amount(signal, status.available),
            amount(signal, status.capacity),
        ];
        if status.thresholds.is_empty() {
            let [name, available, capacity] = of_signal;
            let nothing = || NOTHING.to_owned();
            let cells = [
                name,
                available,
                capacity,
                "never".into(),
                nothing(),
                nothing(),
            ];
            table.row_with(cells, Tone::Plain, age_line(status, paint));
            continue;
        }
        let last = status.thresholds.len() - 1;
        for (i, threshold) in status.thresholds.iter().enumerate() {
            let when = match threshold.is_hard {
                true => "at once".to_owned(),
                false => {
                    let grace = Duration::from_secs(threshold.grace_seconds);
                    format!("after {}", format::age(grace))
                }
            };
            let [name, available, capacity] = std::mem::take(&mut of_signal);
            let below = amount(signal, threshold.amount);
            let cells = [
                name,
                available,
                capacity,
                when,
                below,
                left(status, threshold),
            ];
            let lines = match i == last {
                true => age_line(status, paint),
                false => Vec::new(),
            };
            table.row_with(cells, tone(status, threshold), lines);
        }
    }
    table.render(width, paint, out);
}

/// Tells of a reading that is old.
fn age_line(status: &SignalStatus, paint: Paint) -> Vec<String> {
    let age = status.age_ms.map(Duration::from_millis);
    let old = age.filter(|it| *it > OLD_READING);
    old.map(|it| paint.apply(Tone::Warning, &format!("  read {} ago", format::age(it))))
        .into_iter()
        .collect()
}

/// In bytes as people read them, or a plain count.
pub(super) fn amount(signal: Signal, n: Option<i64>) -> String {
    let Some(n) = n else {
        return NOTHING.to_owned();
    };
    match signal.resource() {
        StarvedResource::Memory | StarvedResource::EphemeralStorage => {
            let sign = if n < 0 { "-" } else { "" };
            format!("{sign}{}", format::bytes(Bytes(n.unsigned_abs())))
        }
        StarvedResource::Inodes | StarvedResource::Pids => n.to_string(),
    }
}

/// How far the threshold is away. One that is met may be: it is over only with the minimum reclaim.
fn left(status: &SignalStatus, threshold: &ThresholdStatus) -> String {
    let left = status.available.zip(threshold.amount);
    let left = left.map(|(available, below)| available.saturating_sub(below));
    let left = amount(status.signal, left);
    match threshold.is_met {
        true => format!("met, {left}"),
        false => left,
    }
}

fn tone(status: &SignalStatus, threshold: &ThresholdStatus) -> Tone {
    match (threshold.is_met, threshold.is_hard) {
        (true, true) => Tone::Bad,
        (true, false) => Tone::Warning,
        (false, _) if status.available.is_none() => Tone::Warning,
        (false, _) => Tone::Plain,
    }
}

fn render_wakers(wakers: &[WakerStatus], width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([("WOKEN BY", Align::Left), ("ARMED", Align::Left)]);
    for waker in wakers {
        let (is_armed, tone) = match waker.is_armed {
            true => ("yes", Tone::Plain),
            false => ("no", Tone::Warning),
        };
        let cells = [printable(&waker.name).into_owned(), is_armed.to_owned()];
        let reason = waker.reason.iter();
        let reason = reason.map(|it| format!("  {}", printable(it))).collect();
        table.row_with(cells, tone, reason);
    }
    table.render(width, paint, out);
}

/// Says so where another program decides.
fn render_decider(by: EvictedBy, out: &mut String) {
    match by {
        EvictedBy::Agent => {}
        EvictedBy::Kubelet => {
            line!(
                out,
                "kubelet decides, by its rule and by what it reads itself"
            );
        }
    }
}

fn render_order(order: &[Standing], by: EvictedBy, width: usize, paint: Paint, out: &mut String) {
    let heading = match by {
        EvictedBy::Agent => "EVICTION ORDER (MEMORY)",
        EvictedBy::Kubelet => "KUBELET'S EVICTION ORDER (MEMORY)",
    };
    let mut table = Table::new([
        (heading, Align::Left),
        ("PRIORITY", Align::Right),
        ("REQUEST", Align::Right),
        ("WORKING SET", Align::Right),
        ("RECLAIMABLE", Align::Right),
    ]);
    for (i, standing) in order.iter().take(ORDER_SHOWN).enumerate() {
        let name = format!("{} {}", i + 1, standing.pod);
        let cells = [
            printable(&name).into_owned(),
            standing.priority.to_string(),
            format::bytes(Bytes(standing.request_bytes)),
            bytes(standing.working_set_bytes),
            bytes(standing.reclaimable_bytes),
        ];
        table.row(cells, Tone::Plain);
    }
    table.render(width, paint, out);
    let n_more = order.len().saturating_sub(ORDER_SHOWN);
    if n_more > 0 {
        line!(out, "and {n_more} more");
    }
    render_decider(by, out);
}

fn bytes(n: Option<u64>) -> String {
    n.map_or_else(|| NOTHING.to_owned(), |n| format::bytes(Bytes(n)))
}

fn use_against_request(standing: &Standing) -> String {
    let Some(working_set) = standing.working_set_bytes else {
        return "what it uses is not known, so it is not chosen".to_owned();
    };
    let request = standing.request_bytes;
    let [used, requested, apart] =
        [working_set, request, working_set.abs_diff(request)].map(|it| format::bytes(Bytes(it)));
    let mut text = format!("working set {used}, ");
    text += &match working_set > request {
        true if request == 0 => "no request".to_owned(),
        true => format!("{apart} above its request of {requested}"),
        false => format!("{apart} below its request of {requested}"),
    };
    if let Some(reclaimable) = standing.reclaimable_bytes {
        let reclaimable = format::bytes(Bytes(reclaimable));
        text += &format!("; {reclaimable} could be reclaimed");
    }
    text
}

/// What the eviction brought, as far as it is known.
fn render_effect(eviction: &EvictionStatus, indent: &str, out: &mut String) {
    let freed = eviction.freed_bytes.map(|freed| {
        let freed = format::bytes(Bytes(freed));
        match eviction.expected_bytes {
            Some(expected) => format!(
                "{freed} freed of {} expected",
                format::bytes(Bytes(expected))
            ),
            None => format!("{freed} freed"),
        }
    });
    let reaction = eviction.reaction_us.map(|us| {
        let took = format::micros(us);
        format!("{took} from the reading to its last process gone")
    });
    let known: Vec<String> = freed.into_iter().chain(reaction).collect();
    if !known.is_empty() {
        line!(out, "{indent}{}", known.join(", "));
    }
}
