//! Several directory trees that hold directories of the same name: the hierarchies of cgroup v1,
//! or the single one of v2.

use std::collections::BTreeSet;
use std::path::Path;

use super::dir::Dir;
use super::error::FsError;

/// One mounted hierarchy.
#[derive(Debug)]
pub struct Tree {
    /// Controllers that it carries, or `name=...`; empty for the cgroup2 hierarchy beside v1.
    pub controllers: BTreeSet<String>,
    pub dir: Dir,
}

impl Tree {
    pub fn open(controllers: BTreeSet<String>, mount: &Path) -> Result<Self, FsError> {
        Ok(Self {
            controllers,
            dir: Dir::open(mount)?,
        })
    }

    /// A name that is stable across restarts and unique among the trees of a node.
    pub fn label(&self) -> String {
        if self.controllers.is_empty() {
            return "unified".into();
        }
        self.controllers
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// The trees of a node.
#[derive(Debug)]
pub struct Trees {
    /// One cgroup v2 hierarchy that carries all controllers.
    pub unified: bool,
    pub trees: Vec<Tree>,
}

impl Trees {
    /// The tree that carries `controller`; on v2 always the only one.
    pub fn of(&self, controller: &str) -> Option<&Tree> {
        if self.unified {
            return self.trees.first();
        }
        self.trees
            .iter()
            .find(|tree| tree.controllers.contains(controller))
    }

    /// The tree of v1 that carries `controller`.
    pub fn legacy(&self, controller: &str) -> Option<&Tree> {
        self.of(controller).filter(|_| !self.unified)
    }

    /// The cgroup v2 hierarchy: the only tree on v2, the one beside v1 on a hybrid node.
    pub fn cgroup2(&self) -> Option<&Tree> {
        self.trees
            .iter()
            .find(|tree| self.unified || tree.controllers.is_empty())
    }
}
