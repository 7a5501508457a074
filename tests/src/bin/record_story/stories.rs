//! What happens in the stories.
//!
//! In a policy `MEMORY-N` and `PIDS-N` stand for N less than what the node has available when the
//! story begins: the node is a real one, and the same amounts would not do on another.

use std::time::Duration;

/// A story to be recorded.
pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) lasts: Duration,
    /// Of kubepods, bytes.
    pub(crate) limit: Option<u64>,
    /// Options of a tmpfs that stands for the file system of the node.
    pub(crate) tmpfs: Option<&'static str>,
    /// Fields of the agent's configuration.
    pub(crate) policy: &'static str,
    pub(crate) pods: &'static [PodSpec],
    /// What runs beside the pods from some time on.
    pub(crate) outside: Option<(Duration, &'static [&'static str])>,
    /// Whether anybody is evicted.
    pub(crate) ends_somebody: bool,
}

/// A pod, or several alike.
pub(crate) struct PodSpec {
    pub(crate) name: &'static str,
    pub(crate) n: usize,
    pub(crate) priority: i32,
    /// Of memory, bytes; 0: a BestEffort pod.
    pub(crate) request: i64,
    pub(crate) starts_at: Duration,
    /// Of `hog`; `DIR` is the pod's volume.
    pub(crate) mode: &'static [&'static str],
}

const fn pod(name: &'static str, request: i64, mode: &'static [&'static str]) -> PodSpec {
    PodSpec {
        name,
        n: 1,
        priority: 0,
        request,
        starts_at: Duration::ZERO,
        mode,
    }
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const MIB: i64 = 1 << 20;

/// 100 MiB of 1 GiB, the node itself left out of it.
const PODS_SHORT: &str = "kubelet: {evictionHard: {memory.available: 100Mi}}";

const WEB: PodSpec = pod("web", 300 * MIB, &["hold", "209715200"]);

pub(crate) const STORIES: &[Story] = &[
    Story {
        name: "leak",
        title: "a pod leaks 100 MB/s until the pods have less than 100Mi left",
        lasts: seconds(12),
        limit: Some(1 << 30),
        tmpfs: None,
        policy: PODS_SHORT,
        pods: &[
            WEB,
            PodSpec {
                starts_at: seconds(2),
                ..pod("leak", 0, &["leak", "100000000"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "burst",
        title: "a pod takes 850 MiB at once",
        lasts: seconds(6),
        limit: Some(1 << 30),
        tmpfs: None,
        policy: PODS_SHORT,
        pods: &[
            pod("idle", 100 * MIB, &["hold", "52428800"]),
            PodSpec {
                starts_at: seconds(2),
                ..pod("burst", 0, &["hold", "943718400"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "page-cache-flood",
        title: "a pod reads a file larger than the limit again and again: nobody has to go",
        lasts: seconds(10),
        limit: Some(512 << 20),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {memory.available: 50Mi}}",
        pods: &[
            pod("web", 100 * MIB, &["hold", "52428800"]),
            PodSpec {
                starts_at: seconds(1),
                ..pod("reader", 0, &["cache", "DIR/file", "838860800"])
            },
        ],
        outside: None,
        ends_somebody: false,
    },
    Story {
        name: "fork-bomb",
        title: "a pod makes process after process until 300 are left of what the node may have",
        lasts: seconds(8),
        limit: Some(2 << 30),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {pid.available: \"PIDS-300\"}}",
        pods: &[
            pod("web", 100 * MIB, &["hold", "52428800"]),
            PodSpec {
                starts_at: seconds(1),
                ..pod("bomb", 0, &["bomb", "600"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "thread-bomb",
        title: "a pod of one process makes thread after thread, beside one of many processes",
        lasts: seconds(8),
        limit: Some(2 << 30),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {pid.available: \"PIDS-400\"}}",
        pods: &[
            pod("workers", 200 * MIB, &["group", "30", "1048576"]),
            PodSpec {
                starts_at: seconds(1),
                ..pod("threads", 200 * MIB, &["threads", "800"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "flapping",
        title: "a pod takes and gives back memory around a soft threshold, never for its grace",
        lasts: seconds(16),
        limit: Some(1 << 30),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {memory.available: 50Mi}, \
                 evictionSoft: {allocatableMemory.available: 400Mi}, \
                 evictionSoftGracePeriod: {allocatableMemory.available: 4s}, \
                 evictionPressureTransitionPeriod: 5s}",
        pods: &[
            WEB,
            PodSpec {
                starts_at: seconds(1),
                ..pod("wave", 0, &["wave", "524288000", "1500"])
            },
        ],
        outside: None,
        ends_somebody: false,
    },
    Story {
        name: "soft-grace",
        title: "a pod stays above a soft threshold for its grace and is asked to go",
        lasts: seconds(10),
        limit: Some(1 << 30),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {memory.available: 50Mi}, \
                 evictionSoft: {allocatableMemory.available: 400Mi}, \
                 evictionSoftGracePeriod: {allocatableMemory.available: 3s}, \
                 evictionMaxPodGracePeriod: 5}",
        pods: &[
            WEB,
            PodSpec {
                starts_at: seconds(1),
                ..pod("cache", 0, &["hold", "524288000"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "many-small-pods",
        title: "thirty pods of which each leaks 2 MB/s: one after the other has to go",
        lasts: seconds(14),
        limit: Some(512 << 20),
        tmpfs: None,
        policy: "kubelet: {evictionHard: {memory.available: 60Mi}, \
                 evictionMinimumReclaim: {memory.available: 20Mi}}",
        pods: &[PodSpec {
            n: 30,
            ..pod("small", 0, &["leak", "2000000"])
        }],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "priorities",
        title: "two pods leak, and the one of lower priority leaks less",
        lasts: seconds(12),
        limit: Some(1 << 30),
        tmpfs: None,
        policy: PODS_SHORT,
        pods: &[
            PodSpec {
                priority: 1000,
                ..pod("important", 0, &["leak", "60000000"])
            },
            pod("batch", 0, &["leak", "40000000"]),
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "node-leak",
        title: "something outside the pods takes the node's memory, and a pod pays for it",
        lasts: seconds(10),
        limit: None,
        tmpfs: None,
        policy: "kubelet: {enforceNodeAllocatable: [none], \
                 evictionHard: {memory.available: \"MEMORY-1200000000\"}}",
        pods: &[
            pod("web", 100 * MIB, &["hold", "52428800"]),
            pod("batch", 0, &["hold", "104857600"]),
        ],
        outside: Some((seconds(1), &["leak", "400000000"])),
        ends_somebody: true,
    },
    Story {
        name: "slow-disk-fill",
        title: "a pod fills the disk at 5 MB/s, with a limit for nobody",
        lasts: seconds(22),
        limit: Some(1 << 30),
        tmpfs: Some("size=64m,nr_inodes=4096"),
        policy: "kubelet: {evictionHard: {nodefs.available: 15%, memory.available: 50Mi}}",
        pods: &[
            pod("web", 100 * MIB, &["hold", "52428800"]),
            PodSpec {
                starts_at: seconds(1),
                ..pod("logger", 0, &["fill", "DIR/log", "5000000"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
    Story {
        name: "inode-flood",
        title: "a pod makes 400 empty files a second",
        lasts: seconds(20),
        limit: Some(1 << 30),
        tmpfs: Some("size=64m,nr_inodes=4096"),
        policy: "kubelet: {evictionHard: {nodefs.inodesFree: 10%, memory.available: 50Mi}}",
        pods: &[
            pod("web", 100 * MIB, &["hold", "52428800"]),
            PodSpec {
                starts_at: seconds(1),
                ..pod("mailer", 0, &["files", "DIR", "400"])
            },
        ],
        outside: None,
        ends_somebody: true,
    },
];
