//! An API server that keeps the pods and the Events of a test, over plain HTTP: it answers lists and watches of pods,
//! and takes Events. What a kubelet is asked for its pods it answers as well.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// All pods of the cluster.
const PODS: &str = "/api/v1/pods";

/// Where a kubelet has its own.
const OF_KUBELET: &str = "/pods";

/// How it behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// As Kubernetes since 1.34: lists come as events, if they are asked for so.
    #[default]
    StreamsLists,
    /// It refuses to stream a list.
    RefusesStreams,
    /// It does not know what that is, and never tells its end.
    KnowsNoStreams,
    /// It streams no lists, and has forgotten what came after any version.
    Forgets,
    /// It is behind a gateway that ends each watch at once.
    EndsWatches,
    /// The one who asks may not.
    Forbids,
    /// The one who asks may look at pods, and not write Events.
    ForbidsEvents,
    /// It takes an Event, and the answer is lost.
    LosesAnswers,
    /// It takes questions and answers none.
    Silent,
}

/// What is answered instead of what was asked for.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// Name and value.
    pub header: Option<(&'static str, &'static str)>,
    pub body: String,
}

impl Answer {
    pub fn new(code: u16, body: impl ToString) -> Self {
        Self {
            code,
            header: None,
            body: body.to_string(),
        }
    }

    pub fn with_header(self, name: &'static str, value: &'static str) -> Self {
        Self {
            header: Some((name, value)),
            ..self
        }
    }
}

/// By their names in small letters; those of one name in the order in which they came.
type Headers = BTreeMap<String, Vec<String>>;

/// See the module. It ends when it is dropped.
pub struct FakeApiServer {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    manner: Manner,
    is_stopped: bool,
    version: u64,
    pods: BTreeMap<String, Value>,
    /// What happened, with its version.
    events: Vec<(u64, Value)>,
    /// Objects, by namespace and name.
    kept: BTreeMap<(String, String), Value>,
    /// What is answered to Events of a namespace.
    refusals: BTreeMap<String, Answer>,
    /// What is answered to questions for pods.
    refusal: Option<Answer>,
    /// Who says something else in the header `Authorization` is refused.
    authorization: Option<String>,
    /// Of its answers to what one may.
    date: Option<&'static str>,
    /// How often each Event was made or changed, by namespace and name.
    n_writes: BTreeMap<(String, String), usize>,
    /// All that was asked for, with its parameters.
    questions: Vec<String>,
    /// Of each question.
    headers: Vec<Headers>,
    times: Vec<Instant>,
    /// The path that it is below.
    below: String,
    /// Watches that began before the n-th cut are cut.
    n_cuts: u64,
    connections: Vec<TcpStream>,
    n_connections: usize,
    n_watches: usize,
}

impl FakeApiServer {
    pub fn start(manner: Manner) -> Result<Self> {
        let server = Self {
            address: ([127, 0, 0, 1], 0).into(),
            state: Arc::default(),
        };
        server.behave(manner);
        server.begin()
    }

    fn begin(mut self) -> Result<Self> {
        let listener = TcpListener::bind(self.address).context("listen")?;
        self.address = listener.local_addr()?;
        let state = Arc::clone(&self.state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if state.lock().is_stopped {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let state = Arc::clone(&state);
                // One that goes away in the middle of an answer is nothing to tell.
                thread::spawn(move || state.serve(stream).ok());
            }
        });
        Ok(self)
    }

    /// It ends, with all connections. What it keeps stays.
    pub fn stop(&self) {
        let mut inner = self.state.lock();
        inner.is_stopped = true;
        for connection in inner.connections.drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
        drop(inner);
        self.state.changed.notify_all();
        // For the listener to notice.
        TcpStream::connect(self.address).ok();
    }

    /// It comes again, at the same address.
    pub fn begin_again(self) -> Result<Self> {
        self.state.lock().is_stopped = false;
        let again = Self {
            address: self.address,
            state: Arc::clone(&self.state),
        };
        // Not stopped by the drop of the old one.
        std::mem::forget(self);
        again.begin()
    }

    /// It goes on in another manner.
    pub fn behave(&self, manner: Manner) {
        self.state.lock().manner = manner;
        self.state.changed.notify_all();
    }

    /// The pod is there, or is as this from now on.
    pub fn put(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let mut inner = self.state.lock();
        let kind = match inner.pods.contains_key(name) {
            true => "MODIFIED",
            false => "ADDED",
        };
        inner.version += 1;
        let mut pod = pod.clone();
        pod["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        inner.pods.insert(name.to_owned(), pod.clone());
        let version = inner.version;
        let event = json!({"type": kind, "object": pod});
        inner.events.push((version, event));
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Something happens in the words of another API server: an event of its watch, with its version.
    pub fn say(&self, event: &Value) -> Result<()> {
        let metadata = &event["object"]["metadata"];
        let version = metadata["resourceVersion"].as_str();
        let version: u64 = version.context("no version")?.parse()?;
        let name = metadata["name"].as_str().unwrap_or_default();
        let mut inner = self.state.lock();
        match event["type"].as_str() {
            Some("BOOKMARK") => {}
            Some("DELETED") => {
                inner.pods.remove(name);
            }
            _ => {
                inner.pods.insert(name.to_owned(), event["object"].clone());
            }
        }
        inner.version = version;
        inner.events.push((version, event.clone()));
        drop(inner);
        self.state.changed.notify_all();
        Ok(())
    }

    /// The pod is there no more.
    pub fn delete(&self, name: &str) {
        let mut inner = self.state.lock();
        let Some(mut pod) = inner.pods.remove(name) else {
            return;
        };
        inner.version += 1;
        let version = inner.version;
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        let event = json!({"type": "DELETED", "object": pod});
        inner.events.push((version, event));
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Something happens that is of no pod, and a bookmark of its version is sent to all watches. Gives the version.
    pub fn bookmark(&self) -> u64 {
        let mut inner = self.state.lock();
        inner.version += 1;
        let version = inner.version;
        inner.events.push((version, bookmark(version, false)));
        drop(inner);
        self.state.changed.notify_all();
        version
    }

    /// It forgets what has happened: who asks for what came after an older version is told that it is gone.
    pub fn compact(&self) {
        let mut inner = self.state.lock();
        inner.version += 1;
        inner.events.clear();
        drop(inner);
        self.cut();
    }

    /// All watches end.
    pub fn cut(&self) {
        self.state.lock().n_cuts += 1;
        self.state.changed.notify_all();
    }

    /// The Events that it keeps, by namespace and name.
    pub fn kept_events(&self) -> Vec<Value> {
        self.state.lock().kept.values().cloned().collect()
    }

    /// An Event that somebody makes.
    pub fn keep(&self, event: &Value) {
        self.state.lock().kept.insert(key_of(event), event.clone());
    }

    /// From now on Events of the namespace are answered so.
    pub fn refuse_events(&self, namespace: &str, refusal: Answer) {
        let mut inner = self.state.lock();
        inner.refusals.insert(namespace.to_owned(), refusal);
    }

    /// From now on questions for pods are answered so; `None`: as they were.
    pub fn refuse_pods(&self, refusal: Option<Answer>) {
        self.state.lock().refusal = refusal;
    }

    /// From now on only whoever says so in the header `Authorization` is answered. Who is refused is told so by a
    /// proxy, in JSON that is no `Status`.
    pub fn take_only(&self, authorization: &str) {
        self.state.lock().authorization = Some(authorization.to_owned());
    }

    /// From now on answers to what one may have this date.
    pub fn date(&self, date: &'static str) {
        self.state.lock().date = Some(date);
    }

    /// As after an hour.
    pub fn forget_events(&self) {
        self.state.lock().kept.clear();
    }

    /// How often an Event was made or changed.
    pub fn n_writes(&self, event: &Value) -> usize {
        let inner = self.state.lock();
        inner.n_writes.get(&key_of(event)).copied().unwrap_or(0)
    }

    /// All that was asked for, with its parameters.
    pub fn questions(&self) -> Vec<String> {
        self.state.lock().questions.clone()
    }

    /// What each question says under a name that is in small letters.
    pub fn headers(&self, name: &str) -> Vec<Vec<String>> {
        let inner = self.state.lock();
        let all = inner.headers.iter();
        all.map(|it| it.get(name).cloned().unwrap_or_default())
            .collect()
    }

    /// How long it was from each question to the next.
    pub fn pauses(&self) -> Vec<Duration> {
        let inner = self.state.lock();
        let pairs = inner.times.windows(2);
        pairs.map(|both| both[1].duration_since(both[0])).collect()
    }

    /// How many connections there were.
    pub fn n_connections(&self) -> usize {
        self.state.lock().n_connections
    }

    /// There is nothing but what is below this path, as behind a proxy that has many API servers.
    pub fn move_below(&self, path: &str) {
        path.clone_into(&mut self.state.lock().below);
    }

    /// Who watches.
    pub fn n_watches(&self) -> usize {
        self.state.lock().n_watches
    }

    /// Writes a file that leads to it.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let name = "fake";
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        });
        fs::write(path, config.to_string()).with_context(|| format!("write {}", path.display()))
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut inner = self.lock();
        inner.n_connections += 1;
        inner.connections.push(stream.try_clone()?);
        drop(inner);
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        while let Some(question) = read_question(&mut reader)? {
            let mut inner = self.lock();
            inner.questions.push(question.target.clone());
            inner.times.push(Instant::now());
            let said = question.headers.get("authorization").cloned();
            inner.headers.push(question.headers);
            let below = inner.below.clone();
            let only = inner.authorization.clone();
            drop(inner);
            if only.is_some_and(|it| said.unwrap_or_default() != [it]) {
                let body = json!({"message": "Unauthorized"});
                write_answer(&mut writer, &Answer::new(401, body))?;
                continue;
            }
            // What is elsewhere is found nowhere.
            let target = question.target.strip_prefix(&below).unwrap_or_default();
            self.answer(&question.method, target, &question.body, &mut writer)?;
        }
        Ok(())
    }

    fn answer(
        &self,
        method: &str,
        question: &str,
        body: &Value,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let manner = self.lock().manner;
        let (path, query) = question.split_once('?').unwrap_or((question, ""));
        let parameters: BTreeMap<&str, &str> = query
            .split('&')
            .filter_map(|it| it.split_once('='))
            .collect();
        let is = |name: &str| {
            parameters.get(name) == Some(&"true") || parameters.get(name) == Some(&"1")
        };
        let verb = if is("watch") { "watch" } else { "list" };
        let refusal = self.lock().refusal.clone();
        if let Some(refusal) = refusal.filter(|_| path == PODS) {
            return write_answer(to, &refusal);
        }
        match manner {
            Manner::Silent => {
                let inner = self.lock();
                let waiting =
                    |inner: &mut Inner| inner.manner == Manner::Silent && !inner.is_stopped;
                let waited = self.changed.wait_while(inner, waiting);
                let is_stopped = waited.unwrap_or_else(PoisonError::into_inner).is_stopped;
                match is_stopped {
                    true => Err(io::ErrorKind::ConnectionAborted.into()),
                    false => self.answer(method, question, body, to),
                }
            }
            Manner::Forbids => {
                let message = format!(
                    "pods is forbidden: User \"test\" cannot {verb} resource \"pods\" in API group \"\" at the \
                     cluster scope"
                );
                write_whole(to, 403, &failure(403, "Forbidden", &message))
            }
            _ if path.ends_with("/selfsubjectaccessreviews") => {
                let is_of_events = body["spec"]["resourceAttributes"]["resource"] == "events";
                let answer = json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {}, "status": {"allowed": manner != Manner::ForbidsEvents || !is_of_events},
                });
                let mut answer = Answer::new(201, answer);
                answer.header = self.lock().date.map(|it| ("Date", it));
                write_answer(to, &answer)
            }
            _ if path.contains("/events") => self.write_event(method, path, body, manner, to),
            _ if path != PODS && path != OF_KUBELET => {
                write_whole(to, 404, &failure(404, "NotFound", "nothing of that name"))
            }
            Manner::RefusesStreams | Manner::Forgets if is("sendInitialEvents") => {
                let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the \
                               WatchList feature gate is enabled";
                write_whole(to, 422, &failure(422, "Invalid", message))
            }
            _ if verb == "list" => {
                let list = {
                    let inner = self.lock();
                    let pods: Vec<&Value> = inner.pods.values().collect();
                    json!({
                        "apiVersion": "v1", "kind": "PodList", "items": pods,
                        "metadata": {"resourceVersion": inner.version.to_string()},
                    })
                };
                write_whole(to, 200, &list)
            }
            _ => {
                let version = parameters.get("resourceVersion");
                let version = version.and_then(|it| it.parse().ok()).unwrap_or(0);
                self.lock().n_watches += 1;
                let ended = self.watch(version, is("sendInitialEvents"), manner, to);
                self.lock().n_watches -= 1;
                ended
            }
        }
    }

    /// `/api/v1/namespaces/NAMESPACE/events[/NAME]`
    fn write_event(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        manner: Manner,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let parts: Vec<&str> = path.split('/').collect();
        let namespace = parts.get(4).copied().unwrap_or_default().to_owned();
        if manner == Manner::ForbidsEvents {
            let verb = if method == "POST" { "create" } else { "patch" };
            let message = format!(
                "events is forbidden: User \"test\" cannot {verb} resource \"events\" in API group \"\" in the \
                 namespace \"{namespace}\""
            );
            return write_whole(to, 403, &failure(403, "Forbidden", &message));
        }
        if let Some(refusal) = self.lock().refusals.get(&namespace).cloned() {
            return write_answer(to, &refusal);
        }
        if let Some(fault) = fault_of(body) {
            return write_whole(to, 422, &failure(422, "Invalid", &fault));
        }
        let name = body["metadata"]["name"].as_str().or(parts.get(6).copied());
        let name = name.unwrap_or_default().to_owned();
        let mut inner = self.lock();
        let key = (namespace, name);
        let (code, answer) = match (method, inner.kept.get_mut(&key)) {
            ("POST", Some(_)) => (409, failure(409, "AlreadyExists", "it is there")),
            ("POST", None) => {
                *inner.n_writes.entry(key.clone()).or_default() += 1;
                inner.kept.insert(key, body.clone());
                (201, body.clone())
            }
            (_, None) => (404, failure(404, "NotFound", "there is none")),
            (_, Some(kept)) => {
                merge(kept, body);
                let kept = kept.clone();
                *inner.n_writes.entry(key).or_default() += 1;
                (200, kept)
            }
        };
        drop(inner);
        if manner == Manner::LosesAnswers {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        write_whole(to, code, &answer)
    }

    fn watch(
        &self,
        mut version: u64,
        streams_list: bool,
        manner: Manner,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        to.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        if manner == Manner::EndsWatches {
            return to.write_all(b"0\r\n\r\n");
        }
        let mut inner = self.lock();
        let n_cuts = inner.n_cuts;
        // Without a version, or with that of anything, it begins with what there is.
        if version == 0 {
            version = inner.version;
            let pods: Vec<Value> = inner.pods.values().cloned().collect();
            let ends = streams_list && manner == Manner::StreamsLists;
            drop(inner);
            for pod in pods {
                write_chunk(to, &json!({"type": "ADDED", "object": pod}))?;
            }
            if ends {
                write_chunk(to, &bookmark(version, true))?;
            }
            inner = self.lock();
        } else if manner == Manner::Forgets
            || inner
                .events
                .first()
                .map_or(version < inner.version, |(first, _)| version + 1 < *first)
        {
            let expired = failure(410, "Expired", "too old resource version");
            drop(inner);
            write_chunk(to, &json!({"type": "ERROR", "object": expired}))?;
            return to.write_all(b"0\r\n\r\n");
        }
        loop {
            if inner.is_stopped || inner.n_cuts != n_cuts {
                drop(inner);
                return to.write_all(b"0\r\n\r\n");
            }
            let new = inner.events.iter().filter(|(it, _)| *it > version);
            let new: Vec<Value> = new.map(|(_, event)| event.clone()).collect();
            version = inner.version;
            drop(inner);
            for event in &new {
                write_chunk(to, event)?;
            }
            inner = self.lock();
            if inner.version == version && inner.n_cuts == n_cuts && !inner.is_stopped {
                let waited = self.changed.wait_timeout(inner, Duration::from_millis(200));
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Namespace and name of an object.
fn key_of(object: &Value) -> (String, String) {
    let text = |field: &str| {
        let text = object["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    };
    (text("namespace"), text("name"))
}

/// A JSON merge patch (RFC 7386).
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in patch {
        match (value, into.as_object_mut()) {
            (Value::Null, Some(into)) => drop(into.remove(name)),
            _ => merge(&mut into[name.as_str()], value),
        }
    }
}

struct Question {
    method: String,
    /// Its path with its parameters.
    target: String,
    headers: Headers,
    body: Value,
}

/// `None`: there is none any more.
fn read_question(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Question>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let mut headers = Headers::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        let values = headers.entry(name.to_ascii_lowercase()).or_default();
        values.push(value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|it| it.first());
    let length = length.and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    Ok(Some(Question {
        method,
        target,
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}

/// What an API server finds fault with in an Event that has an eventTime.
fn fault_of(event: &Value) -> Option<String> {
    for (field, longest) in [
        ("message", 1024),
        ("reason", 128),
        ("action", 128),
        ("reportingInstance", 128),
    ] {
        let text = event[field].as_str().unwrap_or_default();
        if text.len() > longest {
            return Some(format!("{field}: may have {longest} bytes"));
        }
    }
    let time = event["eventTime"].as_str()?;
    let digits = time.rsplit_once('.').map_or("", |(_, it)| it);
    (digits.len() != "000000Z".len()).then(|| format!("eventTime: {time}"))
}

fn write_whole(to: &mut TcpStream, code: u16, answer: &Value) -> io::Result<()> {
    write_answer(to, &Answer::new(code, answer))
}

fn write_answer(to: &mut TcpStream, refusal: &Answer) -> io::Result<()> {
    let Answer { code, header, body } = refusal;
    let header = header.map(|(name, value)| format!("{name}: {value}\r\n"));
    write!(
        to,
        "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
        header.unwrap_or_default(),
        body.len()
    )
}

fn write_chunk(to: &mut TcpStream, event: &Value) -> io::Result<()> {
    let text = format!("{event}\n");
    write!(to, "{:x}\r\n{text}\r\n", text.len())
}

fn bookmark(version: u64, ends_list: bool) -> Value {
    let annotations = match ends_list {
        true => json!({"k8s.io/initial-events-end": "true"}),
        false => json!({}),
    };
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "Pod", "spec": {"containers": null}, "status": {},
        "metadata": {"resourceVersion": version.to_string(), "annotations": annotations},
    }})
}

/// The `Status` of a refusal.
pub fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}
