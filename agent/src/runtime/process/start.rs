//! One start, from the specification to the running program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use super::command::Command;
use super::exits::Exits;
use super::records::Records;
use super::search::Searches;
use super::state::Watched;
use crate::model::event::ExitStatus;
use crate::runtime::{
    ContainerCgroup, ContainerId, ContainerRecord, ContainerSpec, HostProcess, JoinedCgroup, RunAs,
    StartError, StartWarning,
};
use crate::sys::launch::{Child, Identity, Launch, Limits, Progress, is_readable_within, launch};
use crate::sys::syscall::{Reap, Step, pidfd_send_signal, wait_child};
use crate::sys::{Dir, Root, append, clock, steady};

/// Joining waits for RCU, some 15 ms for a first hierarchy and little for the others; a node at its
/// limits may take far longer. What takes this long never ends, and keeps other starts waiting.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// A child that has closed its pipe, or was killed, is at its very end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors that a start leaves: of a record of a kill, of connections, of the files of a pass.
const LEFT_DESCRIPTORS: u64 = 96;

/// What every start uses.
pub(super) struct Starter<'a> {
    pub(super) records: &'a Records,
    pub(super) exits: &'a Exits,
    pub(super) searches: &'a Searches,
    pub(super) boot_id: &'a str,
    pub(super) limits: Limits,
}

/// A program that runs and whose end nobody waits for yet.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) record: ContainerRecord,
    pub(super) pidfd: OwnedFd,
    pub(super) warnings: Vec<StartWarning>,
}

impl Starter<'_> {
    pub(super) fn start(&self, spec: &ContainerSpec) -> Result<Started, StartError> {
        let command = Command::resolve(spec, self.searches)?;
        let cgroups = open_cgroups(&spec.cgroup)?;
        let mut warnings = Vec::new();
        let child = self.clone_child(spec, &command, &cgroups, &mut warnings)?;
        match self.bring_up(spec, &command, &cgroups, &child, &mut warnings) {
            Ok(record) => Ok(Started {
                record,
                pidfd: child.into_pidfd(),
                warnings,
            }),
            Err(error) => {
                // Its gate closes with this, and it ends unless it is stuck or past the gate.
                let pidfd = child.into_pidfd();
                let _ = pidfd_send_signal(pidfd.as_fd(), 9);
                self.exits.discard(Watched {
                    pidfd,
                    record: None,
                });
                Err(error)
            }
        }
    }

    /// A child in its cgroups, or about to join them.
    fn clone_child(
        &self,
        spec: &ContainerSpec,
        command: &Command,
        cgroups: &[Dir],
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Child, StartError> {
        let unified = match (&spec.cgroup, cgroups) {
            (ContainerCgroup::Unified(_), [dir]) => Some(dir.as_fd()),
            _ => None,
        };
        leave_descriptors()?;
        let stdin = append::open_null().map_err(StartError::Stdin)?;
        let mut plan = Launch {
            program: command.program_c.clone(),
            argv: command.argv.clone(),
            envp: command.envp.clone(),
            working_dir: command.working_dir.clone(),
            stdin,
            output: open_log(&spec.log_path, spec.run_as.as_ref())?,
            join: Vec::new(),
            limits: self.limits,
            rename: self
                .records
                .mark_run(&spec.id)
                .map_err(StartError::Record)?,
            identity: spec.run_as.as_ref().map(|it| Identity {
                uid: it.uid,
                gid: it.gid,
                groups: it.groups.clone(),
            }),
        };
        if let Some(dir) = unified {
            match launch(&plan, Some(dir)) {
                // A kernel, or a filter in front of it, that does not know the flag. Whatever else
                // stops the clone would stop the joining too, or is a limit of the cgroup that
                // joining would get round.
                Err(source)
                    if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) =>
                {
                    warnings.push(StartWarning::JoinedAfterClone { source });
                }
                other => return other.map_err(StartError::Clone),
            }
        }
        plan.join = open_procs(cgroups)?;
        launch(&plan, None).map_err(StartError::Clone)
    }

    /// From the clone to the running program.
    fn bring_up(
        &self,
        spec: &ContainerSpec,
        command: &Command,
        cgroups: &[Dir],
        child: &Child,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<ContainerRecord, StartError> {
        let record = ContainerRecord {
            id: spec.id.clone(),
            owner: spec.owner.clone(),
            spec_hash: spec.spec_hash.clone(),
            pod_requests: spec.pod_requests.clone(),
            log_path: spec.log_path.clone(),
            oom_score_adj: spec.oom_score_adj,
            cgroups: cgroups.iter().map(JoinedCgroup::of).collect(),
            boot_id: self.boot_id.to_owned(),
            process: HostProcess::find(child.pid).map_err(StartError::Inspect)?,
            started_at: clock::boottime(),
            end: None,
        };
        // While the child joins its cgroups: the disk and RCU take their time together.
        self.records
            .write_starting(&record)
            .map_err(StartError::Record)
            .and_then(|()| let_go(spec, command, cgroups, child, warnings))
            .and_then(|pipe| self.has_begun(&spec.id, child, pipe))
            .inspect_err(|_| {
                if let Err(error) = self.records.remove(&spec.id) {
                    let container = &spec.id;
                    tracing::warn!(%container, %error, "the record of a failed start is left");
                }
            })?;
        Ok(record)
    }

    /// Whether the child has a program. Its pipe closes with the exec and with its end, and others that are cloned
    /// meanwhile may hold it open: only one that made its last step has had a program, whose end is told as any other.
    pub(super) fn has_begun(
        &self,
        id: &ContainerId,
        child: &Child,
        pipe: Pipe,
    ) -> Result<(), StartError> {
        if pipe == Pipe::Silent && !self.records.has_run(id) {
            // It takes no step any more.
            let pidfd = child.pidfd.as_fd();
            let _ = pidfd_send_signal(pidfd, 9);
            let _ = is_readable_within(pidfd, END_TIMEOUT);
        }
        if self.records.has_run(id) {
            return Ok(());
        }
        Err(match pipe {
            Pipe::Closed => died(child),
            Pipe::Silent => stuck(),
        })
    }
}

/// What became of the child's pipe behind the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipe {
    Closed,
    /// Nothing came in time.
    Silent,
}

fn stuck() -> StartError {
    StartError::Stuck {
        seconds: READY_TIMEOUT.as_secs(),
    }
}

/// Waits for the child at its gate, looks at it, and opens the gate.
fn let_go(
    spec: &ContainerSpec,
    command: &Command,
    cgroups: &[Dir],
    child: &Child,
    warnings: &mut Vec<StartWarning>,
) -> Result<Pipe, StartError> {
    let failed = |step, index, source| failed(spec, command, cgroups, step, index, source);
    match told(child)? {
        Progress::Ready => {}
        Progress::Closed => return Err(died(child)),
        Progress::Silent => return Err(stuck()),
        Progress::Failed {
            step,
            index,
            source,
        } => return Err(failed(step, index, source)),
    }
    check_membership(cgroups, child.pid)?;
    warnings.extend(set_oom_score_adj(child.pid, spec.oom_score_adj));
    // An error means that nobody is behind the gate.
    child.open_gate().map_err(|_gone| died(child))?;
    match told(child)? {
        Progress::Closed | Progress::Ready => Ok(Pipe::Closed),
        Progress::Silent => Ok(Pipe::Silent),
        Progress::Failed {
            step,
            index,
            source,
        } => Err(failed(step, index, source)),
    }
}

fn told(child: &Child) -> Result<Progress, StartError> {
    child.progress(READY_TIMEOUT).map_err(StartError::Listen)
}

/// The error for a child that has closed its pipes.
fn died(child: &Child) -> StartError {
    let pidfd = child.pidfd.as_fd();
    let exit = match is_readable_within(pidfd, END_TIMEOUT) {
        Ok(true) => wait_child(pidfd, Reap::Later).ok().flatten(),
        Ok(false) | Err(_) => None,
    };
    StartError::Died {
        exit: exit.map(ExitStatus::from),
    }
}

fn failed(
    spec: &ContainerSpec,
    command: &Command,
    cgroups: &[Dir],
    step: Step,
    index: usize,
    source: io::Error,
) -> StartError {
    match (step, &spec.run_as) {
        (Step::JoinCgroup, _) => StartError::Join {
            path: cgroups
                .get(index)
                .map_or_else(PathBuf::new, |dir| dir.path().into()),
            source,
        },
        (Step::WorkingDir, _) => StartError::WorkingDir {
            path: spec.working_dir.clone(),
            source,
        },
        (Step::SetGroups | Step::SetGid | Step::SetUid, Some(run_as)) => StartError::RunAs {
            uid: run_as.uid,
            gid: run_as.gid,
            call: step.call(),
            source,
        },
        (Step::Exec, _) => StartError::Exec {
            program: command.program.clone(),
            source,
        },
        _ => StartError::Setup {
            call: step.call(),
            source,
        },
    }
}

fn leave_descriptors() -> Result<(), StartError> {
    let limit = steady::max_open_files().map_err(StartError::Listen)?;
    let n_open = steady::open_files().map_err(StartError::Listen)?;
    match n_open.saturating_add(LEFT_DESCRIPTORS) < limit {
        true => Ok(()),
        false => Err(StartError::Descriptors { limit }),
    }
}

fn open_cgroups(cgroup: &ContainerCgroup) -> Result<Vec<Dir>, StartError> {
    let paths = match cgroup {
        ContainerCgroup::Unified(path) => std::slice::from_ref(path),
        ContainerCgroup::Split(paths) => paths,
    };
    paths
        .iter()
        .map(|path| Dir::open(path).map_err(StartError::Cgroup))
        .collect()
}

fn open_procs(cgroups: &[Dir]) -> Result<Vec<OwnedFd>, StartError> {
    let open = |dir: &Dir| {
        dir.open_file_for_write("cgroup.procs")
            .map(OwnedFd::from)
            .map_err(StartError::Cgroup)
    };
    cgroups.iter().map(open).collect()
}

/// Looks into the very directories that were opened, so that the answer holds for them and not for
/// others of the same name.
fn check_membership(cgroups: &[Dir], pid: u32) -> Result<(), StartError> {
    let pid = pid.to_string();
    for dir in cgroups {
        let procs = dir.read_text("cgroup.procs").map_err(StartError::Inspect)?;
        if !procs.lines().any(|line| line == pid) {
            return Err(StartError::NotMember {
                path: dir.path().into(),
            });
        }
    }
    Ok(())
}

fn open_log(path: &Path, run_as: Option<&RunAs>) -> Result<OwnedFd, StartError> {
    let make_dirs = match path.parent() {
        Some(dir) => Root::host().create_dir_of_root(dir),
        None => Ok(()),
    };
    make_dirs
        .and_then(|()| match run_as {
            Some(run_as) => append::open_for(path, run_as.gid),
            None => append::open(path),
        })
        .map_err(StartError::Log)
}

fn set_oom_score_adj(pid: u32, wanted: i16) -> Option<StartWarning> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let host = Root::host();
    let source = host
        .write_existing(&path, wanted.to_string().as_bytes())
        .err()?;
    let actual = host.read_text(&path).ok();
    Some(StartWarning::OomScoreAdj {
        wanted,
        actual: actual.and_then(|text| text.trim().parse().ok()),
        source,
    })
}
