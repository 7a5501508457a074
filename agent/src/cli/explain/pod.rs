//! `ballast explain pod`: from what the agent answers to text.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{add_line, policies_text};
use crate::cli::format::{self, Align, NOTHING, Paint, Table, Tone, printable};
use crate::cli::oom::render_record;
use crate::cli::pressure::{self, EvictedBy};
use crate::cli::status::{cpu_bounds, label, memory_bounds, pod_label};
use crate::model::admission::{
    AdmissionReport, Alignment, ContainerHoldings, Refusal, Remedy, Verdict,
};
use crate::model::cpuset::CpuSet;
use crate::model::numa::{Hint, NumaMask};
use crate::model::pod::{PodUid, Redefinition};
use crate::model::status::{
    ContainerEntry, ExclusiveCpus, PlacementPolicies, PlacementStatus, PodEntry,
};
use crate::observe::protocol::PodExplanation;
use crate::units::Bytes;

/// What it means that there is no record of an admission. `is_managed`: by the agent.
pub(super) const fn no_record(is_managed: bool) -> &'static str {
    match is_managed {
        true => {
            "no placement policy had a say in its admission: it has no CPUs, memory or devices of its own"
        }
        false => {
            "another program admits the pods of this node, and tells nobody how it came to that"
        }
    }
}

/// What it means that the node itself refused a pod.
pub(super) const BARRED: &str = "by the node as a whole, wherever its resources would lie: ballast status shows \
                      what all pods request, and ballast explain node what the node is short of";

const LEGEND: &str = "
* preferred: on an empty node no fewer NUMA nodes would do
alone, without: the choice if only this manager, or all but it, had a wish
";

/// What is shown of an admission record. The rest is for `ballast replay`.
#[derive(Deserialize)]
struct Record {
    input: RecordInput,
    report: AdmissionReport,
}

#[derive(Deserialize)]
struct RecordInput {
    settings: RecordSettings,
    /// The node itself refused it: no manager's word counts.
    #[serde(default)]
    barred: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RecordSettings {
    config: RecordConfig,
}

/// The policies at that time.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordConfig {
    cpu_manager_policy: String,
    memory_manager_policy: String,
    topology_manager_policy: String,
    topology_manager_scope: String,
}

/// The explanation as text of at most `width` columns where names allow it.
pub fn render_pod(explained: &PodExplanation, width: usize, has_colour: bool) -> String {
    let paint = Paint { has_colour };
    let mut out = String::new();
    let pod = &explained.pod;
    let record = explained.record.as_ref().map(Record::deserialize);
    let report = match &record {
        Some(Ok(record)) => Some(&record.report),
        _ => None,
    };
    render_head(pod, paint, &mut out);
    out.push('\n');
    render_budget(pod, width, paint, &mut out);
    out.push('\n');
    render_warnings(pod, paint, &mut out);
    if let Some(standing) = &explained.eviction {
        let by = EvictedBy::of(explained.is_managed);
        pressure::render_standing(standing, by, paint, &mut out);
        out.push('\n');
    }
    pressure::render_stalls(pod, width, paint, &mut out);
    let refusal = report.and_then(|it| it.refusal.as_ref());
    let placement = explained.placement.as_ref();
    if refusal.is_none() && (explained.is_managed || placement.is_some()) {
        let of_pod = placement.and_then(|it| it.holdings.get(&pod.uid));
        let of_record = report.map(|it| &it.holdings);
        let places = Places {
            uid: &pod.uid,
            placement,
            holdings: of_record.or(of_pod).map_or(&[][..], |it| it),
        };
        places.render(&pod.containers, width, paint, &mut out);
        out.push('\n');
    }
    let is_barred = matches!(&record, Some(Ok(it)) if it.input.barred.is_some());
    match (&record, &explained.record_fault) {
        (Some(Ok(_)), _) if is_barred => {}
        (Some(Ok(record)), _) => {
            render_admission(record, width, paint, &mut out);
        }
        (Some(Err(error)), _) => {
            let text = format!(
                "the record of its admission is not understood: is the agent of another version \
                 than this program? ({error})"
            );
            add_line!(out, "{}", paint.apply(Tone::Warning, &printable(&text)));
        }
        (None, Some(fault)) => {
            let text = format!("the record of its admission cannot be shown: {fault}");
            add_line!(out, "{}", paint.apply(Tone::Warning, &printable(&text)));
        }
        (None, None) => {
            add_line!(out, "{}", no_record(explained.is_managed));
        }
    }
    if let (Some(refusal), Some(report)) = (refusal, report) {
        if !is_barred {
            out.push('\n');
        }
        render_refusal(refusal, paint, &mut out);
        match is_barred {
            true => add_line!(out, "{BARRED}"),
            false => render_remedies(&report.remedies, explained, &mut out),
        }
    }
    if let Some(fault) = &explained.oom_records_fault {
        let text = format!("the records of its OOM kills cannot be shown: {fault}");
        out.push('\n');
        add_line!(out, "{}", paint.apply(Tone::Warning, &printable(&text)));
    }
    for record in &explained.oom_records {
        add_line!(out, "\n{}", render_record(record, paint));
    }
    out
}

fn render_head(pod: &PodEntry, paint: Paint, out: &mut String) {
    let name = pod_label(pod);
    add_line!(
        out,
        "{}: {}, {}",
        paint.apply(Tone::Heading, &printable(&name)),
        pod.qos,
        pod.phase,
    );
    if let Some(reason) = &pod.qos_reason {
        add_line!(out, "{} because {}", pod.qos, printable(reason));
    }
    let why: Vec<&str> = [&pod.reason, &pod.message]
        .into_iter()
        .filter_map(|it| it.as_deref())
        .collect();
    if !why.is_empty() {
        let text = printable(&why.join(": ")).into_owned();
        add_line!(out, "{}", paint.apply(Tone::Warning, &text));
    }
    if let Some(Redefinition { at, fields }) = &pod.redefined {
        add_line!(
            out,
            "its manifest has another definition since {at}: {}",
            printable(&fields.join(", "))
        );
    }
    let cgroup = pod.cgroup_path.as_deref().unwrap_or("not made");
    add_line!(out, "uid {}", printable(&pod.uid.0));
    add_line!(out, "cgroup {}", printable(cgroup));
}

fn render_warnings(pod: &PodEntry, paint: Paint, out: &mut String) {
    if pod.warnings.is_empty() {
        return;
    }
    add_line!(out, "{}", paint.apply(Tone::Heading, "WARNINGS"));
    for warning in &pod.warnings {
        add_line!(out, "{}", paint.apply(Tone::Warning, &printable(warning)));
    }
    out.push('\n');
}

fn render_budget(pod: &PodEntry, width: usize, paint: Paint, out: &mut String) {
    let mut table = Table::new([
        ("MAY USE", Align::Left),
        ("CPU req/lim", Align::Right),
        ("MEMORY req/lim", Align::Right),
    ]);
    let whole = [
        "the pod".to_owned(),
        cpu_bounds(&pod.resources),
        memory_bounds(&pod.resources),
    ];
    table.row(whole, Tone::Plain);
    for container in &pod.containers {
        let cells = [
            label(container),
            cpu_bounds(&container.resources),
            memory_bounds(&container.resources),
        ];
        table.row(cells, Tone::Plain);
    }
    table.render(width, paint, out);
}

/// Whose CPUs it runs on.
const UNKNOWN: &str = "not known";

/// Where the containers of a pod are.
struct Places<'a> {
    uid: &'a PodUid,
    placement: Option<&'a PlacementStatus>,
    holdings: &'a [ContainerHoldings],
}

impl Places<'_> {
    fn render(&self, containers: &[ContainerEntry], width: usize, paint: Paint, out: &mut String) {
        let mut table = Table::new([
            ("RUNS ON", Align::Left),
            ("CPUS", Align::Left),
            ("NUMA", Align::Left),
            ("WHOSE", Align::Left),
        ]);
        for container in containers {
            let (cpus, whose) = self.cpus_of(container);
            let numa = cpus.as_ref().map(|it| self.numa_nodes_of(it));
            let none = match whose {
                UNKNOWN => NOTHING,
                _ => "all",
            };
            let cells = [
                label(container),
                cpus.map_or_else(|| none.to_owned(), |it| it.to_string()),
                numa.unwrap_or_else(|| NOTHING.to_owned()),
                whose.to_owned(),
            ];
            let holdings = self
                .holdings
                .iter()
                .find(|it| it.container == container.name);
            let below = holdings.map(holdings_lines).unwrap_or_default();
            table.row_with(cells, Tone::Plain, below);
        }
        table.render(width, paint, out);
    }

    /// What the managers have for it now; `None`: it is not restricted, or that is not known.
    fn cpus_of(&self, container: &ContainerEntry) -> (Option<CpuSet>, &'static str) {
        let pools = self.placement.and_then(|it| it.cpus.as_ref());
        let held = |name: Option<&str>| {
            let is_it =
                |it: &&ExclusiveCpus| it.uid == *self.uid && it.container.as_deref() == name;
            let it = pools?.exclusive.iter().find(is_it)?;
            Some(it.cpus.clone())
        };
        if let Some(cpus) = held(Some(&container.name)) {
            let is_shared = held(None).is_some();
            return (Some(cpus), if is_shared { "the pod's" } else { "its own" });
        }
        let is_placed = self.placement.is_some_and(|it| it.policies.places_cpus());
        match pools {
            // Only names are in the books.
            Some(_) if container.name.is_empty() => (None, UNKNOWN),
            Some(pools) => (Some(pools.shared.clone()), "shared pool"),
            None if is_placed => (None, UNKNOWN),
            None => {
                let set = container.cpuset.as_ref().and_then(|it| it.parse().ok());
                (set, "everybody's")
            }
        }
    }

    fn numa_nodes_of(&self, cpus: &CpuSet) -> String {
        let nodes = self.placement.map_or(&[][..], |it| &it.numa_nodes);
        let of_cpus = nodes.iter().filter(|it| !it.cpus.is_disjoint(cpus));
        match NumaMask::new(of_cpus.map(|it| it.id)) {
            Ok(mask) if !mask.is_empty() => mask.to_string(),
            _ => NOTHING.to_owned(),
        }
    }
}

fn holdings_lines(holdings: &ContainerHoldings) -> Vec<String> {
    let memory = holdings.memory.iter().map(|block| {
        let size = format::bytes(Bytes(block.size));
        let resource = printable(&block.resource);
        format!("  {resource} {size} from {}", numa_text(Some(block.numa)))
    });
    let devices = holdings.devices.iter().map(|(resource, ids)| {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let text = format!("  {resource} {}", ids.join(", "));
        printable(&text).into_owned()
    });
    memory.chain(devices).collect()
}

fn numa_text(numa: Option<NumaMask>) -> String {
    match numa {
        None => "any NUMA node".to_owned(),
        Some(mask) if mask.len() == 1 => format!("NUMA node {mask}"),
        Some(mask) => format!("NUMA nodes {mask}"),
    }
}

fn render_admission(record: &Record, width: usize, paint: Paint, out: &mut String) {
    let config = &record.input.settings.config;
    let policies = policies_text(&PlacementPolicies {
        cpu_manager: config.cpu_manager_policy.clone(),
        memory_manager: config.memory_manager_policy.clone(),
        topology_manager: config.topology_manager_policy.clone(),
        topology_manager_scope: config.topology_manager_scope.clone(),
        ..PlacementPolicies::default()
    });
    add_line!(out, "{}", paint.apply(Tone::Heading, "HOW IT WAS PLACED"));
    add_line!(out, "{policies}");
    if record.report.alignments.is_empty() {
        add_line!(
            out,
            "each manager chose for itself: there was nothing to align"
        );
    }
    for alignment in &record.report.alignments {
        out.push('\n');
        render_alignment(
            alignment,
            &config.topology_manager_policy,
            width,
            paint,
            out,
        );
    }
    let has_table = |it: &Alignment| !it.providers.is_empty();
    if record.report.alignments.iter().any(has_table) {
        out.push_str(LEGEND);
    }
}

fn render_alignment(
    alignment: &Alignment,
    policy: &str,
    width: usize,
    paint: Paint,
    out: &mut String,
) {
    let whose = alignment.container.as_deref().unwrap_or("the pod");
    if alignment.providers.is_empty() {
        add_line!(out, "{}: anywhere, no manager had a wish", printable(whose));
        return;
    }
    let merged = numa_text(alignment.merged.numa);
    let text = match (alignment.is_admitted, alignment.merged.preferred) {
        (true, true) => format!("{whose}: {merged}, preferred by all"),
        (true, false) => {
            format!("{whose}: {merged}, the best there is, though not preferred by all")
        }
        (false, _) => format!(
            "{whose}: refused: the best there is, {merged}, is not preferred by all, as {policy} wants"
        ),
    };
    let tone = match alignment.is_admitted {
        true => Tone::Heading,
        false => Tone::Bad,
    };
    add_line!(out, "{}", paint.apply(tone, &printable(&text)));
    let lost = alignment.providers.iter().filter_map(|it| it.alone);
    let mut lost: Vec<Hint> = lost.filter(|it| *it != alignment.merged).collect();
    lost.sort_by_key(|it| (it.numa, it.preferred));
    lost.dedup();
    if !lost.is_empty() {
        add_line!(out, "  chosen over {}", hints_text(&lost));
    }
    if alignment.is_cut {
        let text = "  the search was ended early: there may be a better one";
        add_line!(out, "{}", paint.apply(Tone::Warning, text));
    }
    let mut table = Table::new([
        ("  MANAGER", Align::Left),
        ("RESOURCE", Align::Left),
        ("COULD TAKE IT FROM", Align::Left),
        ("NEEDS", Align::Right),
        ("AT BEST", Align::Right),
        ("ALONE", Align::Left),
        ("WITHOUT", Align::Left),
    ]);
    for provider in &alignment.providers {
        let (from, needs, at_best, tone) = verdict_cells(&provider.verdict);
        let cells = [
            format!("  {}", provider.provider),
            printable(&provider.resource).into_owned(),
            from,
            needs,
            at_best,
            hints_text(provider.alone.as_slice()),
            hints_text(provider.without.as_slice()),
        ];
        table.row(cells, tone);
    }
    table.render(width, paint, out);
}

/// Where from, the fewest NUMA nodes now, and on an empty node.
fn verdict_cells(verdict: &Verdict) -> (String, String, String, Tone) {
    let nothing = || NOTHING.to_owned();
    match verdict {
        Verdict::Any => ("anywhere".to_owned(), nothing(), nothing(), Tone::Plain),
        Verdict::Impossible => ("nowhere".to_owned(), nothing(), nothing(), Tone::Bad),
        Verdict::OneOf {
            narrowest,
            preferred_len,
            first,
            n_masks,
        } => {
            let more = match n_masks {
                Some(n) => n.saturating_sub(first.len() as u64),
                None => 0,
            };
            let mut from = hints_text(first);
            match (n_masks, first.is_empty(), more) {
                (None, true, _) => from = "many sets".to_owned(),
                (None, false, _) => from.push_str(", ..."),
                (Some(_), _, 0) => {}
                (Some(_), _, more) => from.push_str(&format!(" and {more} more")),
            }
            (
                from,
                narrowest.to_string(),
                preferred_len.map_or_else(nothing, |it| it.to_string()),
                Tone::Plain,
            )
        }
    }
}

/// `0*, 1*, 0-1`, of none `-`; sets with a comma of their own stand in braces.
fn hints_text(hints: &[Hint]) -> String {
    let texts = hints.iter().map(|it| {
        let mask = match it.numa {
            None => "any".to_owned(),
            Some(mask) => mask.to_string(),
        };
        let mask = match mask.contains(',') {
            true => format!("{{{mask}}}"),
            false => mask,
        };
        let star = if it.preferred { "*" } else { "" };
        format!("{mask}{star}")
    });
    match hints {
        [] => NOTHING.to_owned(),
        _ => texts.collect::<Vec<_>>().join(", "),
    }
}

fn render_refusal(refusal: &Refusal, paint: Paint, out: &mut String) {
    let mut text = format!("REFUSED: {refusal}");
    if let Some(container) = &refusal.container {
        text.push_str(&format!(" (container {container})"));
    }
    add_line!(out, "{}", paint.apply(Tone::Bad, &printable(&text)));
}

fn render_remedies(remedies: &[Remedy], explained: &PodExplanation, out: &mut String) {
    if remedies.is_empty() {
        add_line!(
            out,
            "no single change that was tried would let it in: less in one container, or without one \
             other pod"
        );
        return;
    }
    add_line!(out, "at that time it would have fit if");
    let pools = explained.placement.as_ref().and_then(|it| it.cpus.as_ref());
    let holders = pools.map_or(&[][..], |it| &it.exclusive);
    for remedy in remedies {
        let name = match remedy {
            Remedy::WithoutPod { uid } => holders
                .iter()
                .find(|it| it.uid == *uid)
                .and_then(|it| it.pod.as_ref()),
            _ => None,
        };
        let text = match name {
            Some(name) => format!("pod {name} goes away"),
            None => remedy.to_string(),
        };
        add_line!(out, "  {}", printable(&text));
    }
}
