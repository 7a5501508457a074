//! What a container's first process is given: its arguments and its environment. In: the container
//! and what the node provides. Out: text ready for `execve`.
//!
//! `$(NAME)` is expanded as kubelet does (`third_party/forked/golang/expansion`,
//! `makeEnvironmentVariables`). There is no image, so no ENTRYPOINT, CMD and ENV to fall back on.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::model::pod::{Container, EnvVar};

/// `PATH` of a container that sets none, the default of the container runtimes.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Arguments and environment together, bytes with the NULs between them: no program can be started
/// with more (`_STK_LIM / 4 * 3`, fs/exec.c, Linux 6.18). A reference may stand for much more than its
/// text, so what is expanded is bounded, not what is written.
const MOST_BYTES: usize = 6 << 20;

/// What the container's process finds in its environment without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseEnv<'a> {
    pub path: &'a str,
    /// The host name the process would read from the kernel: the node's, or the pod's where it has
    /// a UTS namespace of its own.
    pub hostname: &'a str,
    /// Home directory of the user it runs as; `/` where the user has none.
    pub home: &'a str,
    /// Address of the node; `None`: nobody knows it.
    pub address: Option<&'a str>,
}

/// What is handed to `execve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessArgs {
    /// The program first; never empty, no NUL byte anywhere.
    pub argv: Vec<String>,
    /// Each name once: the base, then the container's own in the order of its definition.
    pub env: Vec<(String, String)>,
}

/// Why a container cannot be started as it is defined. Fields are named as in the container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessFault {
    #[error("command and args are empty: without an image, one of them must name a program")]
    NoProgram,
    #[error("{field} names the program and is empty")]
    EmptyProgram { field: String },
    #[error("{field} has a NUL byte, which no argument or variable can carry")]
    Nul { field: String },
    #[error(
        "with {field} expanded, arguments and environment are longer than {} bytes, the most that a \
         program can be started with",
        MOST_BYTES
    )]
    TooLong { field: String },
    #[error("env[{index}].name `{name}` must be non-empty, without = and NUL")]
    InvalidName { index: usize, name: String },
}

/// Arguments and environment of a container.
///
/// `command` replaces the ENTRYPOINT of an image; without it, `args` is the whole command line.
/// Variables see those before them and themselves as set before, `command` and `args` see them all;
/// none sees the base, as kubelet does not know what image and runtime add.
pub fn process_args(
    container: &Container,
    base: &BaseEnv<'_>,
) -> Result<ProcessArgs, ProcessFault> {
    let mut room = MOST_BYTES;
    let own = Variables::of(&container.env, base.address, &mut room)?;
    let mut expand_all = |field: &str, texts: &[String]| -> Result<Vec<String>, ProcessFault> {
        let expand_one = |(index, text): (usize, &String)| {
            own.expand(text, &mut room, || format!("{field}[{index}]"))
        };
        texts.iter().enumerate().map(expand_one).collect()
    };
    let mut argv = expand_all("command", &container.command)?;
    argv.extend(expand_all("args", &container.args)?);
    match argv.first() {
        None => return Err(ProcessFault::NoProgram),
        Some(program) if program.is_empty() => {
            let list = if container.command.is_empty() {
                "args"
            } else {
                "command"
            };
            return Err(ProcessFault::EmptyProgram {
                field: format!("{list}[0]"),
            });
        }
        Some(_) => {}
    }

    let base = [
        ("PATH", base.path),
        ("HOSTNAME", base.hostname),
        ("HOME", base.home),
    ];
    let env = base
        .into_iter()
        .map(|(name, value)| (name, own.get(name).unwrap_or(value)))
        .chain(
            own.in_order()
                .filter(|(name, _)| base.iter().all(|it| it.0 != *name)),
        )
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Ok(ProcessArgs { argv, env })
}

/// Expanded variables. A name that is set twice has its last value at its first place, which is
/// what a runtime makes of kubelet's list.
struct Variables<'a> {
    order: Vec<&'a str>,
    values: BTreeMap<&'a str, String>,
}

impl<'a> Variables<'a> {
    fn of(
        env: &'a [EnvVar],
        address: Option<&str>,
        room: &mut usize,
    ) -> Result<Self, ProcessFault> {
        let mut variables = Self {
            order: Vec::new(),
            values: BTreeMap::new(),
        };
        for (index, variable) in env.iter().enumerate() {
            let EnvVar { name, value, .. } = variable;
            let value = match variable.is_node_address {
                true => address.unwrap_or_default(),
                false => value,
            };
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(ProcessFault::InvalidName {
                    index,
                    name: name.clone(),
                });
            }
            let field = || format!("env[{index}].value");
            let value = variables.expand(value, room, field)?;
            // The name and `=`.
            *room = room.saturating_sub(name.len() + 1);
            if variables.values.insert(name, value).is_none() {
                variables.order.push(name);
            }
        }
        Ok(variables)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn in_order(&self) -> impl Iterator<Item = (&str, &str)> {
        self.order
            .iter()
            .filter_map(|name| Some((*name, self.get(name)?)))
    }

    /// Replaces `$(NAME)` by its value and `$$` by `$`. A name that is not set, a reference
    /// without end and any other `$` stay as they are. What is put in is not looked at again.
    ///
    /// Takes what comes out, and its NUL, from `room`; fails as soon as there is none left.
    fn expand(
        &self,
        text: &str,
        room: &mut usize,
        field: impl Fn() -> String,
    ) -> Result<String, ProcessFault> {
        let mut expanded = String::new();
        let mut push = |part: &str| {
            *room = room.checked_sub(part.len()).ok_or(())?;
            expanded.push_str(part);
            Ok(())
        };
        self.expand_to(text, &mut push)
            .map_err(|()| ProcessFault::TooLong { field: field() })?;
        *room = room.saturating_sub(1);
        match expanded.contains('\0') {
            true => Err(ProcessFault::Nul { field: field() }),
            false => Ok(expanded),
        }
    }

    fn expand_to<E>(
        &self,
        text: &str,
        push: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            push(before)?;
            rest = if let Some(after) = after.strip_prefix('$') {
                push("$")?;
                after
            } else if let Some((name, after)) = reference(after) {
                match self.get(name) {
                    Some(value) => push(value)?,
                    None => {
                        push("$(")?;
                        push(name)?;
                        push(")")?;
                    }
                }
                after
            } else {
                push("$")?;
                after
            };
        }
        push(rest)
    }
}

/// The name in `(NAME)...` and what follows it. A name goes up to the first `)`, whatever is in it.
fn reference(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('(')?.split_once(')')
}
