//! Device nodes, and which of them the processes of a cgroup may open and make.
//!
//! Invariant: equal rules are one value, whatever their order. As in the kernel, one rule must cover
//! all that is asked for: reading by one rule and writing by another is not both at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::text::{ParseError, number};

/// `b` and `c` of `mknod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    Block,
    Char,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Block => "b",
            Self::Char => "c",
        })
    }
}

/// What may be done with a device: `r`, `w` and `m` of the device plugin API and of `devices.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePermissions {
    pub read: bool,
    pub write: bool,
    /// Making a node of it.
    pub mknod: bool,
}

impl DevicePermissions {
    pub const ALL: Self = Self {
        read: true,
        write: true,
        mknod: true,
    };

    pub const MKNOD: Self = Self {
        read: false,
        write: false,
        mknod: true,
    };

    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            read: self.read || other.read,
            write: self.write || other.write,
            mknod: self.mknod || other.mknod,
        }
    }

    /// Those of `self` that `other` lacks.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            read: self.read && !other.read,
            write: self.write && !other.write,
            mknod: self.mknod && !other.mknod,
        }
    }
}

impl fmt::Display for DevicePermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (has_it, letter) in [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')] {
            if has_it {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// One to three of the letters, in any order.
impl FromStr for DevicePermissions {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "one or more of `r`, `w` and `m`";
        let mut permissions = Self::default();
        for letter in text.chars() {
            match letter {
                'r' => permissions.read = true,
                'w' => permissions.write = true,
                'm' => permissions.mknod = true,
                _ => return Err(ParseError::invalid(text, EXPECTED)),
            }
        }
        match permissions.is_none() {
            true => Err(ParseError::invalid(text, EXPECTED)),
            false => Ok(permissions),
        }
    }
}

/// The numbers that the kernel knows a device by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumbers {
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: u32,
}

/// A device that a container was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocatedDevice {
    /// Of its node on the host, as the device plugin named it.
    pub host_path: PathBuf,
    pub numbers: DeviceNumbers,
    pub permissions: DevicePermissions,
}

/// The devices that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceSet {
    pub kind: DeviceKind,
    /// `None`: every one.
    pub major: Option<u32>,
    /// `None`: every one.
    pub minor: Option<u32>,
}

impl From<DeviceNumbers> for DeviceSet {
    fn from(numbers: DeviceNumbers) -> Self {
        Self {
            kind: numbers.kind,
            major: Some(numbers.major),
            minor: Some(numbers.minor),
        }
    }
}

/// A line of `devices.list`, and what `devices.allow` and `devices.deny` take: `c 1:3 rwm`
/// (Documentation/admin-guide/cgroup-v1/devices.rst, Linux 6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRule {
    pub devices: DeviceSet,
    pub permissions: DevicePermissions,
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |it: Option<u32>| it.map_or("*".to_owned(), |it| it.to_string());
        let DeviceSet { kind, major, minor } = self.devices;
        write!(
            f,
            "{kind} {}:{} {}",
            number(major),
            number(minor),
            self.permissions
        )
    }
}

impl FromStr for DeviceRule {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let invalid = || ParseError::invalid(text, "a device rule such as `c 1:3 rwm`");
        let mut words = text.split_ascii_whitespace();
        let (Some(kind), Some(numbers), Some(permissions), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(invalid());
        };
        let kind = match kind {
            "b" => DeviceKind::Block,
            "c" => DeviceKind::Char,
            _ => return Err(invalid()),
        };
        let parse = |text: &str| match text {
            "*" => Ok(None),
            text => number(text, "a device number or `*`").map(Some),
        };
        let (major, minor) = numbers.split_once(':').ok_or_else(invalid)?;
        Ok(Self {
            devices: DeviceSet {
                kind,
                major: parse(major)?,
                minor: parse(minor)?,
            },
            permissions: permissions.parse()?,
        })
    }
}

/// What the processes of a cgroup may do with devices, without what the cgroups above it forbid.
/// Opening alone is checked: a device that is open stays usable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceAccess {
    /// Of a cgroup that nobody has restricted.
    Everything,
    Only(DeviceRules),
}

/// The permissions of each set of devices; none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceRules(BTreeMap<DeviceSet, DevicePermissions>);

impl DeviceRules {
    /// In an order that depends on nothing but the rules.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DeviceRule> + '_ {
        self.0.iter().map(|(&devices, &permissions)| DeviceRule {
            devices,
            permissions,
        })
    }

    /// What is to be taken from `self` and what is to be added to it, for it to become `other`: the
    /// writes to `devices.deny` and `devices.allow`.
    pub fn difference(&self, other: &Self) -> (Vec<DeviceRule>, Vec<DeviceRule>) {
        (self.lacking_in(other), other.lacking_in(self))
    }

    fn lacking_in(&self, other: &Self) -> Vec<DeviceRule> {
        self.iter()
            .filter_map(|rule| {
                let there = other.0.get(&rule.devices).copied().unwrap_or_default();
                let permissions = rule.permissions.without(there);
                (!permissions.is_none()).then_some(DeviceRule {
                    permissions,
                    ..rule
                })
            })
            .collect()
    }
}

/// Rules for the same devices become one. A rule that permits nothing is none.
impl FromIterator<DeviceRule> for DeviceRules {
    fn from_iter<I: IntoIterator<Item = DeviceRule>>(rules: I) -> Self {
        let mut found: BTreeMap<DeviceSet, DevicePermissions> = BTreeMap::new();
        for rule in rules.into_iter().filter(|it| !it.permissions.is_none()) {
            let permissions = found.entry(rule.devices).or_default();
            *permissions = permissions.union(rule.permissions);
        }
        Self(found)
    }
}

/// `devices.list` of v1: `a *:* rwm`, or a rule per line.
impl FromStr for DeviceAccess {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let lines = text.lines().map(str::trim).filter(|it| !it.is_empty());
        let mut rules = Vec::new();
        for line in lines {
            // Shown alone: where everything is allowed, what is denied is not listed.
            if line.starts_with('a') {
                return match line {
                    "a *:* rwm" => Ok(Self::Everything),
                    _ => Err(ParseError::invalid(line, "`a *:* rwm`")),
                };
            }
            rules.push(line.parse()?);
        }
        Ok(Self::Only(rules.into_iter().collect()))
    }
}

/// As `devices.list`, with commas instead of line ends.
impl fmt::Display for DeviceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("a *:* rwm"),
            Self::Only(rules) => {
                for (index, rule) in rules.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{rule}")?;
                }
                Ok(())
            }
        }
    }
}

impl Serialize for DeviceAccess {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
