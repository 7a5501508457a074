use super::*;
use crate::sys::scratch::Scratch;

fn mount(fs_type: &str, root: &str, at: &str, options: &str) -> Mount {
    Mount {
        root: root.to_owned(),
        mount_point: at.into(),
        fs_type: fs_type.to_owned(),
        super_options: options.split(',').map(str::to_owned).collect(),
    }
}

#[test]
fn the_line_of_the_controller_counts() {
    let of_memory = |text| cgroup_of(text, "memory");
    let v1 = "12:memory:/a/b\n3:cpu,cpuacct:/c\n0::/unified\n";
    assert_eq!(of_memory(v1).as_deref(), Some("/a/b"));
    assert_eq!(of_memory("0::/u/x\n").as_deref(), Some("/u/x"));
    assert_eq!(of_memory("x\n"), None);
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
fn the_source_of_a_mount_is_found_below_any_name() {
    let scratch = Scratch::new("mount-source");
    let text = "1 0 254:0 / / rw - ext4 /dev/root rw\n\
                2 1 254:16 / /var rw shared:1 - xfs /dev/vdb rw\n\
                3 1 0:5 / /v rw - tmpfs none rw\n\
                a line that is none\n\
                4 1 254:32 / /mnt/a\\040b\\134c rw - ext4 /dev/my\\040disk rw\n\
                5 1 254:48 / /over rw - ext4 /dev/vdc rw\n\
                6 5 254:64 / /over rw - ext4 /dev/vdd rw\n";
    let root = Root::at(scratch.directory());
    root.create_dir_all("/proc/self").expect("a directory");
    scratch.write("proc/self/mountinfo", text);
    for (path, source) in [
        ("/var/lib/ballast", "/dev/vdb"),
        ("/varied", "/dev/root"),
        ("/mnt/a b\\c/state", "/dev/my disk"),
        ("/mnt/a", "/dev/root"),
        ("/over/state", "/dev/vdd"),
    ] {
        let found = source_of(&root, Path::new(path));
        assert_eq!(found.as_deref(), Some(source), "{path}");
    }
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
            CgroupLayout::choose(&mounts, &parse_controllers("cpu memory")),
            Err(NoHierarchy),
            "{text:?}"
        );
    }
}

#[test]
fn membership_names_hierarchies_and_paths() {
    let lines = parse_membership("9:name=systemd:/\n4:cpu,cpuacct:/a:b\nnone\n0::/init.scope\n");
    let ids: Vec<_> = lines.iter().map(|it| it.hierarchy_id).collect();
    assert_eq!(ids, [9, 4, 0]);
    assert_eq!(lines[0].controllers, [ControllerName::from("systemd")]);
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
        BTreeSet::from([ControllerName::from("memory")])
    );
}

#[test]
fn what_init_has_mounted() {
    let scratch = Scratch::new("init-mounts");
    let root = Root::at(scratch.directory());
    assert!(are_of_init(&root) && init_has(&root, 7), "nobody says");
    for pid in ["1", "self"] {
        root.create_dir_all(format!("/proc/{pid}"))
            .expect("a directory");
    }
    let of_init = "36 35 0:31 / /sys/fs/bpf rw,relatime shared:9 - bpf bpf rw,mode=700\n\
                   37 35 8:17 / /mnt rw - ext4 /dev/sdb1 rw\n";
    scratch.write("proc/1/mountinfo", of_init);
    assert!(are_of_init(&root), "nobody says of itself");
    for ((major, minor), has) in [
        ((0, 31), true),
        ((8, 17), true),
        ((0, 3), false),
        ((31, 0), false),
    ] {
        let device = nix::sys::stat::makedev(major, minor);
        assert_eq!(init_has(&root, device), has, "{major}:{minor}");
    }
    assert!(type_of(&root, 0).is_err(), "nobody says");
    scratch.write("proc/self/mountinfo", of_init);
    for ((major, minor), expected) in [
        ((0, 31), Some("bpf")),
        ((8, 17), Some("ext4")),
        ((7, 0), None),
    ] {
        let device = nix::sys::stat::makedev(major, minor);
        let found = type_of(&root, device).expect("it is read");
        assert_eq!(found.as_deref(), expected);
    }
    for (own, expected) in [
        ("37 35 8:17 / / rw - ext4 /dev/sdb1 rw\n", true),
        ("136 135 0:31 / /sys/fs/bpf rw - bpf bpf rw\n", false),
    ] {
        scratch.write("proc/self/mountinfo", own);
        assert_eq!(are_of_init(&root), expected, "{own}");
    }
}
