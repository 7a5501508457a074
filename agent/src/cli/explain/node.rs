//! `ballast explain node`: who holds what, what is reserved, what is left, and who would have to go.

use super::{add_line, policies_text};
use crate::cli::format::{self, Align, NOTHING, Paint, Table, Tone, printable};
use crate::cli::pressure::{self, EvictedBy};
use crate::cli::status::render_resources;
use crate::model::status::{CpuPools, NumaNodeStatus, PlacementStatus, Status};
use crate::units::Bytes;

/// The node's placement and pressure as text of at most `width` columns where names allow it.
pub fn render_node(status: &Status, width: usize, has_colour: bool) -> String {
    let paint = Paint { has_colour };
    let node = &status.node;
    let mut out = String::new();
    add_line!(
        out,
        "{}",
        paint.apply(Tone::Heading, &printable(&node.name))
    );
    if let Some(kubelet) = &node.kubelet {
        add_line!(out, "{}", printable(&kubelet.to_string()));
    }
    match &node.placement {
        Some(placement) => render_placement(placement, width, paint, &mut out),
        None if !status.is_managed() => {
            add_line!(
                out,
                "another program places pods on this node, and its books are not known"
            );
        }
        None => {
            add_line!(
                out,
                "how it places pods is not known yet: ask again after the first pass"
            );
        }
    }
    out.push('\n');
    render_resources(node, width, paint, &mut out);
    out.push('\n');
    match &node.pressure {
        Some(pressure) => {
            let by = EvictedBy::of(status.is_managed());
            pressure::render_whole(pressure, by, width, paint, &mut out);
        }
        None if !status.is_managed() => {
            add_line!(out, "another program evicts pods from it");
        }
        None => {
            add_line!(
                out,
                "what it is short of is not known yet: ask again in a moment"
            );
        }
    }
    out
}

fn render_placement(placement: &PlacementStatus, width: usize, paint: Paint, out: &mut String) {
    add_line!(out, "{}", policies_text(&placement.policies));
    out.push('\n');
    match &placement.cpus {
        Some(cpus) => render_pools(cpus, width, paint, out),
        None if placement.policies.places_cpus() => {
            add_line!(out, "who has which CPUs is not known");
        }
        None => {
            add_line!(
                out,
                "every container runs on all CPUs: cpuManagerPolicy is none"
            );
        }
    }
    out.push('\n');
    render_numa_nodes(&placement.numa_nodes, width, paint, out);
    render_devices(placement, width, paint, out);
}

fn render_pools(pools: &CpuPools, width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("CPU POOL", Align::Left),
        ("N", Align::Right),
        ("CPUS", Align::Left),
    ]);
    let mut row = |name: String, cpus: &crate::model::cpuset::CpuSet, tone| {
        let shown = match cpus.is_empty() {
            true => NOTHING.to_owned(),
            false => cpus.to_string(),
        };
        table.row([name, cpus.len().to_string(), shown], tone);
    };
    row("shared".to_owned(), &pools.shared, Tone::Plain);
    if let Some(reserved) = &pools.reserved {
        row("reserved".to_owned(), reserved, Tone::Plain);
    }
    for held in &pools.exclusive {
        let pod = held.pod.as_deref().unwrap_or(&held.uid.0);
        let name = match &held.container {
            Some(container) => format!("{pod} {container}"),
            None => pod.to_owned(),
        };
        let (name, tone) = match held.pod {
            Some(_) => (name, Tone::Plain),
            None => (format!("{name} (gone)"), Tone::Warning),
        };
        row(printable(&name).into_owned(), &held.cpus, tone);
    }
    table.render(width, paint, out);
}

fn render_numa_nodes(nodes: &[NumaNodeStatus], width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("NUMA NODE", Align::Left),
        ("CPUS", Align::Left),
        ("FREE CPUS", Align::Left),
        ("MEMORY free/allocatable", Align::Right),
        ("RESERVED", Align::Right),
    ]);
    for node in nodes {
        let free_cpus = node.free_cpus.as_ref().map(|it| match it.is_empty() {
            true => "none".to_owned(),
            false => it.to_string(),
        });
        let amounts = |resource: &str| {
            let it = node.memory.get(resource)?;
            let [free, allocatable] = [it.free, it.allocatable].map(|it| format::bytes(Bytes(it)));
            Some(format!("{free}/{allocatable}"))
        };
        let reserved = node.memory.get("memory").and_then(|it| it.system_reserved);
        let reserved = reserved.map(|it| format::bytes(Bytes(it)));
        // Huge page sizes that the node has none of say nothing.
        let hugepages = node.memory.iter().filter_map(|(resource, it)| {
            let kept = it.system_reserved.filter(|it| *it > 0);
            let kept = kept.map(|it| format!(", {} reserved", format::bytes(Bytes(it))));
            let is_shown = resource != "memory" && (it.allocatable > 0 || kept.is_some());
            let line = || {
                let (name, kept) = (printable(resource), kept.unwrap_or_default());
                Some(format!("  {name} {}{kept}", amounts(resource)?))
            };
            is_shown.then(line).flatten()
        });
        let cells = [
            node.id.to_string(),
            node.cpus.to_string(),
            free_cpus.unwrap_or_else(|| NOTHING.to_owned()),
            amounts("memory").unwrap_or_else(|| NOTHING.to_owned()),
            reserved.unwrap_or_else(|| NOTHING.to_owned()),
        ];
        table.row_with(cells, Tone::Plain, hugepages.collect());
    }
    table.render(width, paint, out);
}

fn render_devices(placement: &PlacementStatus, width: usize, paint: Paint, out: &mut String) {
    if placement.devices.is_empty() {
        return;
    }
    let mut table = Table::new([
        ("DEVICES", Align::Left),
        ("CAPACITY", Align::Right),
        ("ALLOCATABLE", Align::Right),
        ("ALLOCATED", Align::Right),
    ]);
    for (resource, counts) in &placement.devices {
        let tone = match counts.allocated > counts.allocatable {
            true => Tone::Warning,
            false => Tone::Plain,
        };
        let cells = [
            printable(resource).into_owned(),
            counts
                .capacity
                .map_or_else(|| NOTHING.to_owned(), |it| it.to_string()),
            counts.allocatable.to_string(),
            counts.allocated.to_string(),
        ];
        table.row(cells, tone);
    }
    out.push('\n');
    table.render(width, paint, out);
}
