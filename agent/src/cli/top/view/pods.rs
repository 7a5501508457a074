//! The table of pods, and that of the containers of one.

use ratatui_core::text::{Line, Span};

use super::table::{Column, Table};
use super::text::{
    Cell, Theme, bytes, count, cpu, plain, room_left, room_percent, stall, throttled,
};
use crate::cli::format::{self, Align, NOTHING, Tone};
use crate::cli::status::{label, state_of_container};
use crate::cli::top::app::App;
use crate::cli::top::rows::{Activity, ContainerRow, PodRow, SortKey};
use crate::model::container::PodPhase;
use crate::model::pod::QosClass;
use crate::model::status::{EntryState, EvictionStanding};

/// Pods of the filter around the cursor.
pub(super) fn pods(app: &App, width: usize, height: usize, theme: Theme) -> Vec<Line<'static>> {
    let pods = app.pods();
    table(app, &pods).lines(&pods, width, height, theme)
}

/// Columns of the whole table with whole names.
pub(super) fn whole_width(app: &App) -> usize {
    table(app, &app.pods()).whole_width()
}

fn table(app: &App, pods: &[&PodRow]) -> Table<'static, PodRow> {
    let width_of = |pod: &&PodRow| Span::raw(pod.full_name()).width();
    let longest = pods.iter().map(width_of).max().unwrap_or(0);
    Table {
        columns: &PODS,
        name: ("   POD", marked_name),
        sort: Some(app.sort),
        // With the mark.
        longest_name: longest + 3,
        cursor: Some(app.row()),
    }
}

/// The containers of `pod`; `cursor`: the row that is chosen.
pub(super) fn containers(
    pod: &PodRow,
    cursor: usize,
    width: usize,
    height: usize,
    theme: Theme,
) -> Vec<Line<'static>> {
    let table = Table {
        columns: &CONTAINERS,
        name: ("CONTAINER", |it| plain(label(&it.entry))),
        sort: None,
        longest_name: 0,
        cursor: Some(cursor),
    };
    let rows: Vec<&ContainerRow> = pod.containers.iter().collect();
    table.lines(&rows, width, height, theme)
}

/// Columns that a screen of 80 has are of the ranks 0 and 1.
static PODS: [Column<PodRow>; 17] = [
    of_pod("QOS", 3, 1, |it| plain(short_class(it.entry.qos))).left(),
    of_pod("PHASE", 9, 3, phase).left(),
    of_pod("CPU", 6, 0, |it| plain(cpu(it.activity.cpu))).sorts(SortKey::Cpu),
    of_pod("REQ", 6, 4, |it| {
        plain(cpu(it.entry.resources.cpu_request_milli.map(|it| it.0)))
    }),
    of_pod("LIM", 6, 4, |it| {
        plain(cpu(it.entry.resources.cpu_limit_milli.map(|it| it.0)))
    }),
    of_pod("THROT", 6, 1, |it| throttled(it.activity.throttled)).sorts(SortKey::Throttling),
    of_pod("MEMORY", 7, 0, |it| plain(bytes(it.activity.memory))).sorts(SortKey::Memory),
    of_pod("REQ", 6, 3, |it| {
        plain(bytes(
            it.entry.resources.memory_request_bytes.map(|it| it.0),
        ))
    }),
    of_pod("%LIMIT", 7, 1, |it| room_percent(it.room.as_ref())).sorts(SortKey::Limit),
    of_pod("LEFT", 6, 3, |it| room_left(it.room.as_ref())),
    of_pod("STALL", 9, 1, |it| stall(it.activity.stalls.memory)).sorts(SortKey::Stall),
    of_pod("CPU STALL", 9, 4, |it| stall(it.activity.stalls.cpu)),
    of_pod("IO STALL", 9, 4, |it| stall(it.activity.stalls.io)),
    of_pod("EVICT", 7, 1, |it| eviction(it.eviction.as_ref())).sorts(SortKey::Eviction),
    of_pod("RST", 4, 2, |it| restarts(it.restarts)),
    of_pod("OOM", 4, 2, |it| oom_kills(it.entry.oom_kills)),
    of_pod("AGE", 6, 3, |it| {
        plain(it.age.map_or_else(|| NOTHING.to_owned(), format::age))
    }),
];

static CONTAINERS: [Column<ContainerRow>; 9] = [
    of_container("STATE", 20, 1, short_state).left(),
    of_container("CPU", 6, 0, |it| plain(cpu(it.activity.cpu))),
    of_container("THROT", 6, 2, |it| throttled(it.activity.throttled)),
    of_container("MEMORY", 7, 0, |it| plain(bytes(it.activity.memory))),
    of_container("%LIMIT", 6, 1, |it| room_percent(it.room.as_ref())),
    of_container("STALL", 9, 1, |it| stall(it.activity.stalls.memory)),
    of_container("TASKS", 5, 3, |it| plain(count(it.activity.n_tasks))),
    of_container("RST", 4, 2, |it| restarts(it.entry.restarts.into())),
    of_container("OOM", 4, 2, |it| oom_kills(it.entry.oom_kills)),
];

/// Types the closures.
const fn of_pod(
    head: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&PodRow) -> Cell,
) -> Column<PodRow> {
    column(head, width, rank, cell)
}

const fn of_container(
    head: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&ContainerRow) -> Cell,
) -> Column<ContainerRow> {
    column(head, width, rank, cell)
}

const fn column<R>(head: &'static str, width: usize, rank: u8, cell: fn(&R) -> Cell) -> Column<R> {
    Column {
        head,
        width,
        align: Align::Right,
        sort: None,
        rank,
        cell,
    }
}

impl<R> Column<R> {
    const fn left(self) -> Self {
        Self {
            align: Align::Left,
            ..self
        }
    }

    const fn sorts(self, key: SortKey) -> Self {
        Self {
            sort: Some(key),
            ..self
        }
    }
}

/// The name behind a mark that says without colour how bad the worst value of the row is.
fn marked_name(pod: &PodRow) -> Cell {
    let worst = PODS.iter().map(|column| (column.cell)(pod).1);
    let mut mark = "  ";
    for tone in worst {
        match tone {
            Tone::Bad => mark = "!!",
            Tone::Warning if mark != "!!" => mark = "! ",
            _ => {}
        }
    }
    plain(format!("{mark} {}", pod.full_name()))
}

pub(super) fn short_class(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "G",
        QosClass::Burstable => "Bu",
        QosClass::BestEffort => "BE",
    }
}

/// The phase of a pod is Running also while a container waits to be started again.
fn phase(pod: &PodRow) -> Cell {
    let waits = pod.containers.iter().any(|it| {
        matches!(&it.entry.state, EntryState::Waiting { reason: Some(it), .. } if it == "CrashLoopBackOff")
    });
    let tone = match pod.entry.phase {
        PodPhase::Failed => Tone::Bad,
        _ if waits => Tone::Warning,
        _ => Tone::Plain,
    };
    (pod.entry.phase.to_string(), tone)
}

fn eviction(standing: Option<&EvictionStanding>) -> Cell {
    match standing {
        Some(EvictionStanding::InOrder { place, of, .. }) => plain(format!("{place}/{of}")),
        Some(EvictionStanding::Critical) => plain("never"),
        Some(EvictionStanding::Evicted { .. }) => ("evicted".to_owned(), Tone::Bad),
        None => plain(NOTHING),
    }
}

fn restarts(n: u64) -> Cell {
    plain(n.to_string())
}

pub(super) fn oom_kills(n: u64) -> Cell {
    let tone = match n {
        0 => Tone::Plain,
        _ => Tone::Bad,
    };
    (n.to_string(), tone)
}

/// The first clause of the state.
fn short_state(container: &ContainerRow) -> Cell {
    let (text, tone) = state_of_container(&container.entry, container.at);
    let first = text.split(", ").next().unwrap_or_default();
    (first.to_owned(), tone)
}

/// What an activity has that is not in a column: for details.
pub(super) fn io_text(activity: &Activity) -> String {
    let rate = |it: Option<u64>| match it {
        Some(it) => format!("{}/s", bytes(Some(it))),
        None => NOTHING.to_owned(),
    };
    format!(
        "read {}, written {}",
        rate(activity.read),
        rate(activity.written)
    )
}
