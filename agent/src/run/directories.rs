//! The directories that a configuration names, looked at without making any.

use std::path::{Path, PathBuf};

use super::RunError;
use crate::config::Config;
use crate::sys::{FsError, Root};

/// They may be made, if what is above them is a directory. `more`: those of a mode, each with its field.
pub(super) fn faults(
    root: &Root,
    config: &Config,
    more: &[(&'static str, &Path)],
) -> Vec<RunError> {
    let all = [
        ("stateDirectory", config.state_directory.as_path()),
        ("bpf.pinDirectory", &config.bpf.pin_directory),
    ];
    let socket = config.socket.parent().map(|it| ("socket", it));
    let all = all.into_iter().chain(more.iter().copied()).chain(socket);
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
    all.filter_map(fault).collect()
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
