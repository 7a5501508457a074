//! The directories that a configuration names, looked at without making any.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::RunError;
use super::exclusive::STATE_LOCK;
use super::forensics::RECORDS;
use crate::config::Config;
use crate::model::kubelet_state::{DEVICE_PLUGINS, PLUGINS_REGISTRY, POD_RESOURCES_SOCKET};
use crate::sys::filesystem::{Filesystem, FilesystemKind};
use crate::sys::{FsError, Root};

/// No file is where a directory is to be, and what a start makes can be made: what it has below the state directory, as
/// far as that is not there, and its socket. What else is not there is made later, or done without. `more`: directories of
/// a mode, each with its field. `made`: directories that a start of the mode has below the state directory, beside what
/// each has.
pub(super) fn faults(
    root: &Root,
    config: &Config,
    more: &[(&'static str, &Path)],
    made: &[&str],
) -> Vec<RunError> {
    let all = [
        ("stateDirectory", config.state_directory.as_path()),
        ("bpf.pinDirectory", &config.bpf.pin_directory),
    ];
    let socket = config.socket.parent();
    let all = all.into_iter().chain(more.iter().copied());
    let all = all.chain(socket.map(|it| ("socket", it)));
    let fault = |(field, path): (&'static str, &Path)| match nearest(root, path) {
        Ok((there, _)) if root.is_dir(&there) => None,
        Ok((path, _)) => Some(RunError::Directory {
            field,
            source: None,
            path,
        }),
        Err(source) => Some(RunError::Directory {
            field,
            source: Some(source),
            path: path.to_owned(),
        }),
    };
    let mut faults: Vec<RunError> = all.filter_map(fault).collect();
    let below = [RECORDS].into_iter().chain(made.iter().copied());
    let below: Vec<PathBuf> = below.map(|it| config.state_directory.join(it)).collect();
    let state = ("stateDirectory", config.state_directory.as_path());
    let of_start = [Some(state), socket.map(|it| ("socket", it))];
    let of_state = || below.iter().map(|it| ("stateDirectory", it.as_path()));
    let of_start = of_start.into_iter().flatten().chain(of_state());
    faults.extend(links_to_nothing(root, of_start));
    let is_file = |it: &&PathBuf| root.exists(it) && !root.is_dir(it);
    let files = below.iter().filter(is_file).cloned();
    faults.extend(files.map(|path| RunError::Directory {
        field: "stateDirectory",
        source: None,
        path,
    }));
    let lock = config.state_directory.join(STATE_LOCK);
    let directories = of_state().chain(more.iter().copied());
    faults.extend(in_the_way(root, &config.socket, directories, &lock));
    let mut made = std::iter::once(&lock).chain(&below);
    let state = made.find_map(|it| above_missing(root, it));
    // Each start makes it anew.
    let socket = socket.and_then(|it| Some(nearest(root, it).ok()?.0));
    let closed = |(field, directory): (&'static str, Option<PathBuf>)| {
        let path = directory.filter(|it| root.is_dir(it))?;
        let why = why_closed(&root.filesystem(&path).ok()?)?;
        Some(RunError::Closed { field, path, why })
    };
    let directories = [("stateDirectory", state), ("socket", socket)];
    faults.extend(directories.into_iter().filter_map(closed));
    faults
}

/// The socket is to be where a start needs a directory or its lock. What is there already is told of the socket itself.
fn in_the_way<'a>(
    root: &Root,
    socket: &Path,
    mut directories: impl Iterator<Item = (&'static str, &'a Path)>,
    lock: &Path,
) -> Option<RunError> {
    if root.exists(socket) {
        return None;
    }
    let directory = directories.find(|(_, it)| it.starts_with(socket));
    let (field, what) = match directory {
        Some((field, _)) => (field, "a directory"),
        None if socket == lock => ("stateDirectory", "its lock"),
        None => return None,
    };
    Some(RunError::InTheWay {
        field: Some(field),
        what,
        path: socket.to_owned(),
    })
}

/// The socket is where a start of kubelet, or of what is in its place, has one for others, or a directory for such. What
/// is there already is told of the socket itself. `of`: kubelet's directory, and the field that names it, if one does.
pub(super) fn in_place_of_kubelets(
    root: &Root,
    config: &Config,
    (field, directory): (Option<&'static str>, &Path),
) -> Option<RunError> {
    let of_kubelet = |it: &str| settled(root, &directory.join(it));
    let plugins = of_kubelet(DEVICE_PLUGINS)?;
    let registry = of_kubelet(PLUGINS_REGISTRY)?;
    let resources = of_kubelet(POD_RESOURCES_SOCKET)?;
    let directory = settled(root, config.socket.parent()?)?;
    let socket = directory.join(config.socket.file_name()?);
    let what = if directory == plugins {
        "the sockets of device plugins, all of which a start removes"
    } else if directory.starts_with(&registry) {
        "the sockets of plugins, each of which is asked to register"
    } else if socket == resources {
        "the socket of the pod resources API"
    } else if [Some(&*plugins), Some(&*registry), resources.parent()].contains(&Some(&*socket))
        && !root.exists(&config.socket)
    {
        "a directory"
    } else {
        return None;
    };
    Some(RunError::InTheWay {
        field,
        what,
        path: config.socket.clone(),
    })
}

/// Links that keep a start from making directories, each with its field.
pub(super) fn links_to_nothing<'a>(
    root: &Root,
    directories: impl IntoIterator<Item = (&'static str, &'a Path)>,
) -> Vec<RunError> {
    let mut links = BTreeSet::new();
    let link = |(field, path): (&'static str, &Path)| {
        let (path, target) = link_to_nothing(root, path)?;
        // All that is below a link leads through it.
        let is_first = links.insert((field, path.clone()));
        is_first.then_some(RunError::LinkToNothing {
            field,
            path,
            target,
        })
    };
    directories.into_iter().filter_map(link).collect()
}

/// A link on the way to a path, and what it leads to, which is not there: no directory can be made in its place.
fn link_to_nothing(root: &Root, path: &Path) -> Option<(PathBuf, PathBuf)> {
    // A slash at the end would be looked at through the link.
    let path: PathBuf = path.components().collect();
    let is_gone = |it: &&Path| root.metadata(it).is_err_and(|it| it.is_gone());
    let mut gone = path.ancestors().take_while(is_gone);
    gone.find_map(|it| Some((it.to_owned(), root.read_link(it).ok()?)))
}

/// What is there of a path that is not. `None`: it is, or nobody can say.
fn above_missing(root: &Root, path: &Path) -> Option<PathBuf> {
    let (there, rest) = nearest(root, path).ok()?;
    (!rest.as_os_str().is_empty()).then_some(there)
}

/// Why no file can be made in a file system.
fn why_closed(filesystem: &Filesystem) -> Option<&'static str> {
    match filesystem.kind {
        FilesystemKind::Other => filesystem.is_read_only.then_some("read-only"),
        FilesystemKind::Cgroup
        | FilesystemKind::Cgroup2
        | FilesystemKind::Bpf
        | FilesystemKind::Proc
        | FilesystemKind::Sysfs => Some("the kernel's own"),
    }
}

/// Which of these are on another file system than `directory`. What is not there is on none.
pub(super) fn apart(
    root: &Root,
    directory: &Path,
    others: impl IntoIterator<Item = PathBuf>,
) -> Vec<PathBuf> {
    let device = |path: &Path| Some(root.metadata(path).ok()?.dev());
    let Some(here) = device(directory) else {
        return Vec::new();
    };
    let others = others.into_iter();
    others
        .filter(|it| device(it).is_some_and(|it| it != here))
        .collect()
}

/// Where a path leads, as far as it is there. `None`: nobody can say.
pub(super) fn settled(root: &Root, path: &Path) -> Option<PathBuf> {
    let (there, rest) = nearest(root, path).ok()?;
    Some(root.canonical(there).ok()?.join(rest))
}

/// What of a path is there, and the rest.
pub(super) fn nearest(root: &Root, path: &Path) -> Result<(PathBuf, PathBuf), FsError> {
    for there in path.ancestors() {
        match root.metadata(there) {
            Ok(_) => {
                let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok((there.to_owned(), rest.to_owned()));
            }
            Err(FsError::Gone { .. }) => {}
            // A file stands for a directory.
            Err(error) if error.errno() == Some(nix::libc::ENOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((PathBuf::from("/"), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    fn told(state: &Path, socket: &Path) -> Vec<String> {
        faults_of(state, socket, &[])
    }

    fn faults_of(state: &Path, socket: &Path, more: &[(&'static str, &Path)]) -> Vec<String> {
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             stateDirectory: {}\nsocket: {}\nbpf: {{pinDirectory: /proc/ballast}}\n",
            state.display(),
            socket.display()
        );
        let config = Config::from_yaml(&text, None, &[]).expect("no faults");
        let faults = faults(&Root::host(), &config.config, more, &["pods"]);
        faults.iter().map(|it| crate::observe::chain(it)).collect()
    }

    /// As procfs is wherever there is one.
    #[test]
    fn what_is_on_another_file_system_is_found() {
        let others = ["/", "/proc", "/no such directory"].map(PathBuf::from);
        let found = apart(&Root::host(), Path::new("/"), others);
        assert_eq!(found, [Path::new("/proc")]);
    }

    #[test]
    fn what_a_start_makes_is_not_made_where_no_file_can_be() {
        let base = Scratch::new("directories");
        let (state, socket) = (base.path("a/state"), base.path("b/agent.sock"));
        // Of the directory of pins more is known elsewhere, and a start does without.
        assert_eq!(told(&state, &socket), [""; 0]);
        let closed = |field: &str| {
            format!(
                "{field}: nothing can be made in /proc, whose file system is the kernel's own; right would be a \
                 directory for files"
            )
        };
        let proc = Path::new("/proc");
        for below in ["ballast", "ballast/state", ""] {
            let told = told(&proc.join(below), &socket);
            assert_eq!(told, [closed("stateDirectory")], "{below}");
        }
        for below in ["agent.sock", "run/agent.sock"] {
            let told = told(&state, &proc.join(below));
            assert_eq!(told, [closed("socket")], "{below}");
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_in_the_way_of_a_directory() {
        let base = Scratch::new("directories");
        let link = base.link("link", "gone/away");
        let (state, socket) = (base.path("state"), base.path("run/agent.sock"));
        let nowhere = |field: &str| {
            format!(
                "{field}: {} is a link to gone/away, which is not there; right would be a directory",
                link.display()
            )
        };
        for below in ["", "a/state"] {
            let told = told(&link.join(below), &socket);
            assert_eq!(told, [nowhere("stateDirectory")], "{below}");
        }
        for below in ["agent.sock", "run/agent.sock"] {
            let told = told(&state, &link.join(below));
            assert_eq!(told, [nowhere("socket")], "{below}");
        }
        let there = base.link("there", ".");
        assert_eq!(
            told(&there.join("state"), &there.join("agent.sock")),
            [""; 0]
        );
    }

    #[test]
    fn a_link_that_leads_nowhere_is_in_the_way_of_what_a_start_makes_in_the_state_directory() {
        let base = Scratch::new("directories");
        let link = base.link("pods", "gone");
        let right = format!(
            "stateDirectory: {} is a link to gone, which is not there; right would be a directory",
            link.display()
        );
        let socket = base.path("run/agent.sock");
        assert_eq!(told(base.directory(), &socket), [right]);
    }

    #[test]
    fn a_file_in_the_state_directory_is_none_of_its_directories() {
        let base = Scratch::new("directories");
        let state = base.directory();
        let socket = base.path("run/agent.sock");
        // The lock is a file.
        base.write("lock", "");
        assert_eq!(told(state, &socket), [""; 0]);
        let in_the_way = ["oom", "pods"].map(|name| base.write(name, ""));
        let no_directory =
            |it: &PathBuf| format!("stateDirectory: {} is no directory", it.display());
        assert_eq!(
            told(state, &socket),
            in_the_way.each_ref().map(no_directory)
        );
    }

    #[test]
    fn a_socket_is_not_where_a_start_needs_something_else() {
        let base = Scratch::new("directories");
        let state = base.path("a/state");
        for (at, what) in [
            ("a", "a directory"),
            ("a/state", "a directory"),
            ("a/state/pods", "a directory"),
            ("a/state/oom", "a directory"),
            ("a/state/lock", "its lock"),
        ] {
            let socket = base.path(at);
            let right = format!(
                "socket: {} is where stateDirectory has {what}; right would be a path of its own",
                socket.display()
            );
            assert_eq!(told(&state, &socket), [right], "{at}");
        }
        for at in ["a/state.sock", "a/state/agent.sock", "a/state/locks"] {
            assert_eq!(told(&state, &base.path(at)), [""; 0], "{at}");
        }
        let manifests = base.path("manifests");
        let more = [("pods.manifestDirectory", manifests.as_path())];
        let told_of_manifests = faults_of(&state, &manifests, &more);
        let right = format!(
            "socket: {} is where pods.manifestDirectory has a directory; right would be a path of its own",
            manifests.display()
        );
        assert_eq!(told_of_manifests, [right]);
        // What is there is told where it is listened.
        base.write("lock", "");
        assert_eq!(told(base.directory(), &base.path("lock")), [""; 0]);
    }

    #[test]
    fn the_socket_is_kept_apart_from_those_for_others() {
        let base = Scratch::new("directories");
        let link = base.link("link", ".");
        let found = |socket: &Path, field| {
            let text = format!(
                "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: observe\nsocket: {}\n",
                socket.display(),
            );
            let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
            let of = (field, base.directory());
            let fault = in_place_of_kubelets(&Root::host(), &loaded.config, of)?;
            Some(fault.to_string())
        };
        for name in [
            "agent.sock",
            "pod-resources/agent.sock",
            "device-plugins/a/agent.sock",
            "plugins/agent.sock",
        ] {
            assert_eq!(found(&base.path(name), None), None, "{name}");
        }
        let of_plugins = "the sockets of device plugins, all of which a start removes";
        let of_registry = "the sockets of plugins, each of which is asked to register";
        for (name, what) in [
            ("device-plugins/agent.sock", of_plugins),
            ("device-plugins/kubelet.sock", of_plugins),
            (
                "pod-resources/kubelet.sock",
                "the socket of the pod resources API",
            ),
            ("plugins_registry/agent.sock", of_registry),
            ("plugins_registry/vendor/agent.sock", of_registry),
            ("device-plugins", "a directory"),
            ("plugins_registry", "a directory"),
            ("pod-resources", "a directory"),
        ] {
            for (socket, field, named) in [
                (
                    base.path(name),
                    Some("kubeletDirectory"),
                    "kubeletDirectory",
                ),
                (link.join(name), None, "kubelet"),
            ] {
                let right = format!(
                    "socket: {} is where {named} has {what}; right would be a path of its own",
                    socket.display()
                );
                assert_eq!(found(&socket, field), Some(right));
            }
        }
    }

    #[test]
    fn a_file_is_made_on_no_read_only_file_system_and_on_none_of_the_kernels_own() {
        let filesystem = |kind, is_read_only| Filesystem {
            kind,
            is_read_only,
            total_bytes: 0,
            free_bytes: 0,
            available_bytes: 0,
            inodes: None,
            inodes_free: None,
        };
        for (kind, is_read_only, why) in [
            (FilesystemKind::Other, false, None),
            (FilesystemKind::Other, true, Some("read-only")),
            (FilesystemKind::Cgroup, false, Some("the kernel's own")),
            (FilesystemKind::Cgroup2, false, Some("the kernel's own")),
            (FilesystemKind::Bpf, false, Some("the kernel's own")),
            (FilesystemKind::Proc, false, Some("the kernel's own")),
            (FilesystemKind::Sysfs, true, Some("the kernel's own")),
        ] {
            let found = why_closed(&filesystem(kind, is_read_only));
            assert_eq!(found, why, "{kind:?}");
        }
    }

    #[test]
    fn what_is_there_is_not_made() {
        let base = Scratch::new("directories");
        let file = base.write("lock", "");
        assert_eq!(above_missing(&Root::host(), &file), None);
        let directory = Some(base.directory().to_owned());
        assert_eq!(above_missing(&Root::host(), &base.path("oom")), directory);
    }

    #[test]
    fn what_is_there_of_a_path_ends_at_a_file() {
        let parts = |path: &str| {
            let (there, rest) =
                nearest(&Root::host(), Path::new(path)).expect("it can be looked at");
            (there.display().to_string(), rest.display().to_string())
        };
        let two = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(parts("/proc/none/below"), two("/proc", "none/below"));
        assert_eq!(parts("/proc/self/stat/a/b"), two("/proc/self/stat", "a/b"));
        assert_eq!(parts("/proc/self"), two("/proc/self", ""));
    }
}
