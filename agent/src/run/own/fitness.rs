//! Whether a start can go by this configuration on this node, found out without making anything: for
//! `ballast check`, and for `ballast run` before it makes its first directory.

use std::path::{Path, PathBuf};

use super::hands::{self, Hands};
use super::placement::Placement;
use crate::config::{Config, OwnConfig, PodsConfig};
use crate::observe::http;
use crate::run::node::Node;
use crate::run::serve::{self, ServeError};
use crate::run::{RunError, directories};
use crate::sys::{FsError, Root};

/// For `ballast check`.
pub(in crate::run) fn check_config(config: &Config, own: &OwnConfig) -> Result<(), RunError> {
    find(&Root::host(), config, own).map(|_| ())
}

/// What a start goes on with.
pub(super) struct Fit {
    pub node: Node,
    pub hands: Hands,
    pub placement: Placement,
}

/// See the module.
pub(super) fn find(root: &Root, config: &Config, own: &OwnConfig) -> Result<Fit, RunError> {
    let PodsConfig::Manifests { manifest_directory } = &own.pods;
    let more: [(&str, &Path); 2] = [
        ("kubeletDirectory", &own.kubelet_directory),
        ("pods.manifestDirectory", manifest_directory),
    ];
    directories::check(root, config, &more)?;
    check_apart(root, config, own)?;
    if let Some(listen) = serve::listen(&config.metrics) {
        http::check(&listen).map_err(ServeError::Http)?;
    }
    let mut node = Node::detect(root, &config.state_directory)?;
    hands::confine(&mut node, root, &config.kubelet)?;
    let hands = Hands::new(&node, &config.kubelet, own.compat)?;
    let placement = Placement::new(config, own, &node, &hands.plan)?;
    Ok(Fit {
        node,
        hands,
        placement,
    })
}

/// The agent renames and removes what is its own.
fn check_apart(root: &Root, config: &Config, own: &OwnConfig) -> Result<(), RunError> {
    let PodsConfig::Manifests { manifest_directory } = &own.pods;
    let settled = |path: &Path| -> Result<PathBuf, FsError> {
        let (there, rest) = directories::nearest(root, path)?;
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
