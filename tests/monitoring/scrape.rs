//! Prometheus reads the agent's endpoint: over TLS with a token, in the formats that it asks for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::kubelet_duty::KubeletNames;
use ballast::observe::health::Health;
use ballast::observe::http::{AccessFiles, Listen, Pages, TlsFiles, serve};
use ballast::observe::metrics::labels::Phase;
use ballast::observe::metrics::{Identity, Metrics};
use ballast::observe::shutdown::{self, ShutdownTrigger};
use ballast::observe::stats::Options;
use ballast_tests::prometheus::{Prometheus, Series};
use ballast_tests::scratch::Scratch;
use ballast_tests::wait::until;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

const TOKEN: &str = "s3cret";

/// So many phases took so long.
const N_PHASES: u32 = 40;
const PHASE: Duration = Duration::from_micros(300);

/// Buckets of schema 3 are this much wider than the one before: a quantile is as far off at most.
const BUCKET_FACTOR: f64 = 1.091;

/// A served endpoint, and the files of it that a client needs.
struct Endpoint {
    address: SocketAddr,
    certificate: PathBuf,
    token: PathBuf,
    _trigger: ShutdownTrigger,
    _runtime: Runtime,
}

impl Endpoint {
    fn start(scratch: &Scratch) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let pem = |label, der: &[u8]| {
            let text = BASE64_STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        let key = pem("PRIVATE KEY", &made.signing_key.serialize_der());
        let certificate = scratch.write("tls.crt", pem("CERTIFICATE", made.cert.der()))?;
        let token = scratch.write("token", TOKEN)?;
        let access = AccessFiles {
            tls: Some(TlsFiles {
                certificate: certificate.clone(),
                key: scratch.write("tls.key", key)?,
            }),
            bearer_token: Some(token.clone()),
        };
        let metrics = Metrics::new(&[], KubeletNames::Both, Identity::Names);
        for _ in 0..N_PHASES {
            metrics.loop_phase(Phase::Gather, PHASE);
        }
        let pages = Pages {
            metrics,
            health: Health::new(Duration::from_secs(60), ["pods"]),
            stats: watch::channel(None).1,
            options: Options::default(),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (trigger, shutdown) = shutdown::channel();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = runtime.block_on(serve(Listen { address, access }, pages, shutdown))?;
        Ok(Self {
            address: server.address,
            certificate,
            token,
            _trigger: trigger,
            _runtime: runtime,
        })
    }

    /// One job that has the token and one that has not.
    fn scraped(&self) -> String {
        let tls = format!(
            "scheme: https\n  tls_config: {{ca_file: {}, server_name: localhost}}\n  \
             static_configs: [{{targets: [\"{}\"]}}]",
            self.certificate.display(),
            self.address
        );
        format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
             - job_name: ballast\n  {tls}\n  authorization: {{credentials_file: {}}}\n\
             - job_name: stranger\n  {tls}\n",
            self.token.display()
        )
    }
}

/// Asks until there is an answer.
fn answer(server: &Prometheus, query: &str) -> Result<Vec<Series>> {
    until(query, || {
        let found = server.query(query, None)?;
        ensure!(!found.is_empty(), "no answer");
        Ok(found)
    })
}

fn value(server: &Prometheus, query: &str) -> Result<f64> {
    let found = answer(server, query)?;
    let point = found[0].points.first();
    Ok(point.with_context(|| format!("no number: {query}"))?.1)
}

/// The scrape is in OpenMetrics, which this server asks for first.
#[cfg_attr(feature = "monitoring", test)]
fn a_server_with_certificate_and_token_reads_and_a_stranger_does_not() -> Result<()> {
    let scratch = Scratch::new("scrape")?;
    let endpoint = Endpoint::start(&scratch)?;
    let server = Prometheus::start(scratch, &endpoint.scraped(), &[])?;
    let count = "ballast_loop_duration_seconds_count{phase=\"gather\"}";
    assert_eq!(value(&server, count)?, f64::from(N_PHASES));
    assert_eq!(value(&server, "up{job=\"ballast\"}")?, 1.0);
    assert_eq!(value(&server, "up{job=\"stranger\"}")?, 0.0);
    let below = "ballast_loop_duration_seconds_bucket{phase=\"gather\",le=\"0.00025\"}";
    assert_eq!(value(&server, below)?, 0.0);
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn native_histograms_are_read_from_protobuf() -> Result<()> {
    let scratch = Scratch::new("native")?;
    let endpoint = Endpoint::start(&scratch)?;
    let flags = ["--enable-feature=native-histograms"];
    let server = Prometheus::start(scratch, &endpoint.scraped(), &flags)?;
    let family = "ballast_loop_duration_seconds{phase=\"gather\"}";
    let count = value(&server, &format!("histogram_count({family})"))?;
    assert_eq!(count, f64::from(N_PHASES));
    let sum = value(&server, &format!("histogram_sum({family})"))?;
    let expected = PHASE.as_secs_f64() * f64::from(N_PHASES);
    assert!((sum - expected).abs() < expected * 1e-9, "{sum}");
    let median = value(&server, &format!("histogram_quantile(0.5, {family})"))?;
    let phase = PHASE.as_secs_f64();
    assert!(
        (phase / BUCKET_FACTOR..=phase * BUCKET_FACTOR).contains(&median),
        "{median}"
    );
    Ok(())
}
