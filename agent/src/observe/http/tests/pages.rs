use std::io::Read;

use flate2::read::GzDecoder;

use super::*;
use crate::observe::stats::tests::fixture::node;

struct Fixture {
    address: SocketAddr,
    sweeps: watch::Sender<Option<Arc<StatsSnapshot>>>,
    _trigger: ShutdownTrigger,
}

impl Fixture {
    async fn new() -> Self {
        let (sweeps, stats) = watch::channel(None);
        let pages = Pages {
            metrics: Metrics::default(),
            health: Health::new(Duration::from_secs(60), []),
            stats,
            options: Options::default(),
        };
        let (_trigger, shutdown) = shutdown::channel();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = serve(open_to_all(address), pages, shutdown).await.unwrap();
        Self {
            address: server.address,
            sweeps,
            _trigger,
        }
    }

    async fn get(&self, path: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let body = bytes.split_off(end + 4);
        let head = String::from_utf8(bytes).unwrap().to_lowercase();
        Answer { head, body }
    }

    /// As text, without compression.
    async fn text(&self, path: &str) -> String {
        String::from_utf8(self.get(path, "").await.body).unwrap()
    }
}

struct Answer {
    /// Lower case.
    head: String,
    body: Vec<u8>,
}

const STATISTICS: [&str; 3] = ["/metrics/cadvisor", "/metrics/resource", "/stats/summary"];

#[tokio::test]
async fn before_the_first_sweep_there_are_no_statistics() {
    let fixture = Fixture::new().await;
    for path in STATISTICS {
        let answer = fixture.get(path, "").await;
        assert!(
            answer.head.starts_with("http/1.1 503"),
            "{path}: {}",
            answer.head
        );
        assert_eq!(
            answer.body, b"no statistics yet: the first sweep has not ended\n",
            "{path}"
        );
    }
}

#[tokio::test]
async fn each_page_shows_the_newest_sweep() {
    let fixture = Fixture::new().await;
    for (n_pods, expected) in [(1, "pod-1"), (2, "pod-2")] {
        fixture.sweeps.send_replace(Some(Arc::new(node(n_pods, 1))));
        for path in STATISTICS {
            let mut text = String::new();
            // The loop that accepts connections hears of the sweep as well, in any order.
            for _ in 0..1000 {
                text = fixture.text(path).await;
                if text.matches("app-0").count() >= n_pods {
                    break;
                }
            }
            assert!(
                text.matches("app-0").count() >= n_pods,
                "{path} {expected}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn each_page_says_in_which_format_it_is() {
    let fixture = Fixture::new().await;
    fixture.sweeps.send_replace(Some(Arc::new(node(1, 1))));
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let protobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.metricfamily; \
                    encoding=delimited";
    let wants_open = "Accept: application/openmetrics-text;version=1.0.0\r\n";
    let wants_protobuf = "Accept: application/vnd.google.protobuf;\
                          proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n";
    for (path, headers, expected) in [
        ("/metrics", "", plain),
        ("/metrics", wants_open, open),
        ("/metrics", wants_protobuf, protobuf),
        ("/metrics/cadvisor", wants_open, plain),
        ("/metrics/resource", wants_protobuf, plain),
        ("/stats/summary", wants_open, "application/json"),
        ("/healthz", wants_open, "text/plain; charset=utf-8"),
    ] {
        let head = fixture.get(path, headers).await.head;
        let expected = format!("\r\ncontent-type: {expected}\r\n");
        assert!(head.contains(&expected), "{path}: {head}");
    }
}

#[tokio::test]
async fn a_compressed_page_is_the_same_page() {
    let fixture = Fixture::new().await;
    fixture.sweeps.send_replace(Some(Arc::new(node(3, 2))));
    for path in ["/metrics/cadvisor", "/metrics/resource"] {
        let plain = fixture.get(path, "").await;
        assert!(
            !plain.head.contains("content-encoding"),
            "{path}: {}",
            plain.head
        );
        let answer = fixture.get(path, "Accept-Encoding: gzip\r\n").await;
        assert!(
            answer.head.contains("\r\ncontent-encoding: gzip\r\n"),
            "{}",
            answer.head
        );
        assert!(
            answer.body.len() < plain.body.len() / 3,
            "{path}: {}",
            answer.body.len()
        );
        let mut page = Vec::new();
        GzDecoder::new(answer.body.as_slice())
            .read_to_end(&mut page)
            .unwrap();
        assert_eq!(page, plain.body, "{path}");
    }
}

#[tokio::test]
async fn the_summary_is_cut_to_cpu_and_memory_for_those_who_ask() {
    let fixture = Fixture::new().await;
    fixture.sweeps.send_replace(Some(Arc::new(node(1, 1))));
    while fixture
        .text("/stats/summary")
        .await
        .starts_with("no statistics")
    {}
    for (query, is_whole) in [
        ("", true),
        ("?only_cpu_and_memory=true", false),
        ("?a=b&only_cpu_and_memory=true", false),
        ("?only_cpu_and_memory=1", true),
        ("?only_cpu_and_memory=true&only_cpu_and_memory=true", true),
    ] {
        let text = fixture.text(&format!("/stats/summary{query}")).await;
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(summary["node"]["cpu"].is_object(), "{query}: {summary}");
        assert_eq!(
            summary["node"]["fs"].is_object(),
            is_whole,
            "{query}: {summary}"
        );
    }
}

#[tokio::test]
async fn what_a_page_took_is_told_by_endpoint() {
    let fixture = Fixture::new().await;
    fixture.sweeps.send_replace(Some(Arc::new(node(1, 1))));
    let page = fixture.text("/metrics/cadvisor").await;
    let n_samples = page.lines().filter(|it| !it.starts_with('#')).count();
    fixture
        .get("/metrics/cadvisor", "Accept-Encoding: gzip\r\n")
        .await;
    let metrics = fixture.text("/metrics").await;
    for expected in [
        format!(
            "ballast_scrape_bytes{{endpoint=\"cadvisor\"}} {}",
            page.len()
        ),
        format!("ballast_scrape_series{{endpoint=\"cadvisor\"}} {n_samples}"),
        "ballast_scrape_duration_seconds_count{endpoint=\"cadvisor\"} 2".to_owned(),
    ] {
        assert!(metrics.contains(&expected), "{expected} in\n{metrics}");
    }
}
