//! A Prometheus or an Alertmanager of a test: the real program on a loopback port, in a directory of
//! its own, and what it answers. Beside them the tools that come with them.
//!
//! `BALLAST_MONITORING` names the directory of the programs, which `cargo xtask test rules`
//! sets; without it they come from the search path.
//!
//! Invariant: the program and its directory are gone when its value is dropped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::scrape::free_address;
use crate::scratch::Scratch;
use crate::wait::{patience, wait_for};

/// How often a program that lost its port to somebody gets another one.
const PORTS: u32 = 10;

/// One of the programs, to be given its arguments: `prometheus`, `promtool`,
/// `prometheus-alertmanager`, `amtool`.
pub fn program(name: &str) -> Command {
    match std::env::var_os("BALLAST_MONITORING") {
        Some(directory) => Command::new(Path::new(&directory).join(name)),
        None => Command::new(name),
    }
}

/// What a program that should succeed writes to its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

/// A running Prometheus.
pub struct Prometheus {
    server: Server,
}

impl Prometheus {
    /// Starts one with this configuration; relative paths in it begin at the directory of
    /// `scratch`, and what is in `data` there (see [`Prometheus::data`]) it serves from the start.
    /// `flags`: more arguments, such as `--enable-feature=native-histograms`.
    pub fn start(scratch: Scratch, config: &str, flags: &[&str]) -> Result<Self> {
        let config = scratch.write("prometheus.yml", config)?;
        let data = Self::data(&scratch);
        let server = Server::start(scratch, "prometheus", |command, address| {
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", data.display()))
                // Stories have a time of their own, which may be long ago.
                .arg("--storage.tsdb.retention.time=100y")
                .arg(format!("--web.listen-address={address}"))
                .args(flags);
        })?;
        Ok(Self { server })
    }

    /// Where a Prometheus that is started in this directory keeps its data.
    pub fn data(scratch: &Scratch) -> PathBuf {
        scratch.path("data")
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.server.address
    }

    /// The series that an expression gives at a time, in seconds since the epoch; `None` is now.
    pub fn query(&self, expression: &str, at: Option<f64>) -> Result<Vec<Series>> {
        let at = at.map(|it| it.to_string());
        let mut parameters = vec![("query", expression)];
        parameters.extend(at.as_deref().map(|it| ("time", it)));
        self.ask("/api/v1/query", &parameters)
            .with_context(|| expression.to_owned())
    }

    /// The same at every `step` from `start` to `end`, all in seconds.
    pub fn query_range(
        &self,
        expression: &str,
        [start, end]: [f64; 2],
        step: f64,
    ) -> Result<Vec<Series>> {
        let (start, end, step) = (start.to_string(), end.to_string(), step.to_string());
        let parameters = [
            ("query", expression),
            ("start", &start),
            ("end", &end),
            ("step", &step),
        ];
        self.ask("/api/v1/query_range", &parameters)
            .with_context(|| expression.to_owned())
    }

    /// What a path of its API answers, the envelope left out.
    pub fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let form = form(parameters);
        let answer = self.server.request("POST", path, FORM, &form)?;
        let mut answer: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("{path}: {} {}", answer.status, answer.body))?;
        ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].take())
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Vec<Series>> {
        let mut data = self.api(path, parameters)?;
        let result = data["result"].take();
        match data["resultType"].as_str() {
            Some("scalar") => Ok(vec![Series {
                labels: BTreeMap::new(),
                points: vec![point(&result)?],
            }]),
            Some("vector" | "matrix") => {
                let series = result.as_array().context("a result is a list")?;
                series.iter().map(Series::read).collect()
            }
            other => bail!("cannot read a result of type {other:?}"),
        }
    }
}

/// A series of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub labels: BTreeMap<String, String>,
    /// Seconds since the epoch, and the value; one for an instant. Without native histograms.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// The value of the label; the empty text where there is none, as for Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    fn read(series: &Value) -> Result<Self> {
        let labels = serde_json::from_value(series["metric"].clone())
            .with_context(|| format!("labels of {series}"))?;
        let points = match (&series["value"], series["values"].as_array()) {
            (_, Some(points)) => points.iter().map(point).collect::<Result<_>>()?,
            (Value::Null, None) => Vec::new(),
            (value, None) => vec![point(value)?],
        };
        Ok(Self { labels, points })
    }
}

fn point(value: &Value) -> Result<(f64, f64)> {
    let parts = value[0].as_f64().zip(value[1].as_str());
    let (at, text) = parts.with_context(|| format!("not a point: {value}"))?;
    // Written as `NaN`, `+Inf` and `-Inf`, which the parser of Rust takes.
    Ok((at, text.parse()?))
}

/// A running Alertmanager, alone in its cluster.
pub struct Alertmanager {
    server: Server,
}

impl Alertmanager {
    pub fn start(scratch: Scratch, config: &str) -> Result<Self> {
        let config = scratch.write("alertmanager.yml", config)?;
        let data = scratch.path("data");
        let server = Server::start(scratch, "prometheus-alertmanager", |command, address| {
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.path={}", data.display()))
                .arg(format!("--web.listen-address={address}"))
                .arg("--cluster.listen-address=");
        })?;
        Ok(Self { server })
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.server.address
    }

    /// Sends alerts, each a set of labels, as one that fires now.
    pub fn post(&self, alerts: &[BTreeMap<String, String>]) -> Result<()> {
        let alerts: Vec<_> = alerts
            .iter()
            .map(|labels| json!({ "labels": labels }))
            .collect();
        let body = serde_json::to_string(&alerts)?;
        let path = "/api/v2/alerts";
        let answer = self.server.request("POST", path, JSON, &body)?;
        ensure!(
            answer.status == 200,
            "{path}: {} {}",
            answer.status,
            answer.body
        );
        Ok(())
    }

    /// The alerts that it has, each with its labels and its status.
    pub fn alerts(&self) -> Result<Vec<Value>> {
        let path = "/api/v2/alerts";
        let answer = self.server.request("GET", path, JSON, "")?;
        ensure!(
            answer.status == 200,
            "{path}: {} {}",
            answer.status,
            answer.body
        );
        Ok(serde_json::from_str(&answer.body)?)
    }
}

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// A program that serves HTTP on a loopback port.
struct Server {
    /// Ends before its directory is removed: fields are dropped in their order.
    _running: Running,
    address: String,
    _scratch: Scratch,
}

impl Server {
    /// `arrange` gives the program its arguments; the second one is the address to listen at.
    fn start(scratch: Scratch, name: &str, arrange: impl Fn(&mut Command, &str)) -> Result<Self> {
        let log = scratch.path("log");
        for _ in 0..PORTS {
            let address = free_address()?;
            let mut command = program(name);
            arrange(&mut command, &address);
            let output = File::create(&log)?;
            command
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output);
            let child = command
                .spawn()
                .with_context(|| format!("start {command:?}"))?;
            let mut running = Running(child);
            if running.wait_ready(&address, &log)? {
                return Ok(Self {
                    _running: running,
                    address,
                    _scratch: scratch,
                });
            }
            // Somebody took the port before the program came to it.
        }
        bail!("{name} gets no port in {PORTS} tries")
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &str) -> Result<Answer> {
        request(&self.address, method, path, kind, body)
            .with_context(|| format!("{method} {path} at {}", self.address))
    }
}

/// A program that was started, and ends with its value.
struct Running(Child);

impl Running {
    /// Whether it has become ready; false when it ended because its port is taken.
    fn wait_ready(&mut self, address: &str, log: &Path) -> Result<bool> {
        let mut is_ready = false;
        let waited = wait_for("the program is ready, or its port taken", || {
            if let Some(status) = self.0.try_wait()? {
                let text = fs::read_to_string(log)?;
                ensure!(text.contains("address already in use"), "{status}: {text}");
                return Ok(true);
            }
            let answer = request(address, "GET", "/-/ready", JSON, "");
            is_ready = answer.is_ok_and(|it| it.status == 200);
            Ok(is_ready)
        });
        waited.with_context(|| fs::read_to_string(log).unwrap_or_default())?;
        Ok(is_ready)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("end process {}: {error}", self.0.id());
        }
    }
}

struct Answer {
    status: u16,
    body: String,
}

/// One request over a connection of its own. In HTTP 1.0, in which no answer comes in chunks.
fn request(address: &str, method: &str, path: &str, kind: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience()))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.get(9..12).and_then(|it| it.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok(Answer {
        status: status.context("no status")?,
        body: body.to_owned(),
    })
}

/// The fields of a form as one line.
fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String {
        let encode = |byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(encode).collect()
    };
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    fields.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_of_an_expression_survives_a_form() {
        let expression = [("query", "a{b=\"c d\"} > 1e+3"), ("time", "5.5")];
        let expected = "query=a%7Bb%3D%22c%20d%22%7D%20%3E%201e%2B3&time=5%2E5";
        assert_eq!(form(&expression), expected);
    }

    #[test]
    fn an_answer_gives_its_points_and_labels() {
        let instant = json!({"metric": {"a": "b"}, "value": [1.5, "+Inf"]});
        let series = Series::read(&instant).expect("a series");
        assert_eq!(series.label("a"), "b");
        assert_eq!(series.label("c"), "");
        assert_eq!(series.points, [(1.5, f64::INFINITY)]);
        let range = json!({"metric": {}, "values": [[1, "2"], [3, "4.5"]]});
        let series = Series::read(&range).expect("a series");
        assert_eq!(series.points, [(1.0, 2.0), (3.0, 4.5)]);
        assert!(Series::read(&json!({"metric": {}, "value": [1]})).is_err());
    }
}
