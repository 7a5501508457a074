#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;

#[test]
fn limits_are_numbers_or_max() {
    for (text, expected) in [
        ("max\n", Some(Limit::Max)),
        ("0\n", Some(Limit::At(0))),
        ("18446744073709551615", Some(Limit::At(u64::MAX))),
        ("18446744073709551616", None),
        ("-1", None),
        ("maximum", None),
        ("max max", None),
        ("", None),
    ] {
        assert_eq!(parse_limit(text).ok(), expected, "{text:?}");
    }
}

#[test]
fn no_limit_of_v1_depends_on_the_page_size() {
    for (text, expected) in [
        // 4 KiB, 16 KiB and 64 KiB pages.
        ("9223372036854771712\n", Some(Limit::Max)),
        ("9223372036854759424\n", Some(Limit::Max)),
        ("9223372036854710272\n", Some(Limit::Max)),
        (
            "9223372036854644736\n",
            Some(Limit::At(9_223_372_036_854_644_736)),
        ),
        ("1073741824\n", Some(Limit::At(1 << 30))),
        ("max", None),
        ("-1", None),
    ] {
        assert_eq!(parse_memory_limit_v1(text).ok(), expected, "{text:?}");
    }
}

#[test]
fn bandwidth_is_a_quota_and_a_period() {
    let bandwidth = |quota, period| {
        Some(CpuBandwidth {
            quota,
            period: Micros(period),
        })
    };
    for (text, expected) in [
        ("max 100000\n", bandwidth(Limit::Max, 100_000)),
        ("50000 100000\n", bandwidth(Limit::At(50_000), 100_000)),
        ("50000\n", None),
        ("50000 max\n", None),
        ("1 2 3", None),
        ("", None),
    ] {
        assert_eq!(parse_cpu_max(text).ok(), expected, "{text:?}");
    }
    for (quota, period, expected) in [
        ("-1\n", "100000\n", bandwidth(Limit::Max, 100_000)),
        ("5000\n", "100000\n", bandwidth(Limit::At(5000), 100_000)),
        ("max", "100000", None),
        ("-1", "", None),
    ] {
        assert_eq!(
            parse_cfs_bandwidth(quota, period).ok(),
            expected,
            "{quota:?}"
        );
    }
}

#[test]
fn memory_of_both_versions_has_the_same_meaning() {
    let v2 = "anon 100\nfile 200\nkernel 30\nshmem 40\nfile_mapped 50\ninactive_file 60\n\
              active_file 70\nworkingset_refault_anon 1\npgfault 8\npgmajfault 2\n";
    let v1 = "cache 1\nrss 1\ninactive_file 1\nhierarchical_memory_limit 9\ntotal_cache 200\n\
              total_rss 100\ntotal_shmem 40\ntotal_mapped_file 50\ntotal_inactive_file 60\n\
              total_active_file 70\ntotal_workingset_refault_anon 1\ntotal_pgfault 8\n\
              total_pgmajfault 2\n";
    let v2 = MemoryStat::parse_v2(v2).unwrap();
    assert_eq!(v2.kernel, Some(Bytes(30)));
    let v1 = MemoryStat::parse_v1(v1).unwrap();
    assert_eq!(v1, MemoryStat { kernel: None, ..v2 });
    assert_eq!(v1.working_set(Bytes(300)), Some(Bytes(240)));
    assert_eq!(v1.working_set(Bytes(10)), Some(Bytes(0)));
    assert_eq!(MemoryStat::default().working_set(Bytes(10)), None);
}

#[test]
fn events_of_an_older_kernel_lack_the_newer_keys() {
    let events = MemoryEvents::parse("low 0\nhigh 3\nmax 5\noom 2\noom_kill 1\n").unwrap();
    assert_eq!((events.high, events.oom_kill), (Some(3), Some(1)));
    assert_eq!(events.oom_group_kill, None);
    let events = MemoryEvents::parse("oom_kill 1\noom_group_kill 4\nsock_throttled 9\n").unwrap();
    assert_eq!(events.oom_group_kill, Some(4));
}

#[test]
fn oom_control_has_flags_and_a_count() {
    let control = OomControl::parse("oom_kill_disable 0\nunder_oom 1\noom_kill 7\n").unwrap();
    assert_eq!(
        control,
        OomControl {
            is_kill_disabled: Some(false),
            is_under_oom: Some(true),
            oom_kill: Some(7),
        }
    );
    assert!(OomControl::parse("under_oom 2\n").is_err());
}

#[test]
fn cpu_time_is_in_nanoseconds_for_both_versions() {
    let v2 = "usage_usec 7\nuser_usec 5\nsystem_usec 2\nnr_periods 9\nnr_throttled 3\n\
              throttled_usec 4\nnr_bursts 0\n";
    let v2 = CpuStat::parse(v2).unwrap();
    assert_eq!((v2.usage_ns, v2.throttled_ns), (Some(7000), Some(4000)));
    let v1 = CpuStat::parse("nr_periods 9\nnr_throttled 3\nthrottled_time 4000\n").unwrap();
    assert_eq!(v1.usage_ns, None);
    assert_eq!(
        (v1.n_periods, v1.n_throttled, v1.throttled_ns),
        (v2.n_periods, v2.n_throttled, v2.throttled_ns)
    );
    let huge = CpuStat::parse("usage_usec 18446744073709551615\n").unwrap();
    assert_eq!(huge.usage_ns, Some(u64::MAX));
    assert_eq!(parse_cpuacct_usage("123456789\n"), Ok(123_456_789));
}

#[test]
fn populated_is_always_told() {
    let events = CgroupEvents::parse("populated 1\nfrozen 0\n").unwrap();
    assert!(events.is_populated);
    assert_eq!(events.is_frozen, Some(false));
    assert_eq!(
        CgroupEvents::parse("populated 0\n").unwrap().is_frozen,
        None
    );
    for text in [
        "",
        "frozen 0\n",
        "populated\n",
        "populated 2\n",
        "populated -1\n",
    ] {
        assert!(CgroupEvents::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn processes_of_another_namespace_are_left_out() {
    assert_eq!(parse_pids("1\n0\n4194304\n"), Ok(vec![1, 4_194_304]));
    assert_eq!(parse_pids(""), Ok(vec![]));
    assert!(parse_pids("1\nx\n").is_err());
    assert!(parse_pids("-1\n").is_err());
}

/// Every parser against every text: whatever comes, a value or an error.
#[test]
fn hostile_texts_never_panic() {
    let texts = [
        "",
        "\n\n\n",
        "\0",
        "anon",
        "anon \n",
        " anon 1",
        "anon  1",
        "anon\t1",
        "anon -1",
        "anon +1",
        "anon 1 2",
        "anon 99999999999999999999999",
        "total_rss 0x10",
        "usage_usec 1e9",
        "populated \u{661}",
        "oom_kill \u{fffd}\u{fffd}",
        "pgfault pgfault",
    ];
    let long = "anon 1\n".repeat(10_000);
    for text in texts.into_iter().chain([long.as_str()]) {
        let _ = parse_limit(text);
        let _ = parse_memory_limit_v1(text);
        let _ = parse_cpu_max(text);
        let _ = parse_cfs_bandwidth(text, text);
        let _ = parse_count(text);
        let _ = parse_pids(text);
        let _ = MemoryStat::parse_v1(text);
        let _ = MemoryStat::parse_v2(text);
        let _ = MemoryEvents::parse(text);
        let _ = OomControl::parse(text);
        let _ = CpuStat::parse(text);
        let _ = CgroupEvents::parse(text);
    }
    for text in [
        "anon -1",
        "anon +1",
        "anon 1 2",
        "anon 99999999999999999999999",
    ] {
        assert!(MemoryStat::parse_v2(text).is_err(), "{text:?}");
    }
    assert_eq!(MemoryStat::parse_v2(&long).unwrap().anon, Some(Bytes(1)));
}

#[test]
fn what_the_root_uses_and_what_the_kernel_drops_come_from_the_same_figures() {
    let gib = |n: u64| n << 30;
    let text = format!(
        "anon {}\nfile {}\ninactive_file {}\nactive_file {}\nfile_mapped {}\nfile_dirty {}\nfile_writeback {}\n",
        gib(6),
        gib(5),
        gib(3),
        gib(2),
        gib(1),
        gib(1),
        gib(1)
    );
    let stat = MemoryStat::parse_v2(&text).unwrap();
    assert_eq!(stat.in_use(), Some(gib(11)));
    assert_eq!(stat.working_set(Bytes(gib(11))), Some(Bytes(gib(8))));
    assert_eq!(stat.clean(), gib(2) / 8 * 7);
    assert_eq!(MemoryStat::default().in_use(), None);
    assert_eq!(MemoryStat::default().clean(), 0);
}
