//! Static pods of real distributions: who moves a node to mode `own` brings these, each `tests/data/static-pods/NAME.yaml`
//! to `NAME.txt`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use ballast::config::Compat;
use ballast::decide::eviction::facts::pod_facts;
use ballast::decide::qos::qos_class;
use ballast::model::pod::Pod;
use ballast::sources::manifests::{ManifestDirectory, ManifestFault};
use ballast_tests::scratch::Scratch;

use super::{check_each, check_golden, files};

#[test]
fn static_pods_of_real_nodes_are_taken_as_the_golden_texts_have_it() -> Result<()> {
    let manifests = files("static-pods", "yaml")?;
    ensure!(manifests.len() == 10, "{} manifests", manifests.len());
    check_each(&manifests, check)
}

fn check(manifest: &Path) -> Result<()> {
    check_golden(&manifest.with_extension("txt"), &read(manifest)?)
}

/// In a directory of its own, since pods of several distributions have one name.
fn read(manifest: &Path) -> Result<String> {
    let scratch = Scratch::new("replay-static-pods")?;
    scratch.write("pod.yaml", std::fs::read(manifest)?)?;
    let directory = ManifestDirectory::new(scratch.directory());
    let scan = directory.with_node_name("node1.example").scan();
    ensure!(scan.n_files == 1, "{} files", scan.n_files);
    let mut text = String::new();
    for pod in scan.pods.values() {
        write_pod(&mut text, pod)?;
    }
    for (kind, findings) in [("fault", &scan.faults), ("warning", &scan.warnings)] {
        for finding in findings {
            write_finding(&mut text, kind, finding)?;
        }
    }
    ensure!(!text.is_empty(), "{} says nothing", manifest.display());
    Ok(text)
}

fn write_pod(text: &mut String, pod: &Pod) -> Result<()> {
    let qos = qos_class(pod);
    let facts = pod_facts(pod, qos, Compat::Ballast);
    writeln!(text, "pod {}", pod.full_name())?;
    writeln!(text, "uid {}", pod.uid)?;
    writeln!(text, "qos {qos}")?;
    let critical = match facts.is_critical {
        true => ", critical",
        false => "",
    };
    writeln!(text, "priority {}{critical}", facts.priority)?;
    Ok(())
}

/// A field a line: what is the same for many of them is told once.
fn write_finding(text: &mut String, kind: &str, finding: &ManifestFault) -> Result<()> {
    writeln!(text, "{kind}: {}", finding.message)?;
    for field in finding.field.iter().flat_map(|it| it.split(", ")) {
        writeln!(text, "  {field}")?;
    }
    Ok(())
}
