//! Whether a start can go by this configuration on this node, found out without making anything: for
//! `ballast check`, and for `ballast run` before it makes its first directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::hands::Hands;
use super::placement::Placement;
use crate::config::{Config, PodsConfig};
use crate::observe::http;
use crate::run::RunError;
use crate::run::node::Node;
use crate::run::serve::{self, ServeError};
use crate::sys::{FsError, Root};

/// For `ballast check`.
pub fn check_config(config: &Config) -> Result<(), RunError> {
    find(&Root::host(), config).map(|_| ())
}

/// What a start goes on with.
pub(super) struct Fit {
    pub node: Node,
    pub hands: Hands,
    pub placement: Placement,
}

/// See the module.
pub(super) fn find(root: &Root, config: &Config) -> Result<Fit, RunError> {
    check_directories(root, config)?;
    check_apart(root, config)?;
    if let Some(listen) = serve::listen(&config.metrics) {
        http::check(&listen).map_err(ServeError::Http)?;
    }
    let node = Node::detect(root, &config.state_directory)?;
    let hands = Hands::new(&node, config)?;
    let placement = Placement::new(config, &node, &hands.plan)?;
    Ok(Fit {
        node,
        hands,
        placement,
    })
}

impl RunError {
    /// The user has to change the configuration, or a file that it names.
    pub fn is_of_config(&self) -> bool {
        match self {
            Self::Setting(_)
            | Self::Placement(_)
            | Self::Nested { .. }
            | Self::Directory { .. } => true,
            Self::Serve(ServeError::Http(error)) => match error {
                http::ServeError::Access(_) => true,
                http::ServeError::Bind { source, .. } => source.kind() != ErrorKind::AddrInUse,
            },
            _ => false,
        }
    }
}

/// Directories may be made, if what is above them is one.
fn check_directories(root: &Root, config: &Config) -> Result<(), RunError> {
    let PodsConfig::Manifests { manifest_directory } = &config.pods;
    let socket = config.socket.parent();
    for (field, path) in [
        ("stateDirectory", Some(config.state_directory.as_path())),
        ("kubeletDirectory", Some(&config.kubelet_directory)),
        ("pods.manifestDirectory", Some(manifest_directory)),
        ("bpf.pinDirectory", Some(&config.bpf.pin_directory)),
        ("socket", socket),
    ] {
        let Some(path) = path else { continue };
        let (there, _) = nearest(root, path).map_err(|source| RunError::Directory {
            field,
            source: Some(source),
            path: path.to_owned(),
        })?;
        if !root.is_dir(&there) {
            return Err(RunError::Directory {
                field,
                source: None,
                path: there,
            });
        }
    }
    Ok(())
}

/// The agent renames and removes what is its own.
fn check_apart(root: &Root, config: &Config) -> Result<(), RunError> {
    let PodsConfig::Manifests { manifest_directory } = &config.pods;
    let settled = |path: &Path| -> Result<PathBuf, FsError> {
        let (there, rest) = nearest(root, path)?;
        Ok(root.canonical(there)?.join(rest))
    };
    let state = settled(&config.state_directory);
    match (state, settled(manifest_directory)) {
        (Ok(state), Ok(manifests))
            if state.starts_with(&manifests) || manifests.starts_with(&state) =>
        {
            Err(RunError::Nested { state, manifests })
        }
        _ => Ok(()),
    }
}

/// What of a path is there, and the rest.
fn nearest(root: &Root, path: &Path) -> Result<(PathBuf, PathBuf), FsError> {
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
