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

fn known() -> BTreeSet<Controller> {
    parse_controllers("cpu cpuacct cpuset memory pids systemd")
}

#[track_caller]
fn legacy(mounts: &[Mount]) -> (BTreeMap<Controller, PathBuf>, Option<PathBuf>) {
    match CgroupLayout::choose(mounts, &known()).unwrap() {
        CgroupLayout::Legacy {
            controllers,
            hybrid,
        } => (controllers, hybrid),
        CgroupLayout::Unified { mount } => panic!("unified at {}", mount.display()),
    }
}

#[test]
fn mountinfo_lines_are_read_with_their_escapes() {
    let text = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 master:2 - tmpfs tmpfs rw\n\
                40 31 0:37 / /mnt/a\\040b\\134c rw - cgroup  rw,xattr,name=systemd\n\
                a line that is none\n\
                41 31 0:38 /kubepods /run/x\\011y\\9z rw - cgroup2 cgroup2 rw,nsdelegate\n";
    let mounts = parse_mountinfo(text);
    assert_eq!(
        mounts,
        [
            mount("tmpfs", "/", "/sys/fs/cgroup", "rw"),
            mount("cgroup", "/", "/mnt/a b\\c", "rw,xattr,systemd"),
            mount("cgroup2", "/kubepods", "/run/x\ty\\9z", "rw,nsdelegate"),
        ]
    );
}

#[test]
fn an_escape_that_is_cut_or_too_large_is_kept_as_it_is() {
    for text in ["\\", "\\04", "\\777", "\\4x0", "a\\"] {
        assert_eq!(unescape(text.as_bytes()), Path::new(text), "{text}");
    }
}

#[test]
fn hostile_mount_tables_are_read_without_a_panic() {
    for text in [
        "",
        "-",
        "1 2 3",
        "1 2 0:1 / / rw - ",
        "1 2 0:1 / / rw shared: - cgroup cgroup rw",
        "99999999999 2 0:1 / / rw - cgroup cgroup rw",
        "\u{0}\u{fffd} \n - - - - - - - - - -",
    ] {
        let mounts = parse_mountinfo(text);
        assert_eq!(
            CgroupLayout::choose(&mounts, &known()),
            Err(NoHierarchy),
            "{text:?}"
        );
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
fn membership_names_hierarchies_and_paths() {
    let lines = parse_membership("9:name=systemd:/\n4:cpu,cpuacct:/a:b\nnone\n0::/init.scope\n");
    let ids: Vec<_> = lines.iter().map(|it| it.hierarchy_id).collect();
    assert_eq!(ids, [9, 4, 0]);
    assert_eq!(lines[0].controllers, [Controller::from("systemd")]);
    assert_eq!(lines[1].controllers.len(), 2);
    assert_eq!(lines[1].path, "/a:b");
    assert!(lines[2].controllers.is_empty());
}

#[test]
fn only_enabled_controllers_count() {
    let text =
        "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t4\t16\t1\npids\t0\t1\t0\nx\n";
    assert_eq!(
        parse_enabled_controllers(text),
        BTreeSet::from([Controller::from("memory")])
    );
}

#[test]
fn missing_controllers_are_those_of_the_version() {
    let layout = CgroupLayout::choose(
        &[mount("cgroup", "/", "/sys/fs/cgroup/m", "rw,memory,cpuset")],
        &known(),
    );
    let membership = parse_membership("4:memory:/a\n3:cpuset:/\n0::/b\n");
    let facts = CgroupFacts::new(layout.unwrap(), BTreeSet::new(), &membership);
    let missing: Vec<_> = facts.missing_controllers();
    assert_eq!(missing, ["cpu", "cpuacct"].map(Controller::from));
    assert_eq!(facts.hierarchy_ids["memory"], 4);
    assert_eq!(facts.own_paths["memory"], "/a");
    assert_eq!(facts.own_paths[""], "/b");

    let layout = CgroupLayout::Unified {
        mount: CGROUP_ROOT.into(),
    };
    let facts = CgroupFacts::new(layout, parse_controllers("cpu memory pids"), &membership);
    assert_eq!(facts.missing_controllers(), [Controller::from("cpuset")]);
    assert!(facts.hierarchy_ids.is_empty());
}
