//! Beside a real kubelet: the API server is away for longer than the agent's token lives, while a container is killed
//! again and again. The agent must count each kill, tell each in Events once, and change no cgroup.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup::kernel_kills;
use ballast_tests::cgroup_writes::Watch;
use ballast_tests::cluster::{ApiWay, Namespace, new_agent};
use ballast_tests::scrape;
use ballast_tests::wait::{until, until_within};

use super::say;
use super::table::{Row, Table, Verdict, show};

/// Less than ten minutes is refused.
const TOKEN_LIVES: &str = "10m";
const AWAY: Duration = Duration::from_mins(11);
/// The agent tries again after half a minute, at most, and reads the file of a token about once a minute.
const FOUND: Duration = Duration::from_mins(5);

const NAMESPACE: &str = "outage";
/// A child is killed every half minute.
const SCRIPT: &str = "while true; do sleep 30; tail /dev/zero; done";

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let watch = Watch::new()?;
    let namespace = Namespace::new(NAMESPACE)?;
    let account = Account::new(&namespace)?;
    let mut agent = new_agent("bench-outage")?;
    let token = agent.dir.join("token");
    fs::write(&token, account.token()?)?;
    let way = ApiWay::new("bench-outage")?;
    way.take_token_from(&token)?;
    way.lead(&mut agent);
    agent.start()?;
    wait_followed(&agent)?;
    let pid = agent.pid().context("it runs")?;
    namespace.run("grower", SCRIPT, "32Mi")?;
    let mut seen = Seen {
        watch,
        pid,
        by_agent: 0,
        by_others: 0,
    };
    until_within(FOUND, "its first kill is told", || {
        ensure!(told(&namespace)? > 0, "{}", agent.log_tail());
        Ok(())
    })?;
    let (before, counted_before) = (kernel_kills()?, counted(&agent)?);
    let told_before = told(&namespace)?;

    say(&format!("outage: nobody answers for {}", show(AWAY)));
    way.cut();
    let began = Instant::now();
    let missed = until("it is missed", || fault(&agent)?.context("no fault"))?;
    say(&format!("outage: status says: {missed}"));
    while began.elapsed() < AWAY {
        thread::sleep(Duration::from_secs(1));
        seen.look()?;
    }
    // The last kill may not be counted yet.
    let both = || -> Result<(u64, f64)> {
        Ok((kernel_kills()? - before, counted(&agent)? - counted_before))
    };
    let counted_all = until("all kills are counted", || {
        let (kills, named) = both()?;
        ensure!(named == kills as f64, "{named} of {kills}");
        Ok((kills, named))
    });
    let (kills, named) = match counted_all {
        Ok(found) => found,
        // The table shows the difference.
        Err(_) => both()?,
    };
    way.mend();
    let refused = until_within(FOUND, "the token is refused", || {
        let fault = fault(&agent)?.context("no fault")?;
        ensure!(fault.contains("Unauthorized"), "{fault}");
        Ok(fault)
    })?;
    say(&format!("outage: then it says: {refused}"));
    ensure!(told(&namespace)? == told_before, "who is refused has told");
    fs::write(&token, account.token()?)?;
    let renewed = Instant::now();
    wait_followed(&agent)?;
    let followed = renewed.elapsed();
    let all = until_within(FOUND, "all kills are told", || {
        let (told, kills) = (told(&namespace)?, kernel_kills()? - before);
        ensure!(told - told_before >= kills, "{told} of {kills}");
        Ok(renewed.elapsed())
    })?;
    namespace.kubectl(&["delete", "pod", "grower"], None)?;
    until_within(FOUND, "the last kills are told", || {
        let (told, kills) = (told(&namespace)?, kernel_kills()? - before);
        ensure!(told - told_before >= kills, "{told} of {kills}");
        Ok(())
    })?;
    // None is told twice.
    thread::sleep(Duration::from_secs(10));
    seen.look()?;
    let (told_now, kills_now) = (told(&namespace)? - told_before, kernel_kills()? - before);
    let count =
        |figure: &str, n: u64, is_right: bool| Row::value(figure, 1, n, "", Verdict::of(is_right));
    table.extend([
        count("kills while the API server was away", kills, kills > 10),
        Row::fact("of them counted with their names", named, kills as f64),
        count("kills by now", kills_now, kills_now >= kills),
        Row::fact("of them told in Events", told_now, kills_now),
        Row::value(
            "from a new token to a watch",
            1,
            show(followed),
            "",
            Verdict::NoBudget,
        ),
        Row::value("to all Events", 1, show(all), "", Verdict::NoBudget),
        Row::fact("changes of cgroups by the agent", seen.by_agent, 0),
        count("by others", seen.by_others, seen.by_others > 0),
    ]);
    agent.stop()
}

/// Who has changed something below the mounts of the cgroups.
struct Seen {
    watch: Watch,
    pid: u32,
    by_agent: u64,
    by_others: u64,
}

impl Seen {
    fn look(&mut self) -> Result<()> {
        for writer in self.watch.writers()? {
            match writer == self.pid {
                true => self.by_agent += 1,
                false => self.by_others += 1,
            }
        }
        Ok(())
    }
}

/// Why the API server does not tell; `None`: it does.
fn fault(agent: &Agent) -> Result<Option<String>> {
    Ok(agent.status()?.node.api_server.and_then(|it| it.fault))
}

fn wait_followed(agent: &Agent) -> Result<()> {
    until_within(FOUND, "pods are followed", || {
        let api_server = agent.status()?.node.api_server;
        let is_followed = api_server.as_ref().is_some_and(|it| it.is_followed());
        ensure!(is_followed, "{api_server:?}");
        Ok(())
    })
}

/// Kills of the pod, by the agent's metrics.
fn counted(agent: &Agent) -> Result<f64> {
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let labels = [
        ("namespace", NAMESPACE),
        ("pod", "grower"),
        ("container", "main"),
    ];
    Ok(page.sum("ballast_oom_kills_total", &labels))
}

/// Kills of the pod, by its Events.
fn told(namespace: &Namespace) -> Result<u64> {
    let events = namespace.list("events")?;
    let of_kills = events.iter().filter(|it| it["reason"] == "OomKilledChild");
    let counts = of_kills.map(|it| it["count"].as_u64().unwrap_or(1));
    Ok(counts.sum())
}

/// A service account with the agent's rights, whose tokens run out.
struct Account<'a>(&'a Namespace);

impl<'a> Account<'a> {
    const BINDING: &'static str = "ballast-bench-outage";

    fn new(namespace: &'a Namespace) -> Result<Self> {
        let account = Self(namespace);
        account.delete();
        namespace.kubectl(&["create", "serviceaccount", "agent"], None)?;
        let to = format!("--serviceaccount={NAMESPACE}:agent");
        let role = "--clusterrole=ballast-observe";
        namespace.kubectl(
            &["create", "clusterrolebinding", Self::BINDING, role, &to],
            None,
        )?;
        Ok(account)
    }

    fn token(&self) -> Result<String> {
        let lives = format!("--duration={TOKEN_LIVES}");
        self.0.kubectl(&["create", "token", "agent", &lives], None)
    }

    fn delete(&self) {
        let binding = [
            "delete",
            "clusterrolebinding",
            Self::BINDING,
            "--ignore-not-found",
        ];
        if let Err(error) = self.0.kubectl(&binding, None) {
            eprintln!("remove {}: {error:#}", Self::BINDING);
        }
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        self.delete();
    }
}
