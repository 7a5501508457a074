#![expect(
    clippy::disallowed_methods,
    reason = "the socket is removed beside the code under test"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tonic::Code;

use super::*;
use crate::grpc::client::{Channel, Method};
use crate::grpc::messages::pod_resources::{
    AllocatableResponse, GetResponse, ListResponse, NumaNode,
};
use crate::listener::FILE_CHECK;
use crate::model::cpuset::CpuId;
use crate::model::numa::NumaMask;
use crate::model::placement::MemoryBlock;
use crate::model::pod_resources::{
    AllocatableResources, ContainerKind, ContainerResources, DeviceIds, PodResources,
};
use crate::model::topology::NumaNodeId;
use crate::observe::metrics::Format;
use crate::observe::shutdown::{self, ShutdownTrigger};
use crate::sys::Root;
use crate::sys::scratch::Scratch;

const DEADLINE: Duration = Duration::from_secs(60);

struct Fixture {
    socket: PathBuf,
    resources: watch::Sender<Option<Arc<NodeResources>>>,
    metrics: Metrics,
    shutdown: ShutdownTrigger,
    task: JoinHandle<()>,
    _scratch: Scratch,
}

impl Fixture {
    fn new(name: &str, node: Option<NodeResources>) -> Self {
        let scratch = Scratch::new(name);
        let socket = scratch.path("pod-resources/kubelet.sock");
        let (resources, receiver) = watch::channel(node.map(Arc::new));
        let metrics = Metrics::default();
        let (trigger, shutdown) = shutdown::channel();
        let task = serve(&socket, receiver, metrics.clone(), shutdown).expect("it can listen");
        Self {
            socket,
            resources,
            metrics,
            shutdown: trigger,
            task,
            _scratch: scratch,
        }
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let channel = Channel::connect(&self.socket).await.expect("it listens");
        ask_on(&channel, path, question).await
    }

    async fn stop(self) {
        self.shutdown.fire();
        self.task.await.expect("no panic");
        // Whoever looks after the file at that moment may have made it again, and removes it.
        for _ in 0..60_000 {
            if !Root::host().exists(&self.socket) {
                return;
            }
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("its socket goes with it");
    }
}

async fn ask_on<Q, A>(channel: &Channel, path: &'static str, question: Q) -> Result<A, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let max_answer = 16 << 20;
    let method = Method { path, max_answer };
    channel.unary(method, question, DEADLINE).await
}

fn ids(nodes: &[(Option<u32>, &str)]) -> DeviceIds {
    let mut by_node: BTreeMap<_, std::collections::BTreeSet<String>> = BTreeMap::new();
    for (node, id) in nodes {
        let of_node = by_node.entry(node.map(NumaNodeId)).or_default();
        of_node.insert((*id).to_owned());
    }
    BTreeMap::from([("example.com/gpu".to_owned(), by_node)])
}

fn container(name: &str, kind: ContainerKind) -> ContainerResources {
    ContainerResources {
        name: name.to_owned(),
        kind,
        devices: ids(&[(None, "c"), (Some(0), "a"), (Some(0), "b"), (Some(1), "b")]),
        cpus: [2, 3, 10].map(CpuId).into_iter().collect(),
        memory: vec![MemoryBlock {
            numa: NumaMask::from_bits(0b11),
            resource: "memory".to_owned(),
            size: 12 << 30,
        }],
    }
}

fn node() -> NodeResources {
    let pod = PodResources {
        containers: vec![
            container("proxy", ContainerKind::RestartableInit),
            container("app", ContainerKind::App),
        ],
    };
    let key = ("default".to_owned(), "web".to_owned());
    NodeResources {
        pods: BTreeMap::from([(key, pod)]),
        allocatable: AllocatableResources {
            devices: ids(&[(Some(1), "b")]),
            cpus: [1, 2].map(CpuId).into_iter().collect(),
            memory: Vec::new(),
        },
    }
}

#[tokio::test]
async fn a_pod_is_shown_with_one_entry_per_device_and_numa_node() {
    let fixture = Fixture::new("list", Some(node()));
    let list: ListResponse = fixture.ask(path::LIST, Empty {}).await.expect("listed");
    let [pod] = list.pods.as_slice() else {
        panic!("one pod, not {list:?}");
    };
    assert_eq!(
        (pod.name.as_str(), pod.namespace.as_str()),
        ("web", "default")
    );
    let names: Vec<_> = pod.containers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["proxy", "app"]);
    let app = &pod.containers[1];
    let devices: Vec<_> = app
        .devices
        .iter()
        .map(|it| {
            let nodes = it.topology.as_ref().map(|it| it.nodes.clone());
            (it.device_ids.join(" "), nodes)
        })
        .collect();
    let at = |id| Some(vec![NumaNode { id }]);
    let expected = [("c", None), ("a", at(0)), ("b", at(0)), ("b", at(1))];
    assert_eq!(devices, expected.map(|(id, at)| (id.to_owned(), at)));
    assert_eq!(app.cpu_ids, [2, 3, 10]);
    assert_eq!(app.memory[0].size, 12 << 30);
    let nodes = app.memory[0].topology.as_ref().map(|it| it.nodes.len());
    assert_eq!(nodes, Some(2));

    let question = GetRequest {
        pod_name: "web".to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let got: GetResponse = fixture.ask(path::GET, question).await.expect("it is there");
    assert_eq!(got.pod.as_ref(), Some(pod));

    let old: ListResponse = fixture
        .ask(path::LIST_V1ALPHA1, Empty {})
        .await
        .expect("listed");
    let [app] = old.pods[0].containers.as_slice() else {
        panic!("the app container alone, not {old:?}");
    };
    assert!(app.devices.iter().all(|it| it.topology.is_none()));
    assert!(app.cpu_ids.is_empty() && app.memory.is_empty());

    let all: AllocatableResponse = fixture
        .ask(path::GET_ALLOCATABLE, Empty {})
        .await
        .expect("known");
    assert_eq!((all.devices.len(), all.cpu_ids), (1, vec![1, 2]));
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_told_and_counted() {
    let fixture = Fixture::new("errors", None);
    let question = || GetRequest {
        pod_name: "web".to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let early = fixture.ask::<_, GetResponse>(path::GET, question()).await;
    assert_eq!(early.expect_err("no pass yet").code(), Code::Unavailable);
    fixture.resources.send_replace(Some(Arc::default()));
    let unknown = fixture.ask::<_, GetResponse>(path::GET, question()).await;
    let status = unknown.expect_err("no such pod");
    assert_eq!(status.message(), "pod web in namespace default not found");
    assert_eq!(status.code(), Code::Unknown);
    let method = fixture.ask::<_, Empty>("/v1.PodResourcesLister/Watch", Empty {});
    let status = method.await.expect_err("no such method");
    assert_eq!(status.code(), Code::Unimplemented);
    let mut text = Vec::new();
    let encoded = fixture.metrics.encode(Format::Text, &mut text);
    encoded.expect("metrics");
    let text = String::from_utf8(text).expect("UTF-8");
    for sample in [
        "kubelet_pod_resources_endpoint_requests_total{server_api_version=\"v1\"} 2",
        "kubelet_pod_resources_endpoint_requests_get{server_api_version=\"v1\"} 2",
        "kubelet_pod_resources_endpoint_errors_get{server_api_version=\"v1\"} 2",
        "kubelet_pod_resources_endpoint_errors_list{server_api_version=\"v1\"} 0",
    ] {
        assert!(text.lines().any(|it| it == sample), "{sample} in\n{text}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_whoever_asks() {
    let fixture = Fixture::new("rate", Some(NodeResources::default()));
    let begun = clock::boottime();
    let mut n_refused = 0_u32;
    let n = 60;
    for _ in 0..n / 2 {
        let both = tokio::join!(
            fixture.ask::<_, ListResponse>(path::LIST, Empty {}),
            fixture.ask::<_, ListResponse>(path::LIST_V1ALPHA1, Empty {}),
        );
        for answer in [both.0, both.1] {
            if let Err(status) = answer {
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert_eq!(status.message(), "rejected by rate limit");
                n_refused += 1;
            }
        }
    }
    let took = clock::boottime().saturating_sub(begun);
    let refilled = took.as_millis() / 10 + 1;
    let n_taken = u128::from(n - n_refused);
    assert!(
        n_taken <= u128::from(BURST) + refilled,
        "{n_taken} in {took:?}"
    );
    assert!(n_taken >= u128::from(BURST), "{n_taken}");
    fixture.stop().await;
}

/// A call of which the message never comes, in the frames of HTTP/2 (RFC 9113 and 7541).
fn begun_call() -> Vec<u8> {
    let literal = |index: &[u8], value: &str| {
        let len = u8::try_from(value.len()).expect("short");
        [index, &[len], value.as_bytes()].concat()
    };
    let headers = [
        // POST and http, from the static table.
        vec![0x83, 0x86],
        literal(&[0x04], path::LIST),
        literal(&[0x01], "localhost"),
        literal(&[0x0f, 0x10], "application/grpc"),
    ]
    .concat();
    let len = u8::try_from(headers.len()).expect("short");
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let begin_headers = [0, 0, len, 1, 4, 0, 0, 0, 1];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    [&preface[..], &settings, &begin_headers, &headers].concat()
}

#[tokio::test]
async fn clients_that_wait_keep_nobody_out() {
    let fixture = Fixture::new("places", Some(NodeResources::default()));
    for words in [&[][..], &begun_call()] {
        let mut silent = Vec::new();
        for _ in 0..LIMITS.max_connections + 8 {
            let mut stream = UnixStream::connect(&fixture.socket)
                .await
                .expect("it listens");
            stream.write_all(words).await.expect("it is read");
            silent.push(stream);
        }
        let answer = fixture.ask::<_, ListResponse>(path::LIST, Empty {}).await;
        answer.expect("it is answered in time");
    }
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_socket_comes_back_and_who_is_connected_stays() {
    let fixture = Fixture::new("removed", Some(node()));
    let channel = Channel::connect(&fixture.socket).await.expect("it listens");
    let directory = fixture.socket.parent().expect("it has one");
    std::fs::remove_dir_all(directory).expect("it is there");
    tokio::time::sleep(FILE_CHECK * 2).await;
    let mode = std::fs::metadata(directory).expect("it is back").mode();
    assert_eq!(mode & 0o027, 0, "{mode:o}");
    let again = fixture.ask::<_, ListResponse>(path::LIST, Empty {}).await;
    let before = ask_on::<_, ListResponse>(&channel, path::LIST, Empty {}).await;
    assert_eq!(again.expect("listed"), before.expect("listed"));
    fixture.stop().await;
}
