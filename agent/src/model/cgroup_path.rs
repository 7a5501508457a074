//! Where a cgroup is: its path below the mount of a hierarchy, as on disk, whoever made it.
//!
//! Invariant: a [`CgroupPath`] is absolute and leads down: no component of it is empty, `.` or `..`.
//! Any other name that the kernel allows may be in it, as those that systemd, runtimes and programs in
//! containers give.

use std::cmp::Ordering;
use std::fmt;
use std::str::{FromStr, Split};

use serde::{Deserialize, Serialize};

/// Longest path in bytes, as PATH_MAX of `include/uapi/linux/limits.h` less the NUL at the end.
const MAX_BYTES: usize = 4_095;

/// Why a text is no path of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no path of a cgroup: {reason}")]
pub struct CgroupPathError {
    pub text: String,
    pub reason: &'static str,
}

/// See the module. The root of the hierarchy is `/`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct CgroupPath(String);

impl CgroupPath {
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// Reads an absolute path.
    pub fn new(text: impl Into<String>) -> Result<Self, CgroupPathError> {
        let text = text.into();
        match fault(&text) {
            None => Ok(Self(text)),
            Some(reason) => Err(CgroupPathError { text, reason }),
        }
    }

    /// Of a [`CgroupName`](super::cgroup_name::CgroupName), whose components are all fit for a path.
    /// The length is not looked at: a name that is too long is nowhere on disk.
    pub(super) fn of_name(text: String) -> Self {
        Self(text)
    }

    /// The path of a child; `component` may be several, joined by `/`.
    pub fn join(&self, component: &str) -> Result<Self, CgroupPathError> {
        let parent = self.0.trim_end_matches('/');
        Self::new(format!("{parent}/{component}"))
    }

    /// `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/')? {
            ("", "") => None,
            ("", _) => Some(Self::root()),
            (parent, _) => Some(Self(parent.to_owned())),
        }
    }

    /// Itself, and then each cgroup above it up to the root.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> + use<> {
        std::iter::successors(Some(self.clone()), Self::parent)
    }

    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The names of the directories from the mount down: none for the root.
    pub fn components(&self) -> Components<'_> {
        let below = self.0.trim_start_matches('/');
        Components((!below.is_empty()).then(|| below.split('/')))
    }

    /// How many directories below the mount it is.
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// The last component; `None` for the root.
    pub fn last(&self) -> Option<&str> {
        let (_, last) = self.0.rsplit_once('/')?;
        (!last.is_empty()).then_some(last)
    }

    /// The rest of the path below `ancestor`, without a slash in front and empty for that itself.
    /// `None`: it does not lie there.
    pub fn below(&self, ancestor: &Self) -> Option<&str> {
        let rest = self.0.strip_prefix(ancestor.0.trim_end_matches('/'))?;
        match rest.strip_prefix('/') {
            Some(rest) => Some(rest),
            None => rest.is_empty().then_some(""),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// See [`CgroupPath::components`].
#[derive(Clone, Debug)]
pub struct Components<'a>(Option<Split<'a, char>>);

impl<'a> Iterator for Components<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0.as_mut()?.next()
    }
}

fn fault(text: &str) -> Option<&'static str> {
    let Some(below) = text.strip_prefix('/') else {
        return Some("it does not begin with a slash");
    };
    if text.len() > MAX_BYTES {
        return Some("it is longer than 4095 bytes");
    }
    if text.contains(['\0', '\n']) {
        return Some("it holds a NUL or the end of a line, which no name of a cgroup does");
    }
    let mut components = below.split('/');
    match below.is_empty() {
        false if components.any(|it| matches!(it, "" | "." | "..")) => {
            Some("a component of it is empty, `.` or `..`")
        }
        _ => None,
    }
}

/// By components, so that what is below a cgroup follows it at once.
impl Ord for CgroupPath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.components().cmp(other.components())
    }
}

impl PartialOrd for CgroupPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl FromStr for CgroupPath {
    type Err = CgroupPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

/// Files hold a path as the list of its components.
impl TryFrom<Vec<String>> for CgroupPath {
    type Error = CgroupPathError;

    fn try_from(components: Vec<String>) -> Result<Self, Self::Error> {
        Self::new(format!("/{}", components.join("/")))
    }
}

impl From<CgroupPath> for Vec<String> {
    fn from(path: CgroupPath) -> Self {
        path.components().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        text.parse().expect("a path")
    }

    #[test]
    fn what_does_not_lead_down_is_refused() {
        for text in [
            "", "a", "//", "/a/", "/a//b", "/.", "/a/..", "/a\0", "/a\nb", "../a",
        ] {
            assert!(CgroupPath::new(text).is_err(), "{text:?}");
        }
        let long = format!("/{}", "a".repeat(MAX_BYTES));
        assert!(CgroupPath::new(long).is_err());
        for text in ["/", "/a", "/a b/c:d", "/a.slice/a-b.slice", "/...", "/ä"] {
            assert_eq!(path(text).to_string(), text);
        }
    }

    #[test]
    fn a_path_is_its_components() {
        for (text, parent, last, components) in [
            ("/", None, None, &[][..]),
            ("/a", Some("/"), Some("a"), &["a"][..]),
            ("/a/b-c/d", Some("/a/b-c"), Some("d"), &["a", "b-c", "d"]),
        ] {
            let it = path(text);
            assert_eq!(it.parent(), parent.map(path), "{text}");
            let ancestors: Vec<CgroupPath> = it.ancestors().collect();
            assert_eq!(ancestors.len(), components.len() + 1, "{text}");
            assert_eq!(ancestors.first(), Some(&it), "{text}");
            assert_eq!(ancestors.get(1).cloned(), it.parent(), "{text}");
            assert_eq!(it.last(), last, "{text}");
            assert_eq!(it.components().collect::<Vec<_>>(), components, "{text}");
            assert_eq!(it.depth(), components.len(), "{text}");
            assert_eq!(it.is_root(), components.is_empty(), "{text}");
            let listed = Vec::<String>::from(it.clone());
            assert_eq!(CgroupPath::try_from(listed).as_ref(), Ok(&it), "{text}");
            let stored = serde_json::to_value(&it).expect("it is a list");
            assert_eq!(stored, serde_json::json!(components), "{text}");
            assert_eq!(serde_json::from_value(stored).ok(), Some(it), "{text}");
        }
        assert_eq!(CgroupPath::root().join("a"), Ok(path("/a")));
        assert_eq!(path("/a").join("b/c"), Ok(path("/a/b/c")));
        assert!(path("/a").join("../b").is_err());
        assert!(path("/a").join("").is_err());
    }

    #[test]
    fn below_goes_by_whole_components() {
        for (text, ancestor, below) in [
            ("/a/b", "/", Some("a/b")),
            ("/a/b", "/a", Some("b")),
            ("/a/b", "/a/b", Some("")),
            ("/", "/", Some("")),
            ("/ab", "/a", None),
            ("/a", "/a/b", None),
            ("/", "/a", None),
        ] {
            assert_eq!(
                path(text).below(&path(ancestor)),
                below,
                "{text} {ancestor}"
            );
        }
    }

    #[test]
    fn a_subtree_is_contiguous_in_the_order() {
        let mut sorted = ["/a-b", "/a/c", "/a", "/", "/a/c-d", "/a/c/e"].map(path);
        sorted.sort();
        let expected = ["/", "/a", "/a/c", "/a/c/e", "/a/c-d", "/a-b"].map(path);
        assert_eq!(sorted, expected);
    }
}
