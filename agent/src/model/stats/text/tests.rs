#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;
use crate::model::stats::IoByOperation;

fn device(major: u32, minor: u32, counts: [u64; 4]) -> DeviceIo {
    let [read_bytes, reads, written_bytes, writes] = counts;
    DeviceIo {
        number: DeviceNumber { major, minor },
        name: None,
        read: IoCounts {
            bytes: read_bytes,
            operations: reads,
        },
        written: IoCounts {
            bytes: written_bytes,
            operations: writes,
        },
        ..DeviceIo::default()
    }
}

#[test]
fn both_versions_tell_the_same_of_a_device() {
    let v2 = "254:16 \n\
        254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=9 dios=9\n\
        8:0 rbytes=1 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n";
    let expected = [
        device(8, 0, [1, 1, 0, 0]),
        device(254, 0, [4096, 1, 8192, 2]),
    ];
    assert_eq!(parse_io_stat(v2).unwrap(), expected);
    let bytes = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 0\n254:0 Async 12288\n\
        254:0 Discard 0\n254:0 Total 12288\n8:0 Read 1\n8:0 Write 0\nTotal 12289\n";
    let operations = "254:0 Read 1\n254:0 Write 2\n8:0 Read 1\n8:0 Write 0\nTotal 4\n";
    let found = parse_blkio(bytes, operations).unwrap();
    let by_operation = IoByOperation {
        synchronous: 0,
        asynchronous: 12288,
        discarded: 0,
        total: 12288,
    };
    assert_eq!(found[1].by_operation, Some(by_operation));
    let as_of_v2 = |it: DeviceIo| DeviceIo {
        by_operation: None,
        ..it
    };
    assert!(found.into_iter().map(as_of_v2).eq(expected));
    assert_eq!(parse_blkio("Total 0\n", "Total 0\n").unwrap(), []);
    assert_eq!(parse_io_stat("").unwrap(), []);
    let costly = "254:0 rbytes=1 wbytes=0 rios=1 wios=0 cost.vrate=100.00 cost.usage=5 cost.wait=6 \
        cost.indebt=7 cost.indelay=8\n";
    let cost = IoCost {
        usage_us: Some(5),
        wait_us: Some(6),
        in_debt_us: Some(7),
        in_delay_us: Some(8),
    };
    assert_eq!(parse_io_stat(costly).unwrap()[0].cost, cost);
    assert!(parse_io_stat("254:0 rbytes=many\n").is_err());
    // What is not told is not 0.
    for partial in ["wbytes=8192 rios=1 wios=2", "rbytes=1 wbytes=0 rios=1"] {
        assert_eq!(parse_io_stat(&format!("254:0 {partial}\n")).unwrap(), []);
    }
    // Devices without numbers in front, and without a name.
    let joined = "(unknown) rbytes=1 wbytes=0 rios=1 wios=0\n7:7 7:6 7:4 rbytes=28672 wbytes=0 rios=7 wios=0\n\
                  (unknown) (unknown) 254:0 rbytes=2 wbytes=0 rios=1 wios=0\n7:5 (unknown) rbytes=3\n";
    let found = parse_io_stat(joined).unwrap();
    let found = found
        .iter()
        .map(|it| (it.number.major, it.number.minor, it.read.bytes));
    assert_eq!(found.collect::<Vec<_>>(), [(7, 4, 28672), (254, 0, 2)]);
    let v1 = parse_blkio(
        "(unknown) Read 5\n254:0 Read 4096\nTotal 4101\n",
        "(unknown) Read 1\n",
    )
    .unwrap();
    assert_eq!((v1.len(), v1[0].read.bytes), (1, 4096));
    assert!(parse_blkio("254 Read 1\n", "").is_err());
}

#[test]
fn pages_of_numa_nodes_are_those_of_the_whole_cgroup() {
    let v1 = "total=9 N0=5 N1=4\nfile=1 N0=1 N1=0\nhierarchical_total=60 N0=20 N1=40\n\
        hierarchical_file=30 N0=10 N1=20\nhierarchical_anon=18 N0=6 N1=12\n\
        hierarchical_unevictable=12 N0=4 N1=8\n";
    let v2 = "anon N0=24576 N1=49152\nfile N0=40960 N1=81920\nkernel_stack N0=1 N1=1\n\
        unevictable N0=16384 N1=32768\n";
    let pages = |node, n: u64| NumaPages {
        node,
        anon: 6 * n,
        file: 10 * n,
        unevictable: 4 * n,
    };
    let expected = [pages(0, 1), pages(1, 2)];
    assert_eq!(parse_numa_stat(v1, false, 4096).unwrap(), expected);
    assert_eq!(parse_numa_stat(v2, true, 4096).unwrap(), expected);
    assert!(parse_numa_stat("anon N0=?\n", true, 4096).is_err());
}

#[test]
fn an_interface_has_counters_of_both_directions() {
    let text = "Inter-|   Receive                 |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n    \
         lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
         eth0:100 10 1 2 3 4 5 6 200 20 7 8 0 0 0 0\n";
    let found = parse_net_dev(text, |name| name != "lo").unwrap();
    let counts = |bytes, packets, errors, dropped| TrafficCounts {
        bytes,
        packets,
        errors,
        dropped,
    };
    let eth0 = InterfaceStats {
        name: "eth0".to_owned(),
        received: counts(100, 10, 1, 2),
        transmitted: counts(200, 20, 7, 8),
    };
    assert_eq!(found, [eth0]);
    assert!(parse_net_dev("eth0: 1 2 3\n", |_| true).is_err());
}

#[test]
fn no_two_interfaces_have_one_name() {
    let counts = "1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0";
    // The first two differ in bytes that are no text, the last in a space that the kernel takes for a letter.
    let names = ["a\u{fffd}", "a\u{fffd}", "a", "a\u{3000}"];
    let text = names.map(|it| format!("{it:>6}: {counts}\n")).concat();
    let found = parse_net_dev(&text, |_| true).unwrap();
    let found: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(found, ["a", "a\u{3000}"]);
}

#[test]
fn disks_without_traffic_are_left_out() {
    let text = "   7  0 loop0 0 0 0 0 0 0 0 0 0 0 0\n \
        254  0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
    let vda = DiskStats {
        name: "vda".to_owned(),
        number: DeviceNumber {
            major: 254,
            minor: 0,
        },
        reads: DiskCounts {
            completed: 1,
            merged: 2,
            sectors: 3,
            time_ms: 4,
        },
        writes: DiskCounts {
            completed: 5,
            merged: 6,
            sectors: 7,
            time_ms: 8,
        },
        n_in_flight: 9,
        busy_ms: 10,
        weighted_busy_ms: 11,
    };
    assert_eq!(parse_diskstats(text).unwrap(), [vda]);
    assert!(parse_diskstats("254 0 vda 1 2\n").is_err());
}

#[test]
fn small_texts_are_read() {
    let times = parse_cpuacct_stat("user 150\nsystem 7\n").unwrap();
    assert_eq!(times, (Some(1_500_000_000), Some(70_000_000)));
    assert_eq!(parse_fork_refusals("max 3\n").unwrap(), Some(3));
    assert_eq!(parse_fork_refusals("").unwrap(), None);
    for (limits, expected) in [
        (
            "Max open files            1024       4096  files\n",
            Some(1024),
        ),
        (
            "Max open files  unlimited  unlimited  files\n",
            Some(u64::MAX),
        ),
        ("Max processes  1  1  processes\n", None),
    ] {
        assert_eq!(parse_max_open_files(limits), expected, "{limits}");
    }
    for (size, name) in [(64 << 10, "64KB"), (2 << 20, "2MB"), (1 << 30, "1GB")] {
        assert_eq!(hugetlb_name(size), name);
    }
}
