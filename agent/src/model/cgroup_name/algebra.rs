//! Kubelet's conversions between lists of components and cgroupfs paths, component by component as
//! it does them and without any validation (pkg/kubelet/cm/cgroup_manager_linux.go, v1.36). Pinned
//! by suite `cgroup_names`.
//!
//! Not for use with names that were not checked: [`CgroupName`](super::CgroupName) is the checked
//! layer on top, and what the rest of the agent uses.

/// The end of a systemd slice's unit name.
pub const SLICE: &str = ".slice";

/// systemd cannot have a slice of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a slice name")]
pub struct SliceError {
    pub name: String,
}

/// What may be joined to a name: `_` and `/` would not survive the way to systemd and back.
pub fn is_component(text: &str) -> bool {
    !text.contains(['/', '_'])
}

/// The path of a name under the cgroupfs driver: `/` and the components, lexically cleaned.
pub fn to_cgroupfs(components: &[impl AsRef<str>]) -> String {
    let joined = components
        .iter()
        .map(AsRef::as_ref)
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join("/");
    if joined.is_empty() {
        return "/".to_owned();
    }
    let is_rooted = joined.starts_with('/');
    let mut clean: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." if clean.last().is_some_and(|it| *it != "..") => {
                clean.pop();
            }
            ".." if is_rooted => {}
            part => clean.push(part),
        }
    }
    let clean = match clean.join("/") {
        it if it.is_empty() && !is_rooted => ".".to_owned(),
        it if is_rooted => format!("/{it}"),
        it => it,
    };
    format!("/{clean}")
}

/// The components of a cgroupfs path, as they stand: a trailing slash gives an empty component.
pub fn parse_cgroupfs(path: &str) -> Vec<String> {
    match path.strip_prefix('/').unwrap_or(path) {
        "" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// The cgroupfs path of a name under the systemd driver: every component is part of the unit name,
/// and the unit's slice parents are the path.
pub fn to_systemd(components: &[impl AsRef<str>]) -> Result<String, SliceError> {
    let is_root = match components {
        [] => true,
        [only] => only.as_ref().is_empty(),
        _ => false,
    };
    if is_root {
        return Ok("/".to_owned());
    }
    let stem = components
        .iter()
        .map(|it| it.as_ref().replace('-', "_"))
        .collect::<Vec<_>>()
        .join("-");
    expand_slice(&format!("{stem}{SLICE}"))
}

/// `/a.slice/a-b.slice` for `a-b.slice`.
pub fn expand_slice(name: &str) -> Result<String, SliceError> {
    let error = || SliceError {
        name: name.to_owned(),
    };
    let stem = name
        .strip_suffix(SLICE)
        .filter(|it| !it.contains('/'))
        .ok_or_else(error)?;
    if stem == "-" {
        return Ok("/".to_owned());
    }
    let mut path = String::new();
    let mut prefix = String::new();
    for piece in stem.split('-') {
        if piece.is_empty() {
            return Err(error());
        }
        if !prefix.is_empty() {
            prefix.push('-');
        }
        prefix.push_str(piece);
        path.push('/');
        path.push_str(&prefix);
        path.push_str(SLICE);
    }
    Ok(path)
}

/// The components in the last element of a path. The elements before it are not looked at, and
/// `/` gives the component `/`.
pub fn parse_systemd(path: &str) -> Vec<String> {
    let trimmed = path.trim_end_matches('/');
    let base = match trimmed.rsplit('/').next() {
        Some("") | None if path.is_empty() => ".",
        Some("") | None => "/",
        Some(base) => base,
    };
    let stem = base.strip_suffix(SLICE).unwrap_or(base);
    stem.split('-').map(|it| it.replace('_', "-")).collect()
}

/// Whether a path is one of systemd's slices.
pub fn is_systemd_style(path: &str) -> bool {
    path.ends_with(SLICE)
}
