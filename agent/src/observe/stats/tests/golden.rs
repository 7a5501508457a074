//! The pages of a small node, byte for byte. `BALLAST_UPDATE_GOLDEN=1 cargo test -p ballast golden`
//! writes the files anew.

#![expect(
    clippy::disallowed_methods,
    reason = "golden files are written by the test on demand"
)]

use super::*;

#[track_caller]
fn check(file: &str, golden: &str, found: &str) {
    if std::env::var_os("BALLAST_UPDATE_GOLDEN").is_some() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/observe/stats/tests/");
        return std::fs::write(format!("{directory}{file}"), found).unwrap();
    }
    let differing = golden
        .lines()
        .zip(found.lines())
        .find(|(golden, found)| golden != found);
    assert_eq!(differing, None, "golden and found line of {file}");
    assert_eq!(golden.len(), found.len(), "{file}");
}

#[test]
fn the_cadvisor_page_of_a_small_node() {
    let page = cadvisor_text(&node(1, 1));
    check("cadvisor.prom", include_str!("cadvisor.prom"), &page);
}

#[test]
fn the_resource_page_of_a_small_node() {
    let mut page = String::new();
    resource(&node(1, 1), Options::default(), &mut page);
    check("resource.prom", include_str!("resource.prom"), &page);
}

#[test]
fn the_summary_of_a_small_node() {
    let mut before = node(1, 1);
    before.node.cgroup.at -= std::time::Duration::from_secs(10);
    before.node.cgroup.cpu.usage_ns = Some(0);
    let document = summary(Some(&before), &node(1, 1), false);
    let mut text = serde_json::to_string_pretty(&document).unwrap();
    text.push('\n');
    check("summary.json", include_str!("summary.json"), &text);
}
