//! The programs of the lanes: the agent, its helpers and the test programs, all of one cargo call with
//! one profile, one set of flags and one set of features, so that a dependency is built once whatever
//! lanes run. Linked statically, so that the same programs run in a virtual machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::progress;
use crate::workspace;

/// The cargo profile of the lanes: see `Cargo.toml`.
const PROFILE: &str = "lane";

/// Features that turn functions of the test package into tests.
const FEATURES: &str = "ballast-tests/privileged,ballast-tests/monitoring";

/// The programs that the host tests start, by the names of their targets.
pub(crate) const AGENT: &str = "ballast";
pub(crate) const HOG: &str = "hog";
const PLUGIN: &str = "example_device_plugin";

/// What to build. Everything that is wanted is built by one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The tests beside the code of every package.
    pub(crate) unit: bool,
    /// Names of test targets.
    pub(crate) targets: Vec<&'static str>,
    /// Names of programs.
    pub(crate) bins: Vec<&'static str>,
}

impl Wanted {
    pub(crate) fn bin(name: &'static str) -> Self {
        Self {
            bins: vec![name],
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.unit |= other.unit;
        for (all, more) in [
            (&mut self.targets, other.targets),
            (&mut self.bins, other.bins),
        ] {
            for name in more {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
    }

    /// The arguments of cargo that choose targets.
    fn selection(&self) -> Vec<&'static str> {
        if self.unit && !self.bins.is_empty() {
            // Cargo cannot be asked for programs and for tests beside the code by name in one call.
            return vec!["build", "--bins", "--tests"];
        }
        let mut arguments = match self.unit {
            true => vec!["test", "--no-run", "--lib", "--bins"],
            false => vec!["build"],
        };
        arguments.extend(self.bins.iter().flat_map(|it| ["--bin", it]));
        arguments.extend(self.targets.iter().flat_map(|it| ["--test", it]));
        arguments
    }
}

/// Programs that were built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Programs(Vec<Artifact>);

/// A program as cargo reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) name: String,
    kind: String,
    /// Built with the test harness.
    is_test: bool,
    /// The directory of its package, which cargo starts tests in.
    pub(crate) package: PathBuf,
    pub(crate) path: PathBuf,
}

/// What starts the host tests, here or in a guest.
#[derive(Clone, Debug)]
pub(crate) struct HostPrograms {
    pub(crate) tests: PathBuf,
    pub(crate) agent: PathBuf,
    pub(crate) hog: PathBuf,
    pub(crate) plugin: PathBuf,
}

impl HostPrograms {
    /// What has to be built for them.
    pub(crate) fn wanted() -> Wanted {
        Wanted {
            targets: vec!["host"],
            bins: vec![AGENT, HOG, PLUGIN],
            ..Wanted::default()
        }
    }
}

impl Programs {
    pub(crate) fn host(&self) -> Result<HostPrograms> {
        Ok(HostPrograms {
            tests: self.target("host")?.path.clone(),
            agent: self.bin(AGENT)?,
            hog: self.bin(HOG)?,
            plugin: self.bin(PLUGIN)?,
        })
    }

    /// The tests beside the code.
    pub(crate) fn unit(&self) -> Vec<&Artifact> {
        let artifacts = self.0.iter();
        artifacts
            .filter(|it| it.is_test && it.kind != "test")
            .collect()
    }

    /// The program of a test target.
    pub(crate) fn target(&self, name: &str) -> Result<&Artifact> {
        let mut artifacts = self.0.iter();
        artifacts
            .find(|it| it.kind == "test" && it.name == name)
            .with_context(|| format!("cargo named no test program `{name}`"))
    }

    pub(crate) fn bin(&self, name: &str) -> Result<PathBuf> {
        let mut artifacts = self.0.iter();
        artifacts
            .find(|it| it.kind == "bin" && !it.is_test && it.name == name)
            .map(|it| it.path.clone())
            .with_context(|| format!("cargo named no program `{name}`"))
    }
}

/// Builds what is wanted.
pub(crate) fn build(wanted: &Wanted) -> Result<Programs> {
    let mut cargo = workspace::cargo();
    cargo.args(wanted.selection());
    flags(&mut cargo).args(["--message-format", "json-render-diagnostics"]);
    let messages = progress::capture("build the programs of the lanes", &mut cargo)?;
    Ok(parse(&messages))
}

/// What all calls of cargo for the lanes have in common.
pub(crate) fn flags(cargo: &mut std::process::Command) -> &mut std::process::Command {
    cargo
        .args(["--locked", "--workspace", "--profile", PROFILE])
        .args(["--features", FEATURES]);
    workspace::link_statically(cargo)
}

/// The programs that cargo's messages in JSON name.
pub(crate) fn parse(messages: &str) -> Programs {
    #[derive(Deserialize)]
    struct Message {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let artifact = |line: &str| {
        // Most messages are about other things.
        let message: Message = serde_json::from_str(line).ok()?;
        Some(Artifact {
            name: message.target.name,
            kind: message.target.kind.into_iter().next()?,
            is_test: message.profile.test,
            package: message
                .manifest_path
                .parent()
                .unwrap_or(Path::new("."))
                .to_owned(),
            path: message.executable?,
        })
    };
    Programs(messages.lines().filter_map(artifact).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_builds_what_all_lanes_want() {
        let unit = Wanted {
            unit: true,
            ..Wanted::default()
        };
        let replay = Wanted {
            targets: vec!["replay"],
            ..Wanted::default()
        };
        assert_eq!(replay.selection(), ["build", "--test", "replay"]);
        let mut all = replay;
        all.add(unit);
        assert_eq!(
            all.selection(),
            ["test", "--no-run", "--lib", "--bins", "--test", "replay"]
        );
        let host = HostPrograms::wanted();
        assert_eq!(
            host.selection().join(" "),
            "build --bin ballast --bin hog --bin example_device_plugin --test host"
        );
        all.add(host);
        assert_eq!(all.selection(), ["build", "--bins", "--tests"]);
    }

    #[test]
    fn programs_and_tests_of_one_name_are_kept_apart() {
        let line = |kind: &str, name: &str, test: bool, path: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/p/Cargo.toml\",\"target\":\
                 {{\"name\":\"{name}\",\"kind\":[\"{kind}\"]}},\"profile\":{{\"test\":{test}}},\
                 \"executable\":{path}}}\n"
            )
        };
        let messages = [
            line("lib", "ballast", false, "null"),
            line("lib", "ballast", true, "\"/t/lib\""),
            "not json\n".to_owned(),
            line("bin", "ballast", true, "\"/t/unit\""),
            line("bin", "ballast", false, "\"/t/agent\""),
            line("test", "host", true, "\"/t/host\""),
            "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
        ];
        let programs = parse(&messages.concat());
        let path = |it: &Artifact| it.path.display().to_string();
        assert_eq!(
            programs.bin(AGENT).expect("it is there"),
            Path::new("/t/agent")
        );
        assert_eq!(
            path(programs.target("host").expect("it is there")),
            "/t/host"
        );
        let unit: Vec<_> = programs.unit().into_iter().map(path).collect();
        assert_eq!(unit, ["/t/lib", "/t/unit"]);
        assert!(programs.bin(HOG).is_err() && programs.target("replay").is_err());
    }
}
