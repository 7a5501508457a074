//! What the path of a cgroup says on a Kubernetes node.

use ballast::model::cgroup_path::CgroupPath;
use ballast::model::kube_cgroup::{KubeLevel, parse};

/// A root and a path, a line each. What is below a cgroup of a pod is of the same pod, and what is below
/// a container of the same container, whatever its name.
pub fn run(data: &[u8]) {
    let Some((root, path)) = std::str::from_utf8(data)
        .ok()
        .and_then(|it| it.split_once('\n'))
    else {
        return;
    };
    let (Ok(root), Ok(path)) = (CgroupPath::new(root), CgroupPath::new(path)) else {
        return;
    };
    let Some(found) = parse(&path, &root) else {
        return;
    };
    assert!(path.as_str().contains(found.inner), "{path}");
    let is_container = matches!(
        found.level,
        KubeLevel::Container { .. } | KubeLevel::Monitor { .. }
    );
    for child in ["x", "kubepods", &"0".repeat(64), "a:b:c"] {
        let Ok(below) = path.join(child) else {
            continue;
        };
        // The mark of a removed cgroup is one at the end alone.
        if path.as_str().ends_with(" (deleted)") {
            continue;
        }
        let nested = parse(&below, &root);
        if is_container || !found.inner.is_empty() {
            let nested = nested.expect("below a cgroup of a pod is one of the same pod");
            assert_eq!(nested.level, found.level, "{below}");
            assert!(nested.inner.ends_with(child), "{below}");
        } else if let (KubeLevel::Pod { uid, .. }, Some(nested)) = (&found.level, nested) {
            let (KubeLevel::Pod { uid: of, .. } | KubeLevel::Container { uid: of, .. }) =
                nested.level
            else {
                panic!("{below} is no cgroup of the pod {uid}");
            };
            assert_eq!(of, *uid, "{below}");
        }
    }
}
