//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub(crate) const USAGE: &str = "usage: example_device_plugin DIRECTORY RESOURCE N [OPTION...]
  DIRECTORY            of the agent's kubelet.sock
  RESOURCE             as example.com/gpu
  N                    devices: dev-0, dev-1, ...
  --files DIR          devices are files there, made if missing; else all are /dev/null
  --numa N             spread the devices over the NUMA nodes 0 to N-1
  --registry DIR       put a registration socket there instead of registering
  --control FILE       do what it says: `unhealthy ID...` or `crash`; anything else: all healthy
  --preferred POLICY   offer preferred allocation: `first`, `last`
  --pre-start          want to be asked before containers start
  --slow MS            before each answer but those of registration
  --fault FAULT        in lists: `garbage`, `twice`, `many`, `large`, `silent`, `error`;
                       in Allocate: `refuse`, `garbage-allocate`, `nothing`";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preferred {
    First,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A list that is not protobuf.
    Garbage,
    /// Every device is there twice.
    Twice,
    /// More devices than are taken.
    Many,
    /// A message larger than is taken.
    Large,
    /// No list ever.
    Silent,
    /// The stream ends with an error.
    Error,
    /// Allocate fails.
    Refuse,
    /// Allocate answers with something else.
    GarbageAllocate,
    /// Allocate answers without a container.
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) directory: PathBuf,
    pub(crate) resource: String,
    pub(crate) n_devices: usize,
    pub(crate) files: Option<PathBuf>,
    pub(crate) n_numa_nodes: Option<usize>,
    pub(crate) registry: Option<PathBuf>,
    pub(crate) control: Option<PathBuf>,
    pub(crate) preferred: Option<Preferred>,
    pub(crate) pre_start: bool,
    pub(crate) slow: Duration,
    pub(crate) fault: Option<Fault>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let [directory, resource, n, rest @ ..] = arguments else {
            return Err("three arguments are needed".to_owned());
        };
        let mut options = Self {
            directory: directory.into(),
            resource: resource.clone(),
            n_devices: number(n)?,
            files: None,
            n_numa_nodes: None,
            registry: None,
            control: None,
            preferred: None,
            pre_start: false,
            slow: Duration::ZERO,
            fault: None,
        };
        let mut rest = rest.iter();
        while let Some(name) = rest.next() {
            if name == "--pre-start" {
                options.pre_start = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--files" => options.files = Some(value.into()),
                "--numa" => options.n_numa_nodes = Some(number(value)?),
                "--registry" => options.registry = Some(value.into()),
                "--control" => options.control = Some(value.into()),
                "--preferred" => options.preferred = Some(preferred(value)?),
                "--slow" => options.slow = Duration::from_millis(number(value)?),
                "--fault" => options.fault = Some(fault(value)?),
                _ => return Err(format!("{name} is not an option")),
            }
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_not_a_number| format!("{text} is not a number"))
}

fn preferred(text: &str) -> Result<Preferred, String> {
    match text {
        "first" => Ok(Preferred::First),
        "last" => Ok(Preferred::Last),
        _ => Err(format!("{text} is not a policy")),
    }
}

fn fault(text: &str) -> Result<Fault, String> {
    Ok(match text {
        "garbage" => Fault::Garbage,
        "twice" => Fault::Twice,
        "many" => Fault::Many,
        "large" => Fault::Large,
        "silent" => Fault::Silent,
        "error" => Fault::Error,
        "refuse" => Fault::Refuse,
        "garbage-allocate" => Fault::GarbageAllocate,
        "nothing" => Fault::Nothing,
        _ => return Err(format!("{text} is not a fault")),
    })
}
