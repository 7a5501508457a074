//! What the readers make of whole nodes: each `tests/data/node/NAME.tree` to `NAME.json`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ballast::check::report;
use ballast::config::Config;
use ballast::sources::{probe, procfs, psi, sysfs};
use ballast::units::Bytes;
use ballast_tests::fake_node::FakeNode;
use serde_json::json;

use super::{check_each, check_golden, data, files};

const CONFIG: &str = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";

#[test]
fn captured_nodes_give_the_golden_facts() -> Result<()> {
    check_each(&files("node", "tree")?, check)
}

/// The readers take what they can get, whatever a file says or if it is there at all.
#[test]
fn missing_and_hostile_files_are_borne() -> Result<()> {
    let tree = std::fs::read_to_string(data("node/v2-2s-2n-4c-8t.tree"))?;
    let files: Vec<&str> = tree
        .lines()
        .filter(|it| it.starts_with('/') && !it.ends_with('/') && !it.contains(" -> "))
        .collect();
    ensure!(files.len() > 50, "only {} files", files.len());
    let node = FakeNode::from_tree(&tree)?;
    for file in &files {
        let path = node.root().path(file);
        let text = std::fs::read(&path)?;
        node.remove(file)?;
        read_all(&node).with_context(|| format!("without {file}"))?;
        for hostile in [
            "",
            "\n",
            "-1\n",
            "18446744073709551616\n",
            "0-4294967295\n",
            "\u{fffd}\u{0} - - : , = \n",
        ] {
            node.file(file, hostile)?;
            read_all(&node).with_context(|| format!("{file} says {hostile:?}"))?;
        }
        // Bytes that are no text.
        std::fs::write(&path, [0xFF, 0xFE, b'\n', 0x80])?;
        read_all(&node).with_context(|| format!("{file} is no text"))?;
        std::fs::write(&path, text)?;
    }
    Ok(())
}

/// Reads everything; an error is fine where the reader says so, a panic nowhere. The sheet and,
/// while some CPU is online, the shape are always had.
fn read_all(node: &FakeNode) -> Result<()> {
    let root = node.root();
    let sheet = probe::facts(&root, Path::new("/run/ballast/ballast.sock"));
    let config = Config::from_yaml(CONFIG, None, &[])?.config;
    ensure!(!report(&sheet, &config, &[]).items.is_empty());
    let _ = procfs::capacity(&root, 1, Path::new("/"));
    let _ = procfs::identity(&root);
    let _ = procfs::running_tasks(&root);
    let _ = psi::node_stalls(&root);
    let topology = sysfs::topology(&root).context("topology")?;
    for cpu in topology.cpus.values() {
        ensure!(topology.numa_nodes.contains_key(&cpu.numa_node));
        ensure!(topology.llcs.contains_key(&cpu.llc));
    }
    Ok(())
}

fn check(tree: &Path) -> Result<()> {
    let text = std::fs::read_to_string(tree)?;
    let found = facts(&text).with_context(|| format!("replay {}", tree.display()))?;
    check_golden(&tree.with_extension("json"), &found)
}

fn facts(tree: &str) -> Result<String> {
    let node = FakeNode::from_tree(tree)?;
    let root = node.root();
    let config = Config::from_yaml(CONFIG, None, &[])?.config;
    let topology = sysfs::topology(&root)?;
    let n_cpus = u32::try_from(topology.cpus.len())?;
    let mut capacity = procfs::capacity(&root, n_cpus, &config.state_directory)?;
    let mut identity = procfs::identity(&root)?;
    // These two are of the machine that runs the test.
    capacity.ephemeral_storage = None;
    identity.page_size = Bytes(4096);
    let facts = probe::facts(&root, &config.socket);
    let verdict = |mode: &str| -> Result<Vec<String>> {
        let text = CONFIG.replace("mode: own", mode);
        let config = Config::from_yaml(&text, None, &[])?.config;
        let report = report(&facts, &config, &[]).to_string();
        Ok(report.lines().map(str::to_owned).collect())
    };
    let found = json!({
        "shape": topology.shape(),
        "identity": identity,
        "capacity": capacity,
        "topology": topology,
        "stalls": psi::node_stalls(&root)?,
        "facts": facts,
        "checkOwn": verdict("mode: own")?,
        "checkObserve": verdict("mode: observe")?,
    });
    Ok(serde_json::to_string_pretty(&found)? + "\n")
}
