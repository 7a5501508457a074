//! From the command of a container to what `execve` takes: program, arguments, environment.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::search::Searches;
use crate::runtime::{ContainerSpec, StartError};

/// Where a program is searched when the container sets no `PATH`, as container runtimes do.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that can be given to the kernel as it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// What is executed; a relative path counts from `working_dir`.
    pub(super) program: PathBuf,
    pub(super) program_c: CString,
    pub(super) argv: Vec<CString>,
    pub(super) envp: Vec<CString>,
    pub(super) working_dir: CString,
}

impl Command {
    pub(super) fn resolve(spec: &ContainerSpec, searches: &Searches) -> Result<Self, StartError> {
        let env = last_of_each(&spec.env);
        let program = spec.argv.first().filter(|it| !it.is_empty());
        let program = program.ok_or(StartError::EmptyCommand)?;
        let program = if program.contains('/') {
            PathBuf::from(program)
        } else {
            let path = env
                .iter()
                .find(|(name, _)| name == "PATH")
                .map_or(DEFAULT_PATH, |(_, value)| value);
            let found = searches.find(&spec.id, candidates(program, path, &spec.working_dir))?;
            found.ok_or_else(|| StartError::NotInPath {
                program: program.clone(),
                path: path.to_owned(),
            })?
        };
        let argv = spec
            .argv
            .iter()
            .map(|it| c_string("argument", it.clone()))
            .collect::<Result<_, _>>()?;
        let envp = env
            .iter()
            .map(|(name, value)| {
                if name.is_empty() || name.contains('=') {
                    return Err(StartError::EnvName { name: name.clone() });
                }
                c_string("environment variable", format!("{name}={value}"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            program_c: c_path("program", &program)?,
            program,
            argv,
            envp,
            working_dir: c_path("working directory", &spec.working_dir)?,
        })
    }
}

/// The last value of each variable wins, as in Kubernetes; most programs would take the first.
fn last_of_each(env: &[(String, String)]) -> Vec<&(String, String)> {
    let mut seen = BTreeSet::new();
    let mut env: Vec<_> = env
        .iter()
        .rev()
        .filter(|(name, _)| seen.insert(name))
        .collect();
    env.reverse();
    env
}

/// Where the program may be, in the order of `path`.
fn candidates(program: &str, path: &str, working_dir: &Path) -> Vec<PathBuf> {
    path.split(':')
        // An empty entry is the current directory (POSIX, 8.3), a relative one counts from it.
        .map(|dir| working_dir.join(dir).join(program))
        .collect()
}

fn c_string(what: &'static str, text: impl Into<Vec<u8>>) -> Result<CString, StartError> {
    CString::new(text).map_err(|error| {
        let text = String::from_utf8_lossy(&error.into_vec()).into_owned();
        StartError::NulByte { what, text }
    })
}

fn c_path(what: &'static str, path: &Path) -> Result<CString, StartError> {
    c_string(what, path.as_os_str().to_owned().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ContainerId;

    #[test]
    fn a_program_is_searched_from_the_working_directory_in_the_order_of_path() {
        let id = ContainerId::new("app-0").expect("valid");
        let find = |program: &str, path: &str, dir: &str| {
            let candidates = candidates(program, path, Path::new(dir));
            Searches::default().find(&id, candidates).expect("answers")
        };
        for (path, working_dir, want) in [
            ("/bin", "/", Some("/bin/sh")),
            ("/no/such:/etc:/bin:/usr/bin", "/", Some("/bin/sh")),
            ("/usr/bin:/bin", "/", Some("/usr/bin/sh")),
            // Empty and relative entries count from the working directory.
            ("", "/bin", Some("/bin/sh")),
            ("/no/such:", "/bin", Some("/bin/sh")),
            ("bin", "/usr", Some("/usr/bin/sh")),
            ("bin", "/etc", None),
            ("/etc", "/bin", None),
        ] {
            let found = find("sh", path, working_dir);
            assert_eq!(found, want.map(PathBuf::from), "{path:?}");
        }
        // A directory is not a program, whatever its mode.
        assert_eq!(find("bin", "/usr", "/"), None);
    }

    #[test]
    fn the_last_value_of_a_variable_wins() {
        let env = [("A", "1"), ("B", "2"), ("A", "3")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let left: Vec<_> = last_of_each(&env)
            .into_iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(left, [("B", "2"), ("A", "3")]);
    }
}
