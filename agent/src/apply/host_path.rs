//! What a volume of the host has to be: made where that is asked for, and else looked at, before a process starts that
//! goes by it.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::libc::ENOTDIR;

use crate::model::pod::HostPathKind;
use crate::sys::below::{Mounts, create_dirs};
use crate::sys::{Dir, FsError, Root};

/// A volume of the host as a start needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVolume {
    pub path: PathBuf,
    /// `None`: it is not looked at as a whole.
    pub kind: Option<HostPathKind>,
    /// What the container mounts of it.
    pub sub_paths: Vec<String>,
}

impl HostVolume {
    /// Parts that are missing are made as kubelet makes them (pkg/kubelet/kubelet_pods.go, v1.36: `makeMounts`): with the
    /// mode of the volume, and only in one that is there. What else has the name of one stays.
    pub fn provide(&self, root: &Root) -> Result<(), HostPathError> {
        if let Some(kind) = self.kind {
            provide(root, &self.path, kind)?;
        }
        for sub_path in &self.sub_paths {
            let directory = Dir::open(&root.path(&self.path))?;
            match create_dirs(directory, &self.path, Path::new(sub_path), Mounts::Cross) {
                Err(error) if error.errno() == Some(ENOTDIR) => {}
                made => made?,
            }
        }
        Ok(())
    }
}

/// Why a volume of the host is not what the pod asks for.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// The words of kubelet (pkg/volume/hostpath/host_path.go, v1.36: `checkTypeInternal`).
    #[error("hostPath type check failed: {} is not {}", .path.display(), .kind.noun())]
    Other { path: PathBuf, kind: HostPathKind },
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// Makes it if it is missing and `kind` says so; a directory is what is missing where nothing is said, as container
/// runtimes have it. Links are followed.
fn provide(root: &Root, path: &Path, kind: HostPathKind) -> Result<(), HostPathError> {
    use HostPathKind as Kind;
    let found = match root.metadata(path) {
        Ok(found) => Some(found.file_type()),
        Err(error) if error.is_gone() => None,
        Err(error) => return Err(error.into()),
    };
    match (kind, found) {
        (Kind::Any, Some(_)) => return Ok(()),
        (Kind::Any | Kind::DirectoryOrCreate, None) => return Ok(root.create_dir_all(path)?),
        (Kind::FileOrCreate, None) => return Ok(root.create_file(path)?),
        _ => {}
    }
    let is_it = found.is_some_and(|it| match kind {
        Kind::Any => true,
        Kind::Directory | Kind::DirectoryOrCreate => it.is_dir(),
        Kind::File | Kind::FileOrCreate => it.is_file(),
        Kind::Socket => it.is_socket(),
        Kind::CharDevice => it.is_char_device(),
        Kind::BlockDevice => it.is_block_device(),
    });
    match is_it {
        true => Ok(()),
        false => Err(HostPathError::Other {
            path: path.to_owned(),
            kind,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn parts_of_a_volume_are_made_where_it_is_there() {
        let scratch = Scratch::new("host-parts");
        let root = Root::at(scratch.directory());
        let provide = |path: &str, kind, sub_path: &str| {
            let volume = HostVolume {
                path: PathBuf::from(path),
                kind,
                sub_paths: vec![sub_path.to_owned()],
            };
            volume.provide(&root).is_ok()
        };
        assert!(!provide("/data", None, "a/b"));
        assert!(!root.exists("/data"));
        assert!(provide(
            "/data",
            Some(HostPathKind::DirectoryOrCreate),
            "a/b"
        ));
        assert!(root.is_dir("/data/a/b"));
        scratch.write("data/file", "");
        scratch.link("data/link", "..");
        for there in ["a", "file", "link/c"] {
            assert!(provide("/data", None, there), "{there}");
        }
        assert!(!root.exists("/c"));
    }

    #[test]
    fn what_may_be_made_is_made_and_the_rest_has_to_be_there() {
        use HostPathKind as Kind;
        let scratch = Scratch::new("host-path");
        let root = Root::at(scratch.directory());
        root.create_dir_all("/there").expect("a directory");
        root.create_file("/there/file").expect("a file");
        let words = |path: &str, kind| match provide(&root, Path::new(path), kind) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        for (path, kind, expected) in [
            ("/there", Kind::Any, ""),
            ("/there/file", Kind::Any, ""),
            ("/there", Kind::Directory, ""),
            ("/there/file", Kind::File, ""),
            ("/there/file", Kind::FileOrCreate, ""),
            (
                "/there/file",
                Kind::DirectoryOrCreate,
                "hostPath type check failed: /there/file is not a directory",
            ),
            (
                "/there",
                Kind::FileOrCreate,
                "hostPath type check failed: /there is not a file",
            ),
            (
                "/away",
                Kind::Directory,
                "hostPath type check failed: /away is not a directory",
            ),
            (
                "/away",
                Kind::Socket,
                "hostPath type check failed: /away is not a socket file",
            ),
            (
                "/there/file",
                Kind::CharDevice,
                "hostPath type check failed: /there/file is not a character device",
            ),
            ("/made/deep", Kind::DirectoryOrCreate, ""),
            ("/made/untold", Kind::Any, ""),
            ("/made/file", Kind::FileOrCreate, ""),
        ] {
            assert_eq!(words(path, kind), expected, "{path} {kind:?}");
        }
        assert!(root.is_dir("/made/deep") && root.is_dir("/made/untold"));
        assert!(root.exists("/made/file") && !root.is_dir("/made/file"));
        assert!(!root.exists("/away"));
        // Nor is what lies below it made, as by kubelet.
        assert!(provide(&root, Path::new("/away/file"), Kind::FileOrCreate).is_err());
    }
}
