//! `ballast status`.

use std::fmt::Write;

use super::client::{Client, ClientError};
use super::format::{self, Align, NOTHING, Paint, Table, Tone, count, printable};
use super::{CliError, Output, Screen, StatusArgs, pressure};
use crate::model::api_pod::ContainerRole;
use crate::model::cgroup_name::CgroupDriver;
use crate::model::container::PodPhase;
use crate::model::record::short_id;
use crate::model::runtime_names::RuntimeStatus;
use crate::model::status::{
    CgroupStatus, ContainerEntry, EbpfStatus, EntryState, NodeStatus, PodEntry, ProgramState,
    PsiStatus, ResourceBounds, ResourceStatus, Status, Usage,
};
use crate::model::time::WallTime;
use crate::observe::protocol::{Answer, Request};
use crate::sys::clock;
use crate::units::{Bytes, MilliCpu};

/// A document older than this is called old: a pass runs at least every 10 s.
const OLD_SECONDS: u64 = 30;

/// Asks the agent for its status document and shows it.
pub fn status(args: &StatusArgs, screen: &mut Screen) -> Result<(), CliError> {
    let path = args.socket.path()?;
    let mut client = Client::ask(&path, &Request::status(), false)?;
    let Some(Answer::Status(status)) = client.next_answer()? else {
        return Err(ClientError::NoAnswer.into());
    };
    let text = match args.output {
        Output::Text => {
            let now = WallTime::from_epoch(clock::wall());
            render_status(&status, now, screen.width, screen.has_colour)
        }
        Output::Json => {
            let json = serde_json::to_string_pretty(&status)
                .map_err(|source| ClientError::Answer { source })?;
            json + "\n"
        }
    };
    screen.write(&text).map(|_| ())
}

/// The document as text of at most `width` columns where names allow it.
pub fn render_status(status: &Status, now: WallTime, width: usize, has_colour: bool) -> String {
    let paint = Paint { has_colour };
    let mut out = String::new();
    render_head(status, now, paint, &mut out);
    out.push('\n');
    render_resources(&status.node, width, paint, &mut out);
    render_psi(&status.node.psi, width, paint, &mut out);
    out.push('\n');
    if let Some(pressure) = &status.node.pressure {
        pressure::render_summary(pressure, width, paint, &mut out);
        out.push('\n');
    }
    render_ebpf(&status.node.ebpf, paint, &mut out);
    out.push('\n');
    render_pods(
        &status.pods,
        status.agent.observed_at,
        width,
        paint,
        &mut out,
    );
    render_faults(status, paint, &mut out);
    out
}

/// Adds one line. Writing to a string does not fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => {
        let _ = writeln!($out, $($arg)*);
    };
}

fn render_head(status: &Status, now: WallTime, paint: Paint, out: &mut String) {
    let Status { agent, node, .. } = status;
    line!(
        out,
        "{}: {} mode, cgroup {} ({})",
        paint.apply(Tone::Heading, &printable(&node.name)),
        printable(&agent.mode),
        node.cgroup.version,
        place(&node.cgroup),
    );
    line!(
        out,
        "agent {} (pid {}) up {}, reconciled {}, the last in {}",
        printable(&agent.version),
        agent.pid,
        format::age(agent.started_at.until(agent.observed_at)),
        count(agent.passes, "time"),
        format::micros(agent.last_pass_us),
    );
    line!(
        out,
        "{}, {} refused; {}",
        count(agent.writes, "write"),
        agent.failed_writes,
        count(agent.events, "event"),
    );
    if let Some(whose) = node.runtime.as_ref().and_then(RuntimeStatus::runtime) {
        let at = node.runtime.as_ref().and_then(|it| it.endpoint.as_deref());
        let refused = node.runtime.as_ref();
        let refused = refused.and_then(|it| it.events_refused.as_deref());
        let refused = refused.map(|it| format!(", which refuses its events: {}", printable(it)));
        line!(
            out,
            "names from {} at {}{}",
            printable(&whose),
            printable(at.unwrap_or("?")),
            refused.unwrap_or_default(),
        );
    }
    if let Some(status) = &node.api_server {
        let server = printable(status.server.as_deref().unwrap_or(status.from.as_str()));
        let age = status.stale_since.map(|it| it.until(agent.observed_at));
        let text = match (age, &status.fault) {
            (Some(age), _) => format!("workloads from {server}, {} old", format::age(age)),
            (None, None) => format!("workloads from {server}"),
            (None, Some(_)) => format!("no workloads from {server}"),
        };
        line!(out, "{text}");
    }
    if !node.cgroup.uncounted_disks.is_empty() {
        let disks: Vec<_> = node
            .cgroup
            .uncounted_disks
            .iter()
            .map(|it| printable(it))
            .collect();
        let text = format!(
            "block IO of {} is not counted for cgroups: ballast check says why",
            disks.join(", ")
        );
        line!(out, "{}", paint.apply(Tone::Bad, &text));
    }
    let old = agent.observed_at.until(now);
    if old.as_secs() >= OLD_SECONDS {
        let text = format!(
            "this is {} old: the loop does not complete",
            format::age(old)
        );
        line!(out, "{}", paint.apply(Tone::Bad, &text));
    }
}

/// Where the pods lie, and by whose names.
fn place(cgroup: &CgroupStatus) -> String {
    let driver = cgroup
        .driver
        .map(|it| format!("{} driver", driver_name(it)));
    let root = cgroup.root.as_deref();
    let root = root.map(|it| format!("root {}", printable(it)));
    match (driver, root) {
        (None, None) => "no cgroup of pods yet".to_owned(),
        (driver, root) => [driver, root]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn driver_name(driver: CgroupDriver) -> &'static str {
    match driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => "systemd",
    }
}

pub(super) fn render_resources(node: &NodeStatus, width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("RESOURCE", Align::Left),
        ("CAPACITY", Align::Right),
        ("RESERVED", Align::Right),
        ("ALLOCATABLE", Align::Right),
        ("REQUESTED", Align::Right),
        ("USED", Align::Right),
    ]);
    for (name, amounts) in &node.resources {
        // Huge page sizes that the node has none of.
        if amounts.capacity == 0 && amounts.requested.unwrap_or(0) == 0 {
            continue;
        }
        table.row(resource_cells(name, amounts), Tone::Plain);
    }
    table.render(width, paint, out);
}

fn resource_cells(name: &str, amounts: &ResourceStatus) -> [String; 6] {
    let show = |n: u64| match name {
        "cpu" => format::cpu(MilliCpu(n)),
        "memory" | "ephemeral-storage" => format::bytes(Bytes(n)),
        _ if name.starts_with("hugepages-") => format::bytes(Bytes(n)),
        _ => n.to_string(),
    };
    let amount = |n: Option<u64>| n.map_or_else(|| NOTHING.to_owned(), show);
    let share = amounts.requested.zip(amounts.allocatable);
    let requested = match share.and_then(|(part, whole)| format::percent(part, whole)) {
        Some(percent) => format!("{} ({percent}%)", amount(amounts.requested)),
        None => amount(amounts.requested),
    };
    [
        printable(name).into_owned(),
        show(amounts.capacity),
        amount(amounts.reserved),
        amount(amounts.allocatable),
        requested,
        amount(amounts.used),
    ]
}

fn render_psi(psi: &PsiStatus, width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("STALLED, LAST 10 s", Align::Left),
        ("SOME", Align::Right),
        ("FULL", Align::Right),
    ]);
    let resources = [("cpu", psi.cpu), ("memory", psi.memory), ("io", psi.io)];
    if resources.iter().all(|(_, share)| share.is_none()) {
        return;
    }
    for (name, share) in resources {
        let percent = |it: Option<f64>| match it {
            Some(it) => format!("{it:.2}%"),
            None => NOTHING.to_owned(),
        };
        let some = percent(share.map(|it| it.some_avg10));
        let full = percent(share.and_then(|it| it.full_avg10));
        table.row([name.to_owned(), some, full], Tone::Plain);
    }
    out.push('\n');
    table.render(width, paint, out);
}

fn render_ebpf(ebpf: &EbpfStatus, paint: Paint, out: &mut String) {
    let (skipped, wanted): (Vec<_>, Vec<_>) = ebpf
        .programs
        .iter()
        .partition(|it| it.state == ProgramState::Skipped);
    let missing = wanted.iter().filter(|it| it.state == ProgramState::Failed);
    let missing: Vec<_> = missing.collect();
    let lost: Vec<String> = ebpf
        .lost
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(stream, n)| format!("{n} {}", printable(stream)))
        .collect();
    let lost = match lost.as_slice() {
        [] if ebpf.lost.is_empty() => "nobody listens".to_owned(),
        [] => "no event lost".to_owned(),
        some => paint.apply(Tone::Warning, &format!("events lost: {}", some.join(", "))),
    };
    line!(
        out,
        "eBPF: {} of {} attached; {lost}",
        wanted.len() - missing.len(),
        count(wanted.len() as u64, "program"),
    );
    if let Some(why) = &ebpf.not_pinned {
        let why = printable(why);
        let text = format!("  not pinned, ends with the agent: {why}");
        line!(out, "{}", paint.apply(Tone::Warning, &text));
    }
    if let Some(why) = &ebpf.kept {
        let why = printable(why);
        let text = format!(
            "  programs that an earlier agent has pinned are kept from this one; they run on and note for the next: {why}"
        );
        line!(out, "{}", paint.apply(Tone::Warning, &text));
    }
    let missing = missing.into_iter().map(|it| (it, Tone::Warning));
    let skipped = skipped.iter().map(|it| (it, Tone::Plain));
    for (program, tone) in missing.chain(skipped) {
        let reason = program.reason.as_deref().unwrap_or("no reason is known");
        let text = format!("  {}: {}", printable(&program.name), printable(reason));
        line!(out, "{}", paint.apply(tone, &text));
    }
}

fn render_pods(pods: &[PodEntry], now: WallTime, width: usize, paint: Paint, out: &mut String) {
    if pods.is_empty() {
        out.push_str("no pods\n");
        return;
    }
    let mut table = Table::new([
        ("POD", Align::Left),
        ("QOS", Align::Left),
        ("PHASE", Align::Left),
        ("CPU use/req/lim", Align::Right),
        ("MEMORY use/req/lim", Align::Right),
    ]);
    for pod in pods {
        let cells = [
            printable(&pod_label(pod)).into_owned(),
            pod.qos.to_string(),
            pod.phase.to_string(),
            cpu_cell(&pod.usage, &pod.resources),
            memory_cell(&pod.usage, &pod.resources),
        ];
        let tone = if pod.phase == PodPhase::Failed {
            Tone::Bad
        } else {
            Tone::Plain
        };
        table.row_with(cells, tone, lines_of_pod(pod, now, paint));
    }
    table.render(width, paint, out);
}

fn cpu_cell(usage: &Usage, bounds: &ResourceBounds) -> String {
    parts(
        [
            usage.cpu_milli,
            bounds.cpu_request_milli,
            bounds.cpu_limit_milli,
        ]
        .map(|it| it.map(format::cpu)),
    )
}

fn memory_cell(usage: &Usage, bounds: &ResourceBounds) -> String {
    parts(
        [
            usage.memory_bytes,
            bounds.memory_request_bytes,
            bounds.memory_limit_bytes,
        ]
        .map(|it| it.map(format::bytes)),
    )
}

/// `4/4`: request and limit.
pub(super) fn cpu_bounds(bounds: &ResourceBounds) -> String {
    parts([bounds.cpu_request_milli, bounds.cpu_limit_milli].map(|it| it.map(format::cpu)))
}

/// `1.0Gi/2.0Gi`: request and limit.
pub(super) fn memory_bounds(bounds: &ResourceBounds) -> String {
    let bounds = [bounds.memory_request_bytes, bounds.memory_limit_bytes];
    parts(bounds.map(|it| it.map(format::bytes)))
}

fn parts<const N: usize>(parts: [Option<String>; N]) -> String {
    parts
        .map(|it| it.unwrap_or_else(|| NOTHING.to_owned()))
        .join("/")
}

fn lines_of_pod(pod: &PodEntry, now: WallTime, paint: Paint) -> Vec<String> {
    let mut lines = Vec::new();
    // A pod without a controller is its own.
    if let Some(it) = pod.workload.as_ref().filter(|it| it.name != pod.name) {
        lines.push(format!(
            "  of {} {}",
            printable(&it.kind),
            printable(&it.name)
        ));
    }
    let why: Vec<&str> = [&pod.reason, &pod.message]
        .into_iter()
        .filter_map(|it| it.as_deref())
        .collect();
    if !why.is_empty() {
        let text = format!("  {}", printable(&why.join(": ")));
        lines.push(paint.apply(Tone::Warning, &text));
    }
    let width = pod
        .containers
        .iter()
        .map(|it| label(it).chars().count())
        .max()
        .unwrap_or(0);
    for container in &pod.containers {
        let (text, tone) = state_of_container(container, now);
        let text = format!("  {:<width$}  {text}", label(container));
        lines.push(paint.apply(tone, &text));
    }
    lines
}

/// Its name; one that has none is known by its UID.
pub(super) fn pod_label(pod: &PodEntry) -> String {
    match pod.name.as_str() {
        "" => pod.uid.to_string(),
        name => format!("{}/{name}", pod.namespace),
    }
}

pub(super) fn label(container: &ContainerEntry) -> String {
    let name = match &container.id {
        Some(id) => short_id(id),
        None => &container.name,
    };
    let name = printable(name);
    match container.kind {
        Some(ContainerRole::Main) | None => name.into_owned(),
        Some(role) => format!("{name} ({role})"),
    }
}

pub(super) fn state_of_container(container: &ContainerEntry, now: WallTime) -> (String, Tone) {
    let mut tone = Tone::Plain;
    let mut parts = Vec::new();
    match &container.state {
        EntryState::Waiting { reason, until, .. } => {
            tone = Tone::Warning;
            parts.push(printable(reason.as_deref().unwrap_or("waiting")).into_owned());
            if let Some(until) = until {
                parts.push(format!("next start in {}", format::age(now.until(*until))));
            }
        }
        EntryState::Running { pid, started_at } => {
            let up = format::age(started_at.until(now));
            parts.push(match pid {
                Some(pid) => format!("running {up}, pid {pid}"),
                None => format!("running {up}"),
            });
        }
        EntryState::Terminated {
            reason, exit_code, ..
        } => {
            if *exit_code != Some(0) {
                tone = Tone::Bad;
            }
            parts.push(printable(reason.as_deref().unwrap_or("ended")).into_owned());
            if let Some(code) = exit_code {
                parts.push(format!("exit code {code}"));
            }
        }
    }
    if let Some(cpuset) = &container.cpuset {
        parts.push(format!("cpus {}", printable(cpuset)));
    }
    if container.restarts > 0 {
        parts.push(count(container.restarts.into(), "restart"));
    }
    if container.oom_kills > 0 {
        tone = Tone::Bad;
        parts.push(count(container.oom_kills, "OOM kill"));
    }
    (parts.join(", "), tone)
}

fn render_faults(status: &Status, paint: Paint, out: &mut String) {
    if !status.manifest_faults.is_empty() {
        line!(out, "\n{}", paint.apply(Tone::Heading, "REFUSED MANIFESTS"));
    }
    for fault in &status.manifest_faults {
        let place: Vec<&str> = [Some(&fault.file), fault.pod.as_ref(), fault.field.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        line!(
            out,
            "{}",
            paint.apply(Tone::Bad, &printable(&place.join(" ")))
        );
        line!(out, "  {}", printable(&fault.message));
    }
    if !status.warnings.is_empty() {
        line!(out, "\n{}", paint.apply(Tone::Heading, "WARNINGS"));
    }
    for warning in &status.warnings {
        line!(out, "{}", paint.apply(Tone::Warning, &printable(warning)));
    }
}
