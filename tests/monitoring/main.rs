//! The monitoring lane: rules, alerts and the agent's metrics in a Prometheus and an Alertmanager of
//! their own. Every function always compiles; with the feature `monitoring` it is a test:
//! `cargo xtask test rules live`, which also gets the programs.
#![cfg_attr(
    not(feature = "monitoring"),
    expect(dead_code, reason = "tests only with the feature")
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lane reads what is shipped, beside the code under test"
)]

mod cases;
mod findings;
mod inhibition;
mod pages;
mod panels;
mod rules;
mod scrape;
mod story;

mod drop_in;
mod live;
mod scene;

use anyhow::Result;
use ballast_tests::prometheus::{self, Alertmanager, Prometheus};
use ballast_tests::scratch::Scratch;

#[cfg_attr(feature = "monitoring", test)]
fn this_machine_can_run_the_lane() -> Result<()> {
    for tool in ["promtool", "amtool"] {
        prometheus::run(prometheus::program(tool).arg("--version"))?;
    }
    let config = "global: {scrape_interval: 1s}\n";
    let server = Prometheus::start(Scratch::new("prometheus")?, config, &[])?;
    let answer = server.query("vector(2) * 3", Some(1e9))?;
    assert_eq!(answer.len(), 1, "{answer:?}");
    assert_eq!(answer[0].points, [(1e9, 6.0)]);
    let config = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n";
    let server = Alertmanager::start(Scratch::new("alertmanager")?, config)?;
    assert!(server.alerts()?.is_empty());
    Ok(())
}
