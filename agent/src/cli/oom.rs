//! A forensic record of an OOM kill as a story: who died, by whose limit, who else was there, and
//! what led up to it.

use super::format::{Paint, Tone, bytes, micros, printable};
use crate::model::forensics::{
    AgentState, CgroupScene, CgroupUse, LaterVictim, OomRecord, Part, ProcessScene, Trend,
};
use crate::model::record::subject;
use crate::units::{Bytes, Limit};

/// Of a list, what a reader takes in.
const SHOWN: usize = 5;

/// The keys of `memory.stat` that say what memory was, on v2 and on v1.
const STAT: [&str; 8] = [
    "anon",
    "file",
    "shmem",
    "kernel",
    "total_rss",
    "total_cache",
    "total_shmem",
    "total_swap",
];

/// The lines of a record, without an empty one at the end.
pub(super) fn render_record(record: &OomRecord, paint: Paint) -> String {
    let event = &record.event;
    let mut lines = vec![format!(
        "{} {}: {}: {}",
        paint.apply(Tone::Heading, &format!("OOM record {}", record.id)),
        event.time,
        printable(&whose(event.subject())),
        paint.apply(Tone::Bad, &printable(&event.message)),
    )];
    let mut add = |title: &str, text: String| {
        if !text.is_empty() {
            lines.push(format!("  {title}: {}", printable(&text)));
        }
    };
    add("more kills by this limit", later(record));
    // What somebody asks for is done by a thread of the kernel.
    if let Some(detail) = record.oom().filter(|_| !event.was_asked_for()) {
        let trigger = &detail.trigger;
        let of = whose(trigger.subject());
        let (comm, pid) = (&trigger.comm, trigger.pid);
        add("asked for memory", format!("{comm} (pid {pid}) of {of}"));
    }
    let scene = &record.scene;
    if let Some(limit) = &scene.limit {
        add("full", cgroup(limit));
    }
    if let Some(pod) = &scene.victim_pod {
        add("the pod", cgroup(pod));
    }
    add("beside it", cgroups(&scene.siblings));
    add("in it", cgroups(&scene.children));
    add("pods of the node", cgroups(&scene.pods));
    add("processes", processes(&scene.processes, scene.n_processes));
    add("before it", trend(&record.trend));
    add("the agent", agent(&record.agent));
    let cut: Vec<&str> = record.cut.iter().map(|it| part(*it)).collect();
    add("not wholly in the record", cut.join(", "));
    lines.push(format!(
        "  recorded {} after the kill",
        micros(record.recorded_after_us)
    ));
    lines.join("\n")
}

fn whose(subject: Option<String>) -> String {
    subject.unwrap_or_else(|| "no pod".to_owned())
}

fn later(record: &OomRecord) -> String {
    if record.n_kills <= 1 {
        return String::new();
    }
    let n_more = record.n_kills - 1;
    let named = first_of(&record.more_victims, n_more, |it: &LaterVictim| {
        let of = whose(it.subject());
        format!("{} (pid {}) of {of}", it.comm, it.pid)
    });
    format!("{n_more} within a second: {named}")
}

fn cgroup(cgroup: &CgroupScene) -> String {
    let mut parts = Vec::new();
    if let Some(usage) = cgroup.usage_bytes {
        parts.push(format!("{} after the kill", bytes(Bytes(usage))));
    }
    parts.extend(
        cgroup
            .peak_bytes
            .map(|it| format!("peak {}", bytes(Bytes(it)))),
    );
    parts.extend(
        cgroup
            .limits
            .iter()
            .filter_map(|(file, limit)| match limit {
                Limit::At(at) if *at > 0 => Some(format!("{file} {}", bytes(Bytes(*at)))),
                _ => None,
            }),
    );
    parts.extend(STAT.iter().filter_map(|key| {
        let held = cgroup.stat.get(*key).filter(|held| **held > 0)?;
        Some(format!("{key} {}", bytes(Bytes(*held))))
    }));
    let kills = cgroup.events.get("oom_kill");
    parts.extend(kills.map(|n| format!("{n} kills so far")));
    format!("{}: {}", cgroup.cgroup_path, parts.join(", "))
}

fn cgroups(cgroups: &[CgroupUse]) -> String {
    first_of(cgroups, cgroups.len() as u64, |it| {
        let named = subject(it.pod.as_ref(), None, it.container.as_deref(), None);
        let name = named.unwrap_or_else(|| it.cgroup_path.clone());
        format!("{name} {}", bytes(Bytes(it.usage_bytes)))
    })
}

fn processes(processes: &[ProcessScene], n: u64) -> String {
    first_of(processes, n, |it| {
        let adj = it.oom_score_adj;
        let adj = adj.map(|adj| format!(", oom_score_adj {adj}"));
        format!(
            "{} (pid {}, {}{})",
            it.comm,
            it.pid,
            bytes(Bytes(it.rss_bytes)),
            adj.unwrap_or_default()
        )
    })
}

/// The first of a list of `n`, and how many more there are.
fn first_of<T>(list: &[T], n: u64, text: impl Fn(&T) -> String) -> String {
    let mut shown: Vec<String> = list.iter().take(SHOWN).map(text).collect();
    let more = n.saturating_sub(shown.len() as u64);
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

fn trend(trend: &Trend) -> String {
    let mut parts = Vec::new();
    if let (Some(first), Some(last)) = (trend.pod.first(), trend.pod.last()) {
        parts.push(format!(
            "the pod went from {} to {} in {}",
            bytes(Bytes(first.usage)),
            bytes(Bytes(last.usage_max)),
            micros(last.at_ns.saturating_sub(first.at_ns) / 1000),
        ));
        if let (Some(first), Some(last)) = (first.stall, last.stall) {
            let stalled = last.some_us.saturating_sub(first.some_us);
            parts.push(format!("stalled for {} of it", micros(stalled)));
        }
    }
    if let (Some(first), Some(last)) = (trend.node.first(), trend.node.last())
        && let (Some(before), Some(after)) = (first.available, last.available_min)
    {
        parts.push(format!(
            "available on the node from {} to {}",
            bytes(Bytes(before)),
            bytes(Bytes(after)),
        ));
    }
    parts.join(", ")
}

fn agent(agent: &AgentState) -> String {
    let mut parts: Vec<String> = agent.conditions.iter().map(ToString::to_string).collect();
    parts.extend(agent.thresholds.iter().filter_map(|it| {
        let headroom = it.headroom?;
        let side = if headroom < 0 { "past" } else { "before" };
        let kind = if it.is_hard { "hard" } else { "soft" };
        let (signal, distance) = (it.signal, headroom.unsigned_abs());
        Some(format!("{signal} {distance} {side} its {kind} threshold"))
    }));
    parts.extend(agent.last_eviction.as_ref().map(|it| {
        let (pod, at, signal) = (&it.pod, it.at, &it.signal);
        format!("last evicted {pod} at {at} for {signal}")
    }));
    parts.join(", ")
}

const fn part(part: Part) -> &'static str {
    match part {
        Part::Siblings => "what was beside it",
        Part::Children => "what was in it",
        Part::Pods => "pods of the node",
        Part::Processes => "processes",
        Part::NodeTrend => "the node before it",
        Part::PodTrend => "the pod before it",
        Part::MoreVictims => "names of more victims",
        Part::Stat => "memory.stat",
        Part::Agent => "the agent",
        Part::Texts => "long names",
    }
}

#[cfg(test)]
mod tests;
