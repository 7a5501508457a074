//! Names of cgroups, independent of the driver that maps them to directories
//! (pkg/kubelet/cm/types.go, v1.36: `CgroupName`), and the fixed names of the hierarchy.
//!
//! Invariant: a [`CgroupName`] is valid for both drivers, converts without failing, and reading
//! its path gives it again.

pub mod algebra;

use std::fmt;

use serde::{Deserialize, Serialize};

use self::algebra::SLICE;
use super::cgroup_path::{CgroupPath, CgroupPathError};
use super::pod::{PodUid, QosClass};

/// The cgroup of all pods, below the configured root.
pub const KUBEPODS: &str = "kubepods";
/// Before the UID in the name of a pod's cgroup.
pub const POD_PREFIX: &str = "pod";
/// Longest name of a directory (NAME_MAX).
const MAX_COMPONENT: usize = 255;
/// Longest path of a configured root, bytes. Under the systemd driver the path of a container repeats
/// that of the root up to four times and must stay a path (PATH_MAX).
const MAX_ROOT: usize = 768;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// Why something is not the name of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupNameError {
    #[error("`{component}` cannot be part of a cgroup name: {reason}")]
    Component {
        component: String,
        reason: &'static str,
    },
    #[error("`{path}` is not the path of a systemd slice, as /a.slice/a-b.slice")]
    NotASlice { path: String },
    #[error("it is {n_bytes} bytes long below the mount, more than {MAX_ROOT}")]
    RootTooLong { n_bytes: usize },
    #[error("`{path}` lies where systemd puts no slice of that name: want `{expected}`")]
    Misplaced { path: String, expected: String },
    #[error(transparent)]
    Path(#[from] CgroupPathError),
}

/// Components below the cgroup mount; empty is the root. Every component is valid for both
/// drivers: not empty, no `/`, no `_`, no NUL, no end of a line, not `.` or `..`, no `.slice` suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct CgroupName(Vec<String>);

impl TryFrom<Vec<String>> for CgroupName {
    type Error = CgroupNameError;

    fn try_from(components: Vec<String>) -> Result<Self, Self::Error> {
        Self::new(components)
    }
}

fn check(component: &str) -> Result<(), CgroupNameError> {
    let reason = match component {
        "" => "it is empty",
        "." | ".." => "it is a relative path",
        it if it.len() > MAX_COMPONENT => "it is longer than 255 bytes",
        it if it.contains('/') => "it holds a slash",
        it if it.contains('_') => "it holds an underscore, which systemd's names use for a dash",
        it if it.contains('\0') => "it holds a NUL byte",
        it if it.contains('\n') => "it holds the end of a line, which the kernel refuses",
        it if it.ends_with(SLICE) => "it ends in .slice, which the systemd driver adds itself",
        _ => return Ok(()),
    };
    Err(CgroupNameError::Component {
        component: component.to_owned(),
        reason,
    })
}

impl CgroupName {
    pub fn root() -> Self {
        Self::default()
    }

    pub fn new<S: Into<String>>(
        components: impl IntoIterator<Item = S>,
    ) -> Result<Self, CgroupNameError> {
        let components: Vec<String> = components.into_iter().map(Into::into).collect();
        components.iter().try_for_each(|it| check(it))?;
        Ok(Self(components))
    }

    /// The name of a child.
    pub fn join(&self, component: impl Into<String>) -> Result<Self, CgroupNameError> {
        let component = component.into();
        check(&component)?;
        let mut components = self.0.clone();
        components.push(component);
        Ok(Self(components))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn components(&self) -> &[String] {
        &self.0
    }

    /// The directory below the cgroup mount, with a leading slash. The root is `/`.
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => algebra::to_cgroupfs(&self.0),
            CgroupDriver::Systemd => {
                algebra::to_systemd(&self.0).expect("no checked component is empty or has a slash")
            }
        }
    }

    /// Where the driver puts it.
    pub fn at(&self, driver: CgroupDriver) -> CgroupPath {
        CgroupPath::of_name(self.path(driver))
    }

    /// The unit of the systemd driver, as `kubepods-burstable.slice`; the root is `-.slice`.
    pub fn systemd_unit(&self) -> String {
        if self.is_root() {
            return "-.slice".to_owned();
        }
        let path = self.path(CgroupDriver::Systemd);
        path.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Reads a directory below the cgroup mount: the inverse of [`path`](Self::path), so under the
    /// systemd driver every element must be where systemd puts it. A slash at the end is ignored.
    pub fn parse(path: &str, driver: CgroupDriver) -> Result<Self, CgroupNameError> {
        let trimmed = path.trim_end_matches('/');
        if trimmed.is_empty() {
            return Ok(Self::root());
        }
        match driver {
            CgroupDriver::Cgroupfs => Self::new(algebra::parse_cgroupfs(trimmed)),
            CgroupDriver::Systemd => {
                if !algebra::is_systemd_style(trimmed) {
                    return Err(CgroupNameError::NotASlice {
                        path: path.to_owned(),
                    });
                }
                let name = Self::new(algebra::parse_systemd(trimmed))?;
                let expected = name.path(driver);
                if expected.trim_start_matches('/') == trimmed.trim_start_matches('/') {
                    Ok(name)
                } else {
                    Err(CgroupNameError::Misplaced {
                        path: path.to_owned(),
                        expected,
                    })
                }
            }
        }
    }

    /// Reads `cgroupRoot` of the configuration: components joined by slashes, as `/pods/ci`. Under
    /// the systemd driver the path of a slice is taken as well, which kubelet would make
    /// `/x.slice.slice` of (kubernetes issue 92175).
    pub fn from_cgroup_root(text: &str, driver: CgroupDriver) -> Result<Self, CgroupNameError> {
        let is_slice = algebra::is_systemd_style(text.trim_end_matches('/'));
        let name = match driver {
            CgroupDriver::Systemd if is_slice => Self::parse(text, driver),
            _ => Self::parse(text, CgroupDriver::Cgroupfs),
        }?;
        let n_bytes = name.path(driver).len();
        if n_bytes > MAX_ROOT {
            return Err(CgroupNameError::RootTooLong { n_bytes });
        }
        Ok(name)
    }

    /// Reads `kubeReservedCgroup` or `systemReservedCgroup` of the configuration: under the cgroupfs driver
    /// the path of any cgroup, as of those that systemd makes; the unit or path of a slice under the systemd
    /// driver, where `.slice` may be left out. A service or scope is refused: kubelet would look for
    /// `x.service.slice`.
    pub fn reserved_cgroup(
        text: &str,
        driver: CgroupDriver,
    ) -> Result<CgroupPath, CgroupNameError> {
        let trimmed = text.trim_end_matches('/');
        match driver {
            CgroupDriver::Cgroupfs => {
                let path = format!("/{}", trimmed.trim_start_matches('/'));
                Ok(CgroupPath::new(path)?)
            }
            CgroupDriver::Systemd if trimmed.is_empty() => Ok(CgroupPath::root()),
            CgroupDriver::Systemd
                if trimmed.ends_with(".service") || trimmed.ends_with(".scope") =>
            {
                Err(CgroupNameError::NotASlice {
                    path: text.to_owned(),
                })
            }
            CgroupDriver::Systemd => Ok(Self::new(algebra::parse_systemd(trimmed))?.at(driver)),
        }
    }

    /// The cgroup of all pods below a configured root.
    pub fn kubepods(root: &Self) -> Self {
        root.child(KUBEPODS)
    }

    /// The cgroup of a QoS class below `self`, which is kubepods: for Guaranteed that itself.
    pub fn qos(&self, class: QosClass) -> Self {
        match class {
            QosClass::Guaranteed => self.clone(),
            QosClass::Burstable | QosClass::BestEffort => self.child(qos_component(class)),
        }
    }

    /// The cgroup of a pod below `self`, which is kubepods.
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> Result<Self, CgroupNameError> {
        self.qos(class).join(format!("{POD_PREFIX}{uid}"))
    }

    /// A child by one of the fixed names.
    fn child(&self, component: &'static str) -> Self {
        self.join(component)
            .expect("the fixed names are valid components")
    }
}

/// Guaranteed has no cgroup of its own; its name here is never a directory.
pub fn qos_component(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "guaranteed",
        QosClass::Burstable => "burstable",
        QosClass::BestEffort => "besteffort",
    }
}

/// The path of the cgroupfs driver, which is also the shortest way to write a name.
impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.path(CgroupDriver::Cgroupfs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(components: &[&str]) -> CgroupName {
        CgroupName::new(components.iter().copied()).expect("valid components")
    }

    #[test]
    fn both_drivers_map_names_to_paths_and_back() {
        for (components, cgroupfs, systemd) in [
            (&[][..], "/", "/"),
            (&["kubepods"], "/kubepods", "/kubepods.slice"),
            (
                &["kubepods", "burstable"],
                "/kubepods/burstable",
                "/kubepods.slice/kubepods-burstable.slice",
            ),
            (
                &["kubepods", "burstable", "pod1234-abcd-5678-efgh"],
                "/kubepods/burstable/pod1234-abcd-5678-efgh",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice",
            ),
            (
                &["Burstable", "pod-123"],
                "/Burstable/pod-123",
                "/Burstable.slice/Burstable-pod_123.slice",
            ),
            (
                &["my-root", "kubepods"],
                "/my-root/kubepods",
                "/my_root.slice/my_root-kubepods.slice",
            ),
        ] {
            let name = name(components);
            for (driver, path) in [
                (CgroupDriver::Cgroupfs, cgroupfs),
                (CgroupDriver::Systemd, systemd),
            ] {
                assert_eq!(name.path(driver), path);
                assert_eq!(CgroupPath::new(path), Ok(name.at(driver)));
                assert_eq!(
                    CgroupName::parse(path, driver).as_ref(),
                    Ok(&name),
                    "{path}"
                );
            }
            assert_eq!(name.to_string(), cgroupfs);
        }
    }

    #[test]
    fn components_that_would_not_come_back_are_refused() {
        let long = "a".repeat(256);
        for component in [
            "", "a_b", "a/b", ".", "..", "x.slice", ".slice", "a\0", "a\nb", &long,
        ] {
            assert!(CgroupName::new([component]).is_err(), "{component}");
            assert!(CgroupName::root().join(component).is_err(), "{component}");
        }
    }

    #[test]
    fn a_slice_path_must_be_complete() {
        for path in [
            "/kubelet.service",
            "/a",
            "/b.slice/a.slice",
            "/a-b.slice",
            "/a--b.slice",
        ] {
            assert!(
                CgroupName::parse(path, CgroupDriver::Systemd).is_err(),
                "{path}"
            );
        }
    }

    #[test]
    fn joining_leaves_the_parent_alone() {
        let kubepods = CgroupName::kubepods(&CgroupName::root());
        let a = kubepods.join("a").expect("valid");
        let b = kubepods.join("b").expect("valid");
        assert_eq!(
            (a.to_string(), b.to_string()),
            ("/kubepods/a".into(), "/kubepods/b".into())
        );
        assert_eq!(kubepods.to_string(), "/kubepods");
        assert_eq!(CgroupName::root().systemd_unit(), "-.slice");
        assert_eq!(b.systemd_unit(), "kubepods-b.slice");
    }

    #[test]
    fn configured_names_take_slices_where_kubelet_trips() {
        let root = |text: &str, driver| {
            CgroupName::from_cgroup_root(text, driver).map(|it| it.to_string())
        };
        assert_eq!(root("", CgroupDriver::Cgroupfs), Ok("/".into()));
        assert_eq!(root("/a/b/", CgroupDriver::Systemd), Ok("/a/b".into()));
        assert_eq!(
            root("/pods.slice", CgroupDriver::Systemd),
            Ok("/pods".into())
        );
        assert!(root("/pods.slice", CgroupDriver::Cgroupfs).is_err());
        let long = format!("/{}", ["a"; 384].join("/"));
        assert_eq!(root(&long, CgroupDriver::Cgroupfs), Ok(long.clone()));
        for (text, driver) in [
            (format!("{long}/b"), CgroupDriver::Cgroupfs),
            // Each directory of it has the names of those above in its own.
            (long, CgroupDriver::Systemd),
        ] {
            assert!(root(&text, driver).is_err(), "{driver:?}");
        }
        let reserved = |text| {
            let path = CgroupName::reserved_cgroup(text, CgroupDriver::Systemd);
            path.map(|it| it.to_string())
        };
        assert_eq!(reserved("/system.slice"), Ok("/system.slice".into()));
        assert_eq!(reserved("kubereserved"), Ok("/kubereserved.slice".into()));
        assert_eq!(
            reserved("/kube-reserved"),
            Ok("/kube.slice/kube-reserved.slice".into())
        );
        assert!(reserved("/system.slice/kubelet.service").is_err());
        let reserved = |text| {
            let path = CgroupName::reserved_cgroup(text, CgroupDriver::Cgroupfs);
            path.ok().map(|it| it.to_string())
        };
        for (text, path) in [
            ("/system.slice", Some("/system.slice")),
            (
                "system.slice/kube_let.service/",
                Some("/system.slice/kube_let.service"),
            ),
            ("/", Some("/")),
            ("/a/../b", None),
        ] {
            assert_eq!(reserved(text).as_deref(), path, "{text}");
        }
    }

    /// Any valid list comes back from both drivers' paths; any text at all is read without panic.
    #[test]
    fn names_round_trip_and_garbage_is_an_error() {
        const BYTES: &[u8] = b"abZ019-._/@:\\ \0\xc3";
        let mut seed = 11_u64;
        let mut next = |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((seed >> 33) % n).expect("small")
        };
        let mut n_valid = 0;
        for _ in 0..20_000 {
            let components: Vec<String> = (0..next(4))
                .map(|_| {
                    let bytes: Vec<u8> = (0..next(6)).map(|_| BYTES[next(16)]).collect();
                    String::from_utf8_lossy(&bytes).into_owned()
                })
                .collect();
            let text = components.join("/");
            for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
                for text in [&text, &format!("{text}.slice")] {
                    if let Ok(name) = CgroupName::parse(text, driver) {
                        assert_eq!(
                            CgroupName::parse(&name.path(driver), driver).as_ref(),
                            Ok(&name)
                        );
                    }
                    let _ = CgroupName::from_cgroup_root(text, driver);
                    let _ = CgroupName::reserved_cgroup(text, driver);
                }
            }
            let _ = algebra::to_systemd(&components);
            let _ = algebra::to_cgroupfs(&components);
            if let Ok(name) = CgroupName::new(components) {
                n_valid += 1;
                for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
                    assert_eq!(CgroupPath::new(name.path(driver)), Ok(name.at(driver)));
                    assert_eq!(
                        CgroupName::parse(&name.path(driver), driver).as_ref(),
                        Ok(&name)
                    );
                }
            }
        }
        assert!(n_valid > 1000, "{n_valid} valid names were tried");
    }
}
