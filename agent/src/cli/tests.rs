use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory;
use tokio::sync::watch;

use super::*;
use crate::model::event::ProcessChange;
use crate::model::record::tests::oom_record;
use crate::model::record::{EventDetail, EventRecord, ProcessDetail};
use crate::model::status::Status;
use crate::model::status::tests::example_status;
use crate::observe::event_log::EventLog;
use crate::observe::shutdown;
use crate::observe::socket::{self, Sources};
use crate::sys::scratch::Scratch;

fn parse_line(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_of_the_arguments_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn usage_errors_end_with_status_2() {
    for line in [
        "ballast",
        "ballast run",
        "ballast status -o yaml",
        "ballast status --socket /a --config /b",
        "ballast events --kind oom,everything",
        "ballast events --since yesterday",
        "ballast explain",
        "ballast explain pod",
        "ballast explain pod a/b/c",
        "ballast explain pod /web",
        "ballast explain pod web --record -o json",
        "ballast replay",
        "ballast frobnicate",
    ] {
        let error = parse_line(line).err().map(|it| it.exit_code());
        assert_eq!(error, Some(2), "{line}");
    }
}

#[test]
fn arguments_of_events_are_read() {
    let cli = parse_line("ballast events -f -o json --kind oom,process --since 10m --after 7");
    let Ok(Cli {
        command: Command::Events(args),
    }) = cli
    else {
        panic!("{cli:?}");
    };
    assert!(args.follow);
    assert_eq!(args.output, Output::Json);
    assert_eq!(args.kind, [EventKind::Oom, EventKind::Process]);
    assert_eq!(args.since, Some(Since::Ago(Duration::from_secs(600))));
    assert_eq!(args.after, Some(7));
}

#[test]
fn since_is_an_age_or_a_time() {
    let now = WallTime::from_epoch(Duration::from_secs(1_000_000));
    for (text, expected) in [
        ("30s", Some(999_970)),
        ("2h", Some(992_800)),
        ("1d", Some(913_600)),
        ("99999d", Some(0)),
        ("1970-01-01T00:00:05Z", Some(5)),
        ("", None),
        ("5", None),
        ("-5m", None),
        ("+5m", None),
        ("5 m", None),
        ("99999999999999999999s", None),
        ("9999999999999999999d", None),
        ("5µ", None),
    ] {
        let since = text.parse::<Since>().ok();
        let time = since.map(|it| it.time(now).since_epoch().as_secs());
        assert_eq!(time, expected, "{text:?}");
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    struct Gone(io::ErrorKind);
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for (kind, expected) in [
        (io::ErrorKind::BrokenPipe, Some(false)),
        (io::ErrorKind::StorageFull, None),
    ] {
        let mut screen = Screen {
            out: &mut Gone(kind),
            width: DEFAULT_WIDTH,
            has_colour: false,
        };
        assert_eq!(screen.write("text").ok(), expected, "{kind}");
    }
}

const STATUS_AT_80: &str = r#"
worker-1: own mode, cgroup v1 (cgroupfs driver, root /)
agent 0.1.0 (pid 812) up 1h2m, reconciled 372 times, the last in 1.8 ms
96 writes, 0 refused; 41 events
block IO of vda is not counted for cgroups: ballast check says why

RESOURCE  CAPACITY  RESERVED  ALLOCATABLE   REQUESTED   USED
cpu              4      200m        3800m  600m (16%)    25m
memory       8.0Gi     612Mi        7.4Gi  320Mi (4%)  192Mi
pods          1100         0         1100      3 (0%)      -

STALLED, LAST 10 s    SOME    FULL
cpu                  1.25%       -
memory                   -       -
io                  12.50%  10.01%

pressure: MemoryPressure
memory available: 480Mi working set (decides), 1.5Gi estimate, 1.7Gi meminfo

SIGNAL             AVAILABLE  EVICTS BELOW        LEFT
memory.available       480Mi         500Mi  met, -20Mi
nodefs.inodesFree          -             -           -

eBPF: 1 of 2 programs attached; events lost: 17 process
  not pinned, ends with the agent: /var/lib/pins is not on a bpffs
  oom_kill_process: fentry is refused; the limit is derived

POD                     QOS         PHASE    CPU use/req/lim  MEMORY use/req/lim
default/database        Guaranteed  Running    25m/500m/500m   192Mi/256Mi/256Mi
  prepare (init)  Completed, exit code 0
  main            running 1h2m, pid 901, cpus 2-3
a-namespace-with-a-long-name/hungry-7d9c6b5f4-x2x9z
                        Burstable   Running         -/100m/-        -/64Mi/1.5Gi
  main  CrashLoopBackOff, next start in 20s, 3 restarts, 3 OOM kills
default/idle            BestEffort  Failed             -/-/-               -/-/-
  OutOfmemory: the node has 0 of 64 MiB left

REFUSED MANIFESTS
/etc/ballast/pods/bad.yaml default/bad spec.containers[0].name
  "Main" is not a DNS label

WARNINGS
swap is on and failSwapOn is false
"#;

#[test]
fn status_reads_well_at_80_columns() {
    let status = example_status();
    let text = render_status(&status, status.agent.observed_at, 80, false);
    assert_eq!(text, STATUS_AT_80.trim_start(), "\n{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert_eq!(widest, Some(80));
}

#[test]
fn an_old_document_says_so() {
    let status = example_status();
    let now =
        WallTime::from_epoch(status.agent.observed_at.since_epoch() + Duration::from_secs(90));
    let text = render_status(&status, now, 80, false);
    assert!(text.contains("this is 1m30s old"), "{text}");
}

#[test]
fn pins_that_are_kept_from_the_agent_do_not_end_with_it() {
    let mut status = example_status();
    let why = "open the pinned map /sys/fs/bpf/ballast/oom/ring: EPERM";
    (status.node.ebpf.not_pinned, status.node.ebpf.kept) = (None, Some(why.to_owned()));
    let text = render_status(&status, status.agent.observed_at, 80, false);
    let line = text.lines().find(|it| it.contains(why)).expect(&text);
    assert!(line.contains("note for the next"), "{line}");
    assert!(!text.contains("ends with the agent"), "{text}");
}

#[test]
fn only_a_terminal_gets_colour() {
    let status = example_status();
    let now = status.agent.observed_at;
    assert!(!render_status(&status, now, 80, false).contains('\x1b'));
    let coloured = render_status(&status, now, 80, true);
    assert!(coloured.contains("\x1b[31m"), "{coloured}");
}

#[test]
fn events_are_one_line_each() {
    let oom = oom_record(7);
    let mut process = oom_record(8);
    process.event.kind = EventKind::Process;
    process.event.reason = "ProcessExec".into();
    process.event.method = None;
    process.event.message = "began \x1b[2J\nprogram".into();
    process.event.detail = Some(EventDetail::Process(ProcessDetail {
        pid: 1,
        start_boottime_ns: 0,
        comm: String::new(),
        change: ProcessChange::Exec,
    }));
    let mut agent = oom_record(9);
    agent.event.kind = EventKind::Agent;
    agent.event.reason = "EventsDropped".into();
    agent.event.pod = None;
    agent.event.message = "12 records were dropped".into();
    agent.event.detail = Some(EventDetail::Dropped { count: 12 });
    let mut unnamed = process.clone();
    unnamed.event.pod_uid = unnamed.event.pod.take().map(|it| it.uid);
    (unnamed.event.container, unnamed.event.container_id) =
        (None, Some("0123456789abcdef".to_owned()));
    let render = |it: &EventRecord| render_event(it, false);
    assert_eq!(
        [&oom, &process, &unnamed, &agent].map(render),
        [
            "11-21 07:26:40.123 oom       OomKilledChild default/hungry/main: killed sh \
             (pid 4711, 60.0 MiB anonymous) by the limit of the container (exact, after 84 us), record 3",
            "11-21 07:26:40.123 process   ProcessExec default/hungry/main: began ?[2J?program",
            "11-21 07:26:40.123 process   ProcessExec 0c4e/0123456789ab: began ?[2J?program",
            "11-21 07:26:40.123 agent     EventsDropped: 12 records were dropped",
        ]
    );
}

/// What `verb` writes, asked of an agent with one event, and with or without a status document.
async fn ask_agent<T>(has_status: bool, verb: T) -> (Result<(), CliError>, String)
where
    T: FnOnce(SocketArgs, &mut Screen) -> Result<(), CliError> + Send + 'static,
{
    let scratch = Scratch::new("cli");
    let path = scratch.path("ballast.sock");
    let status = has_status.then(|| Arc::new(example_status()));
    let events = EventLog::new(8, 0);
    events.append(oom_record(0).event);
    let sources = Sources {
        status: watch::channel(status).1,
        stats: watch::channel(None).1,
        stats_bell: None,
        events,
        catch_up: None,
        admissions: path.with_file_name("admissions"),
        oom_records: path.with_file_name("oom"),
    };
    let (trigger, shutdown) = shutdown::channel();
    let server = socket::serve(&path, sources, shutdown).expect("a fresh directory");
    let args = SocketArgs {
        socket: Some(path),
        config: None,
    };
    let asked = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        let mut screen = Screen {
            out: &mut out,
            width: DEFAULT_WIDTH,
            has_colour: false,
        };
        let result = verb(args, &mut screen);
        (result, String::from_utf8_lossy(&out).into_owned())
    });
    let answer = asked.await.expect("the verb does not panic");
    // A server that runs may make the directory of its socket anew.
    trigger.fire();
    server.task.await.expect("the server does not panic");
    answer
}

fn status_verb(output: Output) -> impl FnOnce(SocketArgs, &mut Screen) -> Result<(), CliError> {
    move |socket, screen| status(&StatusArgs { socket, output }, screen)
}

fn events_verb(output: Output) -> impl FnOnce(SocketArgs, &mut Screen) -> Result<(), CliError> {
    move |socket, screen| {
        let args = EventsArgs {
            socket,
            output,
            follow: false,
            kind: vec![EventKind::Oom],
            since: None,
            after: None,
            record: false,
        };
        events(&args, screen)
    }
}

#[tokio::test]
async fn both_verbs_show_what_the_agent_answers() {
    let (result, text) = ask_agent(true, status_verb(Output::Json)).await;
    assert!(result.is_ok(), "{result:?}");
    let shown = serde_json::from_str::<Status>(&text).ok();
    assert_eq!(shown, Some(example_status()));

    let (result, text) = ask_agent(true, status_verb(Output::Text)).await;
    assert!(result.is_ok(), "{result:?}");
    assert!(text.starts_with("worker-1: own mode"), "{text}");

    let (result, text) = ask_agent(true, events_verb(Output::Json)).await;
    assert!(result.is_ok(), "{result:?}");
    let shown = serde_json::from_str::<EventRecord>(&text).ok();
    assert_eq!(shown, Some(oom_record(1)));

    let (result, text) = ask_agent(true, events_verb(Output::Text)).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(text, render_event(&oom_record(1), false) + "\n");
}

fn explain_verb(line: &str) -> impl FnOnce(SocketArgs, &mut Screen) -> Result<(), CliError> {
    let parsed = parse_line(&format!("ballast explain {line}"));
    move |socket, screen| {
        let mut target = match parsed {
            Ok(Cli {
                command: Command::Explain(target),
            }) => target,
            other => panic!("{other:?}"),
        };
        match &mut target {
            ExplainTarget::Pod(args) => args.socket = socket,
            ExplainTarget::Node(args) => args.status.socket = socket,
        }
        explain(&target, screen)
    }
}

#[tokio::test]
async fn a_pod_and_the_node_are_explained() {
    for line in [
        "pod database",
        "pod default/database",
        "pod database -n default",
    ] {
        let (result, text) = ask_agent(true, explain_verb(line)).await;
        assert!(result.is_ok(), "{line}: {result:?}");
        assert!(text.starts_with("default/database: Guaranteed"), "{text}");
    }
    let (result, text) = ask_agent(true, explain_verb("pod database -o json")).await;
    assert!(result.is_ok(), "{result:?}");
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["pod"]["uid"], "6a1f");
    assert_eq!(shown["record"], serde_json::Value::Null);
    for line in ["node", "node worker-1"] {
        let (result, text) = ask_agent(true, explain_verb(line)).await;
        assert!(result.is_ok(), "{line}: {result:?}");
        assert!(text.starts_with("worker-1\n"), "{text}");
    }
}

#[tokio::test]
async fn what_cannot_be_explained_is_told_by_the_exit_status() {
    for (line, expected, status) in [
        ("pod nobody", "no pod nobody", 1),
        ("pod test/database", "no pod test/database", 1),
        ("pod database --record", "no record", 1),
        ("node worker-2", "the agent here is of node worker-1", 1),
        ("pod default/database -n test", "right would be one", 2),
    ] {
        let (result, text) = ask_agent(true, explain_verb(line)).await;
        let error = result.expect_err(line);
        assert!(error.to_string().contains(expected), "{line}: {error}");
        assert_eq!((error.exit_code(), text.as_str()), (status, ""), "{line}");
    }
}

#[tokio::test]
async fn what_the_agent_refuses_is_said() {
    let (result, text) = ask_agent(false, status_verb(Output::Text)).await;
    let error = result.expect_err("there is no status yet");
    assert!(error.to_string().contains("starting"), "{error}");
    assert_eq!((error.exit_code(), text.as_str()), (1, ""));
}

#[test]
fn a_configuration_that_cannot_be_read_is_bad_usage() {
    let args = SocketArgs {
        socket: None,
        config: Some("/nonexistent/ballast.yaml".into()),
    };
    let error = args.path().map_err(CliError::from).err();
    assert_eq!(error.map(|it| it.exit_code()), Some(2));
}
