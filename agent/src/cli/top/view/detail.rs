//! One pod, and one container of it.

use ratatui_core::text::{Line, Span};

use super::pods::{containers, io_text};
use super::text::{Theme, bytes, count, cpu, fit, stall, throttled};
use crate::cli::format::{self, Align, NOTHING, Paint, Tone, printable};
use crate::cli::pressure;
use crate::cli::status::{label, state_of_container};
use crate::cli::top::rows::{Activity, ContainerRow, PodRow, Room};
use crate::model::status::ResourceBounds;
use crate::units::{Bytes, MilliCpu};

/// Columns of the names of values.
const NAME: usize = 12;

/// What is known of the pod as a whole, then its containers.
pub(super) fn pod(pod: &PodRow, cursor: usize, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let entry = &pod.entry;
    let age = pod.age.map(format::age);
    let head = format!(
        "{}  {}  {}{}",
        pod.full_name(),
        entry.qos,
        entry.phase,
        age.map_or_else(String::new, |it| format!(", {it} old")),
    );
    let mut lines = vec![theme.line(Tone::Heading, fit(&head, width, Align::Left))];
    let why: Vec<&str> = [&entry.reason, &entry.message]
        .into_iter()
        .filter_map(|it| it.as_deref())
        .collect();
    if !why.is_empty() {
        lines.push(theme.line(Tone::Warning, fit(&why.join(": "), width, Align::Left)));
    }
    lines.extend(use_lines(
        &pod.activity,
        &entry.resources,
        pod.room.as_ref(),
        theme,
    ));
    if let Some(standing) = &pod.eviction {
        let mut text = String::new();
        let paint = Paint { has_colour: false };
        pressure::render_standing(standing, pod.evicted_by, paint, &mut text);
        // Without its heading.
        for (i, line) in text.lines().skip(1).enumerate() {
            let name = if i == 0 { "eviction" } else { "" };
            lines.push(value(name, vec![Span::raw(line.to_owned())], theme));
        }
    }
    lines.push(Line::default());
    lines.extend(containers(
        pod,
        cursor,
        width,
        pod.containers.len() + 1,
        theme,
    ));
    lines
}

pub(super) fn container(
    pod: &PodRow,
    container: &ContainerRow,
    width: usize,
    theme: Theme,
) -> Vec<Line<'static>> {
    let entry = &container.entry;
    let head = format!("{}/{}", pod.full_name(), label(entry));
    let (state, tone) = state_of_container(entry, container.at);
    let mut lines = vec![
        theme.line(Tone::Heading, fit(&head, width, Align::Left)),
        value("state", vec![theme.span(tone, state)], theme),
    ];
    let room = container.room.as_ref();
    lines.extend(use_lines(
        &container.activity,
        &entry.resources,
        room,
        theme,
    ));
    let mut add = |name: &str, text: String| lines.push(value(name, vec![Span::raw(text)], theme));
    if let Some(instance) = &container.instance {
        let spec = &instance.stats.spec;
        add(
            "kernel cpu",
            kernel_cpu(spec.cpu_quota_us, spec.cpu_period_us, spec.cpu_shares),
        );
        add(
            "kernel mem",
            format!(
                "max {}, high {}, low {}, min {}, swap {}",
                bytes(spec.memory_limit),
                bytes(spec.memory_high),
                bytes(spec.memory_low),
                bytes(spec.memory_min),
                bytes(spec.swap_limit),
            ),
        );
        let memory = &instance.stats.memory;
        add(
            "memory",
            format!(
                "charged {}, most {}, anonymous {}, files {}, kernel {}, swap {}",
                bytes(memory.usage),
                bytes(memory.peak),
                bytes(memory.stat.anon.map(|it| it.0)),
                bytes(memory.stat.file.map(|it| it.0)),
                bytes(memory.kernel),
                bytes(memory.swap),
            ),
        );
        let disk = [instance.root_fs.bytes, instance.logs.bytes];
        add(
            "holds",
            format!(
                "tasks {} of {}, descriptors {}, root and logs {}",
                count(container.activity.n_tasks),
                spec.max_tasks
                    .map_or_else(|| "any".to_owned(), |it| it.to_string()),
                count(instance.descriptors),
                bytes(disk.into_iter().flatten().reduce(u64::saturating_add)),
            ),
        );
        if !instance.image.is_empty() {
            add("image", printable(&instance.image).into_owned());
        }
    }
    let cpuset = entry
        .cpuset
        .as_deref()
        .unwrap_or("any that its cgroup may use");
    add("cpus", printable(cpuset).into_owned());
    let (oom, tone) = super::pods::oom_kills(entry.oom_kills);
    lines.push(value(
        "ends",
        vec![
            Span::raw(format!("restarts {}, OOM kills ", entry.restarts)),
            theme.span(tone, oom),
        ],
        theme,
    ));
    lines
}

/// What pod and container have in common.
fn use_lines(
    activity: &Activity,
    bounds: &ResourceBounds,
    room: Option<&Room>,
    theme: Theme,
) -> Vec<Line<'static>> {
    let bound = |what: &str, it: Option<String>| match it {
        Some(it) => format!(", {what} {it}"),
        None => format!(", no {what}"),
    };
    let cpu_bound = |what: &str, it: Option<MilliCpu>| bound(what, it.map(format::cpu));
    let memory_bound = |what: &str, it: Option<Bytes>| bound(what, it.map(format::bytes));
    let (held, tone) = throttled(activity.throttled);
    let (left, left_tone) = match room {
        Some(room) => {
            let (share, tone) = super::text::room_percent(Some(room));
            let of = match &room.container {
                Some(name) => format!(" of {}", printable(name)),
                None => String::new(),
            };
            let left = bytes(Some(room.left()));
            (format!(", {left} left to the limit{of} ({share})"), tone)
        }
        None => (String::new(), Tone::Plain),
    };
    let cpu_text = format!(
        "{}{}{}, throttled ",
        cpu(activity.cpu),
        cpu_bound("request", bounds.cpu_request_milli),
        cpu_bound("limit", bounds.cpu_limit_milli),
    );
    let memory_text = format!(
        "{}{}{}",
        bytes(activity.memory),
        memory_bound("request", bounds.memory_request_bytes),
        memory_bound("limit", bounds.memory_limit_bytes),
    );
    let rate = |it: Option<u64>| match it {
        Some(it) => format!("{it}/s"),
        None => NOTHING.to_owned(),
    };
    let mut stalls = Vec::new();
    for (name, of) in [
        ("cpu", activity.stalls.cpu),
        ("memory", activity.stalls.memory),
        ("io", activity.stalls.io),
    ] {
        let (text, tone) = stall(of);
        stalls.push(Span::raw(format!("{name} ")));
        stalls.push(theme.span(tone, text));
        stalls.push(Span::raw("  "));
    }
    stalls.push(Span::raw("(some/full of the time)"));
    let faults = format!(
        "{}; page faults {}, major {}",
        io_text(activity),
        rate(activity.page_faults),
        rate(activity.major_page_faults),
    );
    vec![
        value(
            "cpu",
            vec![Span::raw(cpu_text), theme.span(tone, held)],
            theme,
        ),
        value(
            "working set",
            vec![Span::raw(memory_text), theme.span(left_tone, left)],
            theme,
        ),
        value("stalled", stalls, theme),
        value("io", vec![Span::raw(faults)], theme),
    ]
}

fn kernel_cpu(quota_us: Option<u64>, period_us: Option<u64>, shares: Option<u64>) -> String {
    let quota = match quota_us.zip(period_us) {
        Some((quota, period)) => {
            let [quota, period] = [quota, period].map(format::micros);
            format!("{quota} in {period}")
        }
        None => "no quota".to_owned(),
    };
    format!("{quota}, shares {}", count(shares))
}

fn value(name: &str, text: Vec<Span<'static>>, theme: Theme) -> Line<'static> {
    let mut spans = vec![theme.span(Tone::Heading, fit(name, NAME, Align::Left))];
    spans.extend(text);
    Line::from(spans)
}
