//! Which module of the agent may use which: the data flow of `agent/ARCHITECTURE.md` as a table.

use std::path::Path;

use super::Finding;
use super::source::{SourceFile, line_of};

struct Module {
    name: &'static str,
    may_use: Uses,
    /// Whether it must compute the same from the same arguments: then it has no input or output, no
    /// clock, no log and no async.
    is_pure: bool,
}

enum Uses {
    Only(&'static [&'static str]),
    Everything,
}

const MODULES: &[Module] = &[
    pure("units", &[]),
    pure("model", &["units"]),
    pure("config", &["units", "model"]),
    pure("decide", &["units", "model", "config"]),
    // What `ballast check` says about the facts that `sources` found.
    pure("check", &["units", "model", "config"]),
    effectful("sys", &["units"]),
    effectful("sources", &["units", "model", "sys"]),
    effectful("apply", &["units", "model", "sys"]),
    // Starts and watches containers: reads and writes are one matter there.
    effectful("runtime", &["units", "model", "sys"]),
    // A socket that clients find although its file was removed.
    effectful("listener", &["sys"]),
    // Which connection ends when a server has no place for another.
    effectful("places", &[]),
    // Messages and connections of gRPC APIs, whoever serves or calls them.
    effectful("grpc", &["listener", "places"]),
    // Answers plugins and calls them: one matter there too.
    effectful(
        "device_plugin",
        &["units", "model", "sys", "listener", "grpc"],
    ),
    // Asks the container runtime for names, and follows what it tells.
    effectful("cri", &["units", "model", "sys", "grpc"]),
    // Asks kubelet which CPUs it can give out.
    effectful("pod_resources", &["units", "model", "sys", "grpc"]),
    // Asks the API server for the pods of the node.
    effectful("api_server", &["units", "model", "sys"]),
    // Serves what it was told, on sockets and files.
    effectful(
        "observe",
        &["units", "model", "sys", "listener", "places", "grpc"],
    ),
    // Talks to a running agent, in the protocol of `observe`.
    effectful("cli", &["units", "model", "sys", "observe"]),
    Module {
        name: "run",
        may_use: Uses::Everything,
        is_pure: false,
    },
    Module {
        name: "main",
        may_use: Uses::Everything,
        is_pure: false,
    },
    Module {
        name: "lib",
        may_use: Uses::Everything,
        is_pure: false,
    },
];

const fn pure(name: &'static str, may_use: &'static [&'static str]) -> Module {
    Module {
        name,
        may_use: Uses::Only(may_use),
        is_pure: true,
    }
}

const fn effectful(name: &'static str, may_use: &'static [&'static str]) -> Module {
    Module {
        name,
        may_use: Uses::Only(may_use),
        is_pure: false,
    }
}

/// Paths that a pure module has no business with. What `.clippy.toml` bans is not repeated.
const IMPURE: &[&str] = &[
    "aya::",
    "ebpf_abi::",
    "hyper::",
    "nix::",
    "prometheus::",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::unix::net::",
    "std::process::",
    "std::sync::mpsc",
    "std::thread::",
    "tokio::",
    "tonic::",
    "tracing::",
];

/// A room within a module: what lies in it must not use some of the others. Paths are from the root of the crate.
struct Room {
    /// Beginnings of the paths of its files.
    of: &'static [&'static str],
    /// Files with such a beginning that are not of it.
    but: &'static [&'static str],
    must_not_use: &'static [&'static str],
    /// Within `must_not_use`.
    may_use: &'static [&'static str],
}

const ROOMS: &[Room] = &[
    // What the modes share knows none of them, but for who chooses one and who asks each of them.
    Room {
        of: &["agent/src/run/"],
        but: &[
            "agent/src/run/own",
            "agent/src/run/observe",
            "agent/src/run/check.rs",
            "agent/src/run/faults.rs",
        ],
        must_not_use: &["run::own", "run::observe"],
        may_use: &[],
    },
    // What looks on has no hands: of the writers it may use those of the state directory.
    Room {
        of: &["agent/src/run/observe"],
        but: &[],
        must_not_use: &[
            "run::own",
            "apply",
            "runtime",
            "device_plugin",
            "sources::wakers::Wakers",
        ],
        may_use: &["apply::checkpoint", "runtime::HostProcess"],
    },
    // The thread that decides who is evicted reads no directory of pods: a disk may not answer.
    Room {
        of: &["agent/src/run/own/pressure"],
        but: &["agent/src/run/own/pressure/disk"],
        must_not_use: &["runtime", "sources::disk_use", "sources::deleted_files"],
        may_use: &[],
    },
];

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let edges = files.iter().flat_map(check_file);
    edges.chain(files.iter().flat_map(check_rooms)).collect()
}

fn check_rooms(file: &SourceFile) -> Vec<Finding> {
    let begins = |with: &[&str]| {
        with.iter()
            .any(|it| file.path.to_string_lossy().starts_with(it))
    };
    let rooms = ROOMS.iter().filter(|it| begins(it.of) && !begins(it.but));
    let rooms: Vec<&Room> = rooms.collect();
    let mut findings = Vec::new();
    for (at, used) in paths(&file.code, &module_path(&file.path)) {
        for room in &rooms {
            let refused = room.must_not_use.iter().find(|it| is_below(&used, it));
            if let Some(path) = refused
                && !room.may_use.iter().any(|it| is_below(&used, it))
            {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: line_of(&file.code, at),
                    what: format!("this room must not use crate::{path}"),
                });
            }
        }
    }
    findings
}

/// Whether a path leads to `place` or into it.
fn is_below(path: &[&str], place: &str) -> bool {
    let mut names = path.iter();
    place.split("::").all(|it| names.next() == Some(&it))
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let module = module_path(&file.path);
    let Some(top) = module.first().copied() else {
        return Vec::new();
    };
    let finding = |offset, what| Finding {
        path: file.path.clone(),
        line: line_of(&file.code, offset),
        what,
    };
    let Some(row) = MODULES.iter().find(|it| it.name == top) else {
        return vec![finding(
            0,
            format!("module {top} is not in the table of {}", file!()),
        )];
    };
    let mut findings = Vec::new();
    if let Uses::Only(allowed) = row.may_use {
        for (offset, path) in paths(&file.code, &module) {
            let Some(&used) = path.first() else {
                continue;
            };
            let is_module = MODULES.iter().any(|it| it.name == used);
            if is_module && used != top && !allowed.contains(&used) {
                findings.push(finding(offset, format!("{top} must not use {used}")));
            }
        }
    }
    if row.is_pure {
        for path in IMPURE {
            for offset in words(&file.code, path) {
                let what = format!(
                    "{top} is pure and must not use {}",
                    path.trim_end_matches(':')
                );
                findings.push(finding(offset, what));
            }
        }
    }
    findings
}

/// The modules that lead to that of a file of the agent, the top one first. Empty: of another file.
fn module_path(path: &Path) -> Vec<&str> {
    let Ok(inside) = path.strip_prefix("agent/src") else {
        return Vec::new();
    };
    let names = inside.iter().filter_map(|it| Path::new(it).file_stem());
    names.filter_map(|it| it.to_str()).collect()
}

/// Each path that begins with `crate` or `super` in the code of a module, from the root of the crate, with its
/// offset; of a group in braces, that of each member.
fn paths<'a>(code: &'a str, module: &[&'a str]) -> Vec<(usize, Vec<&'a str>)> {
    const SUPER: &str = "super::";
    let mut found = Vec::new();
    for at in words(code, "crate::") {
        expand(code, at + "crate::".len(), &[], &mut found);
    }
    for at in words(code, SUPER) {
        let rest = &code[at..];
        let names = rest.trim_start_matches(SUPER);
        let n_up = (rest.len() - names.len()) / SUPER.len();
        // A module within the file may have one more.
        let above = &module[..module.len().saturating_sub(n_up)];
        expand(code, code.len() - names.len(), above, &mut found);
    }
    found
}

/// What stands at `at` behind `above`.
fn expand<'a>(code: &'a str, at: usize, above: &[&'a str], found: &mut Vec<(usize, Vec<&'a str>)>) {
    if code[at..].starts_with('{') {
        for member in members(code, at + 1) {
            expand(code, member, above, found);
        }
        return;
    }
    let Some(name) = identifier(code, at) else {
        // All that is there.
        found.push((at, above.to_vec()));
        return;
    };
    let mut path = above.to_vec();
    if name != "self" {
        path.push(name);
    }
    let end = at + name.len();
    match code[end..].strip_prefix("::") {
        Some(_) => expand(code, end + "::".len(), &path, found),
        None => found.push((at, path)),
    }
}

/// Where the members of a group in braces begin.
fn members(code: &str, start: usize) -> Vec<usize> {
    let (mut depth, mut begins, mut found) = (0, true, Vec::new());
    for (offset, it) in code[start..].char_indices() {
        match it {
            '}' if depth == 0 => break,
            ',' if depth == 0 => begins = true,
            it if it.is_whitespace() => {}
            it => {
                if std::mem::take(&mut begins) {
                    found.push(start + offset);
                }
                depth += i32::from(it == '{') - i32::from(it == '}');
            }
        }
    }
    found
}

/// Offsets of `word` where it does not continue another word or path.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(|at| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|it| it.is_alphanumeric() || it == '_' || it == ':')
    })
}

fn identifier(code: &str, at: usize) -> Option<&str> {
    let rest = &code[at..];
    let length = rest
        .find(|it: char| !it.is_alphanumeric() && it != '_')
        .unwrap_or(rest.len());
    (length > 0).then_some(&rest[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected: &[&str]) {
        let file = SourceFile::new(path.into(), text.to_owned());
        let found: Vec<_> = check_file(&file).iter().map(ToString::to_string).collect();
        let expected: Vec<_> = expected.iter().map(|it| format!("{path}:{it}")).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn an_edge_that_is_not_in_the_table_is_found() {
        let path = "agent/src/decide/qos.rs";
        check_text(path, "use crate::model::Pod;", &[]);
        check_text(path, "\nuse crate::sys;", &["2: decide must not use sys"]);
        check_text(
            path,
            "use crate::{\n  model::{Pod, apply},\n  sources::probe,\n};",
            &["3: decide must not use sources"],
        );
        check_text(
            path,
            "fn f(x: crate::apply::Plan)",
            &["1: decide must not use apply"],
        );
        check_text(
            path,
            "use super::super::run::Loop;",
            &["1: decide must not use run"],
        );
        check_text(path, "// crate::sys\n\"crate::sys\"", &[]);
        check_text("agent/src/run.rs", "use crate::sys;", &[]);
        check_text("tests/src/lib.rs", "use crate::sys;", &[]);
    }

    #[test]
    fn a_pure_module_has_no_effects() {
        let path = "agent/src/model.rs";
        check_text(
            path,
            "use tokio::sync::watch;",
            &["1: model is pure and must not use tokio"],
        );
        check_text(path, "use crate::model::tokio::X;", &[]);
        check_text("agent/src/observe.rs", "use tokio::sync::watch;", &[]);
    }

    #[test]
    fn a_room_does_not_use_what_is_anothers() {
        let found = |path: &str, text: &str| {
            let file = SourceFile::new(path.into(), text.to_owned());
            check_rooms(&file).len()
        };
        let own = "use crate::run::own::hands::Hands;";
        assert_eq!(found("agent/src/run/observe/tree.rs", own), 1);
        assert_eq!(found("agent/src/run/kernel.rs", own), 1);
        assert_eq!(found("agent/src/run/own/pass.rs", own), 0);
        assert_eq!(found("agent/src/run.rs", own), 0);
        let logs = "use crate::runtime::logs::prune;";
        assert_eq!(found("agent/src/run/own/pressure/act.rs", logs), 1);
        let of_disk = "agent/src/run/own/pressure/disk/old_logs.rs";
        assert_eq!(found(of_disk, logs), 0);
        let writer = "use crate::apply::cgroupfs::CgroupWriter;";
        assert_eq!(found("agent/src/run/observe.rs", writer), 1);
        assert_eq!(
            found("agent/src/run/observe.rs", "use crate::apply::checkpoint;"),
            0
        );
        assert_eq!(found("agent/src/run/kernel.rs", "super::ownership"), 0);
        let grouped =
            "use crate::{\n  apply::{checkpoint, cgroupfs::CgroupWriter},\n  run::{own, node},\n};";
        assert_eq!(found("agent/src/run/observe/tree.rs", grouped), 2);
        let above = "use super::super::{node, own::hands::Hands};";
        assert_eq!(found("agent/src/run/observe/tree.rs", above), 1);
        assert_eq!(
            found("agent/src/run/observe/tree.rs", "use crate::apply;"),
            1
        );
        assert_eq!(
            found("agent/src/run/observe/tree.rs", "use crate::apply::*;"),
            1
        );
    }

    #[test]
    fn a_module_has_a_row() {
        let what = format!("1: module policy is not in the table of {}", file!());
        check_text("agent/src/policy.rs", "", &[&what]);
    }
}
