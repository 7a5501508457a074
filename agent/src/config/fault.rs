//! What is wrong with a configuration, and where: a fault names the field as a path, says what it
//! holds and what would be right.

use std::fmt;
use std::path::PathBuf;

/// The fields of the agent's configuration that name files of kubelet's.
pub(super) const KUBELET_FILE: &str = "kubeletConfigFile";
pub(super) const KUBELET_DIRECTORY: &str = "kubeletConfigDirectory";

/// Where a value stands, as an operator would write it: `kubelet.evictionHard["memory.available"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    Index(usize),
}

impl FieldPath {
    /// The document itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Names of fields, as in `kubelet.maxPods`.
    pub fn of(dotted: &str) -> Self {
        let steps = dotted.split('.').map(|it| Step::Field(it.to_owned()));
        Self(steps.collect())
    }

    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        self.then(Step::Field(name.to_owned()))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.then(Step::Index(index))
    }

    /// The same path, inside the field `name`.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let mut steps = vec![Step::Field(name.to_owned())];
        steps.extend_from_slice(&self.0);
        Self(steps)
    }

    /// The path as seen from the field `name`; `None`: it is not below it.
    pub fn within(&self, name: &str) -> Option<Self> {
        match self.0.split_first()? {
            (Step::Field(first), rest) if first == name => Some(Self(rest.to_vec())),
            _ => None,
        }
    }

    /// The path of what holds this value; `None` at the document itself.
    pub fn parent(&self) -> Option<Self> {
        let (_, parent) = self.0.split_last()?;
        Some(Self(parent.to_vec()))
    }

    /// Names of the fields on the way, down to the first list.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map_while(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            Step::Index(_) => None,
        })
    }

    pub(super) fn is_of_kubelet_files(&self) -> bool {
        [KUBELET_FILE, KUBELET_DIRECTORY]
            .iter()
            .any(|it| self.within(it).is_some())
    }

    /// Whether `self` is `other` or holds it.
    pub fn is_prefix_of(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    fn then(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Field(name) if !is_plain(name) => write!(f, "[{name:?}]")?,
                Step::Field(name) if position == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}

/// Names that need no brackets.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file that holds the field, where it is not the agent's own configuration.
    pub file: Option<PathBuf>,
    /// Empty for a fault of the document as a whole.
    pub field: FieldPath,
    /// What is wrong and what would be right; lower case, no final dot.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        if self.field != FieldPath::root() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Every fault of a configuration, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.faults.as_slice() {
            [only] => only.fmt(f),
            faults => {
                write!(f, "{} faults in the configuration", faults.len())?;
                faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
            }
        }
    }
}

/// Collects faults while checks go on.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.0.push(Fault {
            file: None,
            field: field.clone(),
            message: message.into(),
        });
    }

    pub(super) fn has(&self, field: &FieldPath) -> bool {
        self.0
            .iter()
            .any(|it| it.file.is_none() && it.field == *field)
    }

    /// The value, or a fault at `field`.
    pub(super) fn keep<T, E: fmt::Display>(
        &mut self,
        field: &FieldPath,
        result: Result<T, E>,
    ) -> Option<T> {
        result
            .map_err(|error| self.add(field, error.to_string()))
            .ok()
    }
}

/// `; did you mean ...`, where one of `known` is near enough to be a slip of the hand, else empty.
pub(super) fn suggestion<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, known).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Field names are shorter; the bound keeps the cost of a hostile name small.
    const LONGEST: usize = 64;
    if wrong.len() > LONGEST {
        return None;
    }
    known
        .into_iter()
        .map(|name| (edit_distance(wrong, name), name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4 || is_short_for(wrong, name))
        .map(|(_, name)| name)
}

fn is_short_for(wrong: &str, name: &str) -> bool {
    wrong.len() >= name.len() / 2 && name.starts_with(wrong)
}

/// Insertions, deletions and replacements between two names, letter case aside.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().map(|c| c.to_ascii_lowercase()).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_an_operator_writes_it() {
        let kubelet = FieldPath::root().field("kubelet");
        let threshold = kubelet.field("evictionHard").field("memory.available");
        assert_eq!(
            threshold.to_string(),
            r#"kubelet.evictionHard["memory.available"]"#
        );
        let second = kubelet.field("enforceNodeAllocatable").index(1);
        assert_eq!(second.to_string(), "kubelet.enforceNodeAllocatable[1]");
        assert!(kubelet.is_prefix_of(&threshold) && !threshold.is_prefix_of(&kubelet));
    }

    #[test]
    fn a_suggestion_is_near_or_absent() {
        let known = ["evictionHard", "evictionSoft", "maxPods"];
        for (wrong, right) in [
            ("evictionhard", "; did you mean \"evictionHard\"?"),
            ("evictionHrad", "; did you mean \"evictionHard\"?"),
            ("maxpod", "; did you mean \"maxPods\"?"),
            ("evictionSo", "; did you mean \"evictionSoft\"?"),
            ("somethingElse", ""),
        ] {
            assert_eq!(suggestion(wrong, known), right, "{wrong}");
        }
    }
}
