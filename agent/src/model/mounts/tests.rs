#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;

fn mount(fs_type: &str, root: &str, at: &str, options: &str) -> Mount {
    Mount {
        root: root.to_owned(),
        mount_point: at.into(),
        fs_type: fs_type.to_owned(),
        super_options: options.split(',').map(str::to_owned).collect(),
    }
}

fn known() -> BTreeSet<ControllerName> {
    parse_controllers("cpu cpuacct cpuset memory pids systemd")
}

#[track_caller]
fn legacy(mounts: &[Mount]) -> (BTreeMap<ControllerName, PathBuf>, Option<PathBuf>) {
    match CgroupLayout::choose(mounts, &known()).unwrap() {
        CgroupLayout::Legacy {
            controllers,
            hybrid,
        } => (controllers, hybrid),
        CgroupLayout::Unified { mount } => panic!("unified at {}", mount.display()),
    }
}

#[test]
fn cgroup2_at_the_usual_place_is_unified() {
    let layout = CgroupLayout::choose(
        &[
            mount("tmpfs", "/", CGROUP_ROOT, "rw"),
            mount("cgroup2", "/", CGROUP_ROOT, "rw"),
        ],
        &known(),
    );
    let mount = PathBuf::from(CGROUP_ROOT);
    assert_eq!(layout, Ok(CgroupLayout::Unified { mount }));
}

#[test]
fn a_mount_that_covers_cgroup2_hides_it() {
    let (controllers, hybrid) = legacy(&[
        mount("cgroup2", "/", CGROUP_ROOT, "rw"),
        mount("tmpfs", "/", CGROUP_ROOT, "rw"),
        mount("cgroup", "/", "/sys/fs/cgroup/memory", "rw,memory"),
    ]);
    assert_eq!(controllers.len(), 1);
    assert_eq!(hybrid.as_deref(), Some(Path::new(CGROUP_ROOT)));
}

#[test]
fn cgroup2_alone_is_unified_wherever_it_is() {
    let layout = CgroupLayout::choose(&[mount("cgroup2", "/", "/cgroup2", "rw")], &known());
    let mount = PathBuf::from("/cgroup2");
    assert_eq!(layout, Ok(CgroupLayout::Unified { mount }));
}

#[test]
fn comounted_controllers_share_one_mount_point() {
    let mounts = [
        mount(
            "cgroup",
            "/",
            "/sys/fs/cgroup/cpu,cpuacct",
            "rw,cpu,cpuacct",
        ),
        mount("cgroup", "/", "/sys/fs/cgroup/systemd", "rw,xattr,systemd"),
        mount("cgroup2", "/", "/sys/fs/cgroup/unified", "rw"),
    ];
    let (controllers, hybrid) = legacy(&mounts);
    assert_eq!(controllers.len(), 3);
    assert_eq!(controllers["cpu"], controllers["cpuacct"]);
    assert_eq!(hybrid.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    let layout = CgroupLayout::choose(&mounts, &known()).unwrap();
    let mount_points = layout.mount_points();
    assert_eq!(mount_points.len(), 2);
    assert_eq!(
        mount_points[Path::new("/sys/fs/cgroup/cpu,cpuacct")].len(),
        2
    );
}

#[test]
fn the_whole_hierarchy_below_the_usual_place_is_preferred() {
    for (name, mounts, expected) in [
        (
            "a shorter path elsewhere does not win",
            vec![
                mount("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu"),
                mount("cgroup", "/", "/cgrp", "rw,cpu"),
            ],
            "/sys/fs/cgroup/cpu,cpuacct",
        ),
        (
            "a part of the hierarchy does not win",
            vec![
                mount("cgroup", "/docker/1", "/sys/fs/cgroup/cpu", "rw,cpu"),
                mount("cgroup", "/", "/mnt/container/cgroup/cpu", "rw,cpu"),
            ],
            "/mnt/container/cgroup/cpu",
        ),
        (
            "the shortest of several",
            vec![
                mount("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu"),
                mount("cgroup", "/", "/sys/fs/cgroup/cpu", "rw,cpu"),
            ],
            "/sys/fs/cgroup/cpu",
        ),
        (
            "the first of equals",
            vec![
                mount("cgroup", "/", "/b", "rw,cpu"),
                mount("cgroup", "/", "/a", "rw,cpu"),
            ],
            "/b",
        ),
    ] {
        let (controllers, _) = legacy(&mounts);
        assert_eq!(controllers["cpu"], Path::new(expected), "{name}");
    }
}

#[test]
fn missing_controllers_are_those_of_the_version() {
    let layout = CgroupLayout::choose(
        &[mount("cgroup", "/", "/sys/fs/cgroup/m", "rw,memory,cpuset")],
        &known(),
    );
    let line = |hierarchy_id, controllers: &[&str], path: &str| Membership {
        hierarchy_id,
        controllers: controllers
            .iter()
            .map(|it| ControllerName::from(*it))
            .collect(),
        path: path.to_owned(),
    };
    let membership = [
        line(4, &["memory"], "/a"),
        line(3, &["cpuset"], "/"),
        line(0, &[], "/b"),
    ];
    let facts = CgroupFacts::new(layout.unwrap(), BTreeSet::new(), &membership);
    let missing: Vec<_> = facts.missing_controllers();
    assert_eq!(missing, ["cpu", "cpuacct"].map(ControllerName::from));
    assert_eq!(facts.hierarchy_ids["memory"], 4);
    assert_eq!(facts.own_paths["memory"], "/a");
    assert_eq!(facts.own_paths[""], "/b");

    let layout = CgroupLayout::Unified {
        mount: CGROUP_ROOT.into(),
    };
    let facts = CgroupFacts::new(layout, parse_controllers("cpu memory pids"), &membership);
    assert_eq!(
        facts.missing_controllers(),
        [ControllerName::from("cpuset")]
    );
    assert!(facts.hierarchy_ids.is_empty());
}
