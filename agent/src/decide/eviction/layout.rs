//! How the file systems of a node are laid out, and what follows: whose files count for a signal,
//! and what of the node itself can be given back (pkg/kubelet/eviction/helpers.go, v1.36:
//! `buildSignalToRankFunc`, `buildSignalToNodeReclaimFuncs`).

use serde::{Deserialize, Serialize};

use crate::model::eviction::{Signal, StarvedResource};

/// Where images and writable layers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FsLayout {
    /// Everything on the file system of the state directory, as with the process runtime.
    #[default]
    One,
    /// Images and writable layers together on a file system of their own.
    ImageFs,
    /// Images apart, writable layers on the node's file system.
    Split,
    /// Writable layers apart, images on the node's file system. Kubelet ranks as if it were one, and
    /// derives no thresholds for it.
    ContainerFs,
}

/// Whose files count for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) root_fs: bool,
    pub(super) logs: bool,
    pub(super) local_volumes: bool,
}

/// What of the node itself can be given back before a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeReclaim {
    /// Those of terminated pods too.
    DeadContainers,
    UnusedImages,
}

impl FsLayout {
    /// Whether writable layers are apart from the node's file system; then they do not count for the
    /// limits of containers.
    pub fn has_dedicated_image_fs(self) -> bool {
        matches!(self, Self::ImageFs | Self::Split)
    }

    /// The one of all signals about the same resource of the same file system that stands for them.
    pub fn stands_for(self, signal: Signal) -> Signal {
        use Signal::{
            ContainerFsAvailable, ContainerFsInodesFree, ImageFsAvailable, ImageFsInodesFree,
            NodeFsAvailable, NodeFsInodesFree,
        };
        match (self, signal) {
            (Self::One, ImageFsAvailable | ContainerFsAvailable)
            | (Self::Split, ContainerFsAvailable)
            | (Self::ContainerFs, ImageFsAvailable) => NodeFsAvailable,
            (Self::One, ImageFsInodesFree | ContainerFsInodesFree)
            | (Self::Split, ContainerFsInodesFree)
            | (Self::ContainerFs, ImageFsInodesFree) => NodeFsInodesFree,
            (Self::ImageFs, ContainerFsAvailable) => ImageFsAvailable,
            (Self::ImageFs, ContainerFsInodesFree) => ImageFsInodesFree,
            _ => signal,
        }
    }

    pub(super) fn measured(self, signal: Signal) -> Measured {
        let all = Measured {
            root_fs: true,
            logs: true,
            local_volumes: true,
        };
        let is_of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let is_of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        match self {
            Self::ImageFs if is_of_node => Measured {
                root_fs: false,
                ..all
            },
            Self::ImageFs => Measured {
                logs: false,
                local_volumes: false,
                ..all
            },
            // Images count for no pod.
            Self::Split if is_of_images => Measured {
                root_fs: false,
                logs: false,
                local_volumes: false,
            },
            Self::One | Self::Split | Self::ContainerFs => all,
        }
    }

    /// In the order to try.
    pub fn reclaim(self, signal: Signal) -> Vec<NodeReclaim> {
        let both = vec![NodeReclaim::DeadContainers, NodeReclaim::UnusedImages];
        if matches!(
            signal.resource(),
            StarvedResource::Memory | StarvedResource::Pids
        ) {
            return Vec::new();
        }
        let is_of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let is_of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        match self {
            Self::One | Self::ContainerFs => both,
            Self::ImageFs if is_of_node => Vec::new(),
            Self::ImageFs => both,
            Self::Split if is_of_images => vec![NodeReclaim::UnusedImages],
            Self::Split => vec![NodeReclaim::DeadContainers],
        }
    }
}
