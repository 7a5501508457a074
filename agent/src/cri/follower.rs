//! The thread `cri`: connects, follows and tells, and begins again when the runtime goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use super::endpoint::{self, Found};
use super::events::{End, Events};
use super::{DEADLINE, LIST_DEADLINE, MAX_ANSWER, MAX_ASKED, Shared, Told, meaning};
use crate::grpc::client::{Channel, Method, said};
use crate::grpc::messages::cri::{
    ContainerFilter, ContainerState, ContainerStateValue, ListContainersRequest,
    ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue, path,
};
use crate::model::runtime_names::{Follows, Identified, RuntimeStatus};
use crate::sys::clock;

/// Between two lists that nothing asked for: the net below the events.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// The same where the runtime tells no events. Each new id is asked for besides, and with each list the events that
/// were refused.
const LIST_WITHOUT_EVENTS: Duration = Duration::from_secs(10);

/// The stream of events has begun by then; who began between the first list and that is in the second.
const SECOND_LIST: Duration = Duration::from_secs(1);

/// So many are of all, from the first on.
const FULL_LISTS: u64 = 2;

/// Between two lists, at least.
const LIST_GAP: Duration = Duration::from_secs(1);

/// The cgroup of a container is made some 25 ms after the event that names it, and that of a sandbox 60 ms before:
/// who has no name by now was missed.
const ASK_AFTER: Duration = Duration::from_millis(75);

/// How often an id is asked for, each time after four times as long.
const ASKS: u32 = 3;

/// Ids that are known from events alone, while lists are not answered. Beyond it all are told again.
const MAX_RECENT: usize = 8192;

/// Ids that are due at once beyond which a list is cheaper.
const ASKED_TOGETHER: usize = 8;

/// Within which single questions are begun before events are looked at again; of the ids that are left a list tells.
const ROUND: Duration = Duration::from_millis(200);

/// The reader of events is looked after so often.
const WATCH: Duration = Duration::from_millis(250);

/// Between two lists that are not answered, from the first to the last: names of events go on meanwhile.
const FIRST_LIST_PAUSE: Duration = Duration::from_secs(1);

/// Before it is tried again, from the first failure to the last: the socket is the node's own.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// A runtime that was there for so long is tried again at once.
const LASTED: Duration = Duration::from_secs(10);

/// A runtime that was followed is looked for alone for so long after its end: it may be restarted, and another one of
/// the node would know nobody.
const STAYS: Duration = Duration::from_secs(60);

/// See the module. Times are boottime.
pub(super) struct Follower {
    sockets: Box<dyn Fn() -> Vec<PathBuf> + Send>,
    at_most: Follows,
    /// For each of the two calls of a list.
    list_deadline: Duration,
    shared: Arc<Shared>,
    sink: Box<dyn Fn(Told) + Send>,
    status: RuntimeStatus,
    is_told: bool,
    /// Learned since the last list began.
    recent: BTreeMap<String, Identified>,
    /// Ids of the last list, and of those.
    known: BTreeSet<String>,
    asked: BTreeMap<String, Asked>,
}

/// An id without a name.
#[derive(Clone, Copy, Debug)]
struct Asked {
    due: Duration,
    n: u32,
}

/// Why a connection is not followed any more.
enum Left {
    Stopped,
    Failed(String),
}

/// Why the runtime gives no answer.
enum Refused {
    /// It is slow, or its answer too large: it may be asked again, and its events go on.
    Late(String),
    Failed(String),
}

/// A question without an answer.
enum Unanswered {
    Stopped,
    Refused(Refused),
}

/// Who is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    All,
    Running,
}

/// A list that is asked for.
type Asking<'a> = Pin<Box<dyn Future<Output = Result<Vec<Identified>, Refused>> + 'a>>;

/// When the next list is due, boottime, and of whom.
struct Lists {
    asked_at: Duration,
    due: Duration,
    /// After the next one that is not answered.
    pause: Duration,
    /// That are asked for, or were last.
    whom: Whom,
    n_answered: u64,
    /// Somebody may have come and gone of whom no event tells, and nobody asks for his id.
    is_wanted: bool,
    /// Those of all are not answered: they are not asked for again.
    all_are_late: bool,
}

impl Lists {
    fn new(now: Duration) -> Self {
        Self {
            asked_at: now,
            due: now,
            pause: FIRST_LIST_PAUSE,
            whom: Whom::All,
            n_answered: 0,
            is_wanted: false,
            all_are_late: false,
        }
    }

    fn due(&self) -> Duration {
        match self.is_wanted && !self.are_late() {
            true => self.due.min(self.asked_at + LIST_GAP),
            false => self.due,
        }
    }

    fn begin(&mut self, now: Duration) -> Whom {
        let is_wanted = std::mem::take(&mut self.is_wanted);
        let is_of_all = self.n_answered < FULL_LISTS || is_wanted;
        self.whom = match is_of_all && !self.all_are_late {
            true => Whom::All,
            false => Whom::Running,
        };
        self.asked_at = now;
        self.whom
    }

    /// `every`: where nobody asks for one.
    fn answered(&mut self, every: Duration) {
        self.pause = FIRST_LIST_PAUSE;
        self.n_answered += 1;
        self.due = self.asked_at
            + match self.n_answered {
                1 => SECOND_LIST,
                _ => every,
            };
    }

    /// Whether it is a fault: those who run are not told.
    fn was_late(&mut self, now: Duration) -> bool {
        if self.whom == Whom::All {
            self.all_are_late = true;
            self.due = now;
            return false;
        }
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(LIST_EVERY);
        true
    }

    /// The last one of those who run was not answered.
    fn are_late(&self) -> bool {
        self.pause != FIRST_LIST_PAUSE
    }

    /// Who there is is known, or it is known that nobody says so.
    fn are_known(&self) -> bool {
        self.n_answered > 0 || self.are_late()
    }

    /// One would name those of whom nobody knows when they end.
    fn name_the_ended(&self) -> bool {
        !self.are_late() && !self.all_are_late
    }
}

impl Follower {
    pub(super) fn new(
        sockets: Box<dyn Fn() -> Vec<PathBuf> + Send>,
        at_most: Follows,
        list_deadline: Duration,
        shared: Arc<Shared>,
        sink: Box<dyn Fn(Told) + Send>,
    ) -> Self {
        Self {
            sockets,
            at_most,
            list_deadline,
            shared,
            sink,
            status: RuntimeStatus::default(),
            is_told: false,
            recent: BTreeMap::new(),
            known: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Until the agent ends.
    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut left: Option<(PathBuf, Duration)> = None;
        loop {
            let now = clock::boottime();
            let mut sockets = (self.sockets)();
            if let Some((endpoint, at)) = &left
                && now.saturating_sub(*at) < STAYS
                && sockets.contains(endpoint)
            {
                sockets = vec![endpoint.clone()];
            }
            let finding = endpoint::find(&sockets);
            let Some(found) = self.unless_stopped(finding).await else {
                return;
            };
            match found {
                Ok(found) => {
                    let began = clock::boottime();
                    let endpoint = found.endpoint.clone();
                    let followed = self.follow(found).await;
                    left = Some((endpoint, clock::boottime()));
                    match followed {
                        Left::Stopped => return,
                        Left::Failed(why) => self.set_status(RuntimeStatus {
                            follows: Follows::Nothing,
                            fault: Some(why),
                            ..self.status.clone()
                        }),
                    }
                    if clock::boottime().saturating_sub(began) >= LASTED {
                        pause = FIRST_PAUSE;
                    }
                }
                Err(missing) => {
                    // Which runtime it was stays known.
                    let RuntimeStatus {
                        endpoint, fault, ..
                    } = missing.status();
                    self.set_status(RuntimeStatus {
                        endpoint,
                        fault,
                        follows: Follows::Nothing,
                        ..self.status.clone()
                    });
                }
            }
            let pausing = tokio::time::sleep(pause / 2 + clock::random_part(pause / 2));
            if self.unless_stopped(pausing).await.is_none() {
                return;
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// `None`: the agent ends.
    async fn unless_stopped<F: Future>(&self, waiting: F) -> Option<F::Output> {
        let mut waiting = std::pin::pin!(waiting);
        let mut is_woken = false;
        let done = loop {
            if self.shared.is_stopped() {
                return None;
            }
            tokio::select! {
                done = waiting.as_mut() => break done,
                () = self.shared.wake.notified() => is_woken = true,
            }
        };
        if is_woken {
            // For whoever looks next: it may have been something else.
            self.shared.wake.notify_one();
        }
        Some(done)
    }

    fn set_status(&mut self, status: RuntimeStatus) {
        if !self.is_told || status != self.status {
            self.is_told = true;
            self.status = status;
            (self.sink)(Told::State(self.status.clone()));
        }
    }

    async fn follow(&mut self, found: Found) -> Left {
        let mut events = None;
        if self.at_most == Follows::Events {
            let started = Events::start(found.endpoint.clone(), Arc::clone(&self.shared));
            match started {
                Ok(started) => events = Some(started),
                Err(error) => {
                    return Left::Failed(format!("start a reader of its events: {error}"));
                }
            }
        }
        let left = self.follow_lists(&found, &mut events).await;
        // Whoever was told of until then has the name.
        if let Some(events) = &events {
            self.learn_events(events.take().events);
        }
        left
    }

    /// `events` is `None` if they are not wanted, once it is known that the runtime tells none, and between two lists
    /// while it refuses them.
    async fn follow_lists(&mut self, found: &Found, events: &mut Option<Events>) -> Left {
        let shared = Arc::clone(&self.shared);
        let mut lists = Lists::new(clock::boottime());
        // Said when there are names, or it is known that there are none yet.
        let mut status = RuntimeStatus {
            follows: match events {
                Some(_) => Follows::Events,
                None => Follows::Lists,
            },
            dropped_events: self.status.dropped_events,
            ..found.status()
        };
        let mut asking: Option<Asking<'_>> = None;
        loop {
            if asking.is_none() && clock::boottime() >= lists.due() {
                // A kubelet that came later may have another one.
                if !(self.sockets)().contains(&found.endpoint) {
                    return Left::Failed("another runtime is to be asked".to_owned());
                }
                let whom = lists.begin(clock::boottime());
                asking = Some(Box::pin(list(&found.channel, whom, self.list_deadline)));
                if events.is_none() && status.events_refused.is_some() {
                    let started = Events::start(found.endpoint.clone(), Arc::clone(&shared));
                    // Else the next list has another one.
                    *events = started.ok();
                }
            }
            // One call at a time.
            let due = match asking {
                Some(_) => Duration::MAX,
                None => {
                    match self.ask(&found.channel, lists.name_the_ended()).await {
                        Ok(true) => {}
                        Ok(false) => lists.is_wanted |= lists.name_the_ended(),
                        Err(left) => return left,
                    }
                    let due = self.asked.values().map(|it| it.due);
                    due.fold(lists.due(), Duration::min)
                }
            };
            let wait = due.saturating_sub(clock::boottime()).min(WATCH);
            let answer = tokio::select! {
                answer = answer(&mut asking) => Some(answer),
                () = shared.wake.notified() => None,
                () = tokio::time::sleep(wait) => None,
            };
            if shared.is_stopped() {
                return Left::Stopped;
            }
            if let Some(answer) = answer {
                asking = None;
                match answer {
                    Ok(listed) => {
                        self.take_list(listed);
                        lists.answered(match status.follows {
                            Follows::Events => LIST_EVERY,
                            Follows::Lists | Follows::Nothing => LIST_WITHOUT_EVENTS,
                        });
                        status.fault = None;
                    }
                    Err(Refused::Late(why)) => {
                        if lists.was_late(clock::boottime()) {
                            status.fault = Some(why);
                        } else {
                            tracing::info!(
                                why,
                                "the runtime lists who runs, and not who has ended"
                            );
                        }
                    }
                    Err(Refused::Failed(why)) => return Left::Failed(why),
                }
                if lists.are_known() {
                    self.set_status(status.clone());
                }
            }
            let Some(reader) = &*events else { continue };
            let mut taken = reader.take();
            self.learn_events(std::mem::take(&mut taken.events));
            if reader.is_late(clock::monotonic()) && taken.end.is_none() {
                return Left::Failed("its events were not read in time".to_owned());
            }
            if taken.n_dropped > 0 {
                lists.is_wanted = true;
                status.dropped_events += taken.n_dropped;
            }
            if let Some(end) = taken.end {
                status.events_refused = match end {
                    End::Unsupported => None,
                    End::Refused(why) => Some(why),
                    End::Failed(why) => return Left::Failed(why),
                };
                *events = None;
                lists.due = lists.due.min(lists.asked_at + LIST_WITHOUT_EVENTS);
                status.follows = Follows::Lists;
            } else if status.events_refused.is_some() && reader.has_lasted(clock::boottime()) {
                status.events_refused = None;
                status.follows = Follows::Events;
            }
            if lists.are_known() {
                self.set_status(status.clone());
            }
        }
    }

    fn learn_events(&mut self, events: Vec<Vec<Identified>>) {
        let has_happened = !events.is_empty();
        self.learn(events.into_iter().flatten().collect());
        if has_happened {
            (self.sink)(Told::Happened);
        }
    }

    /// Tells whom it has not told.
    fn learn(&mut self, identified: Vec<Identified>) {
        if self.recent.len() > MAX_RECENT {
            self.recent.clear();
            self.known.clear();
        }
        let new: Vec<Identified> = identified
            .into_iter()
            .filter(|it| self.known.insert(it.id.clone()))
            .collect();
        for it in &new {
            self.asked.remove(&it.id);
            self.recent.insert(it.id.clone(), it.clone());
        }
        if !new.is_empty() {
            (self.sink)(Told::Some(new));
        }
    }

    /// Tells everybody. What events told since the list before may be too new for this one.
    fn take_list(&mut self, listed: Vec<Identified>) {
        let mut all: BTreeMap<String, Identified> = std::mem::take(&mut self.recent);
        all.extend(listed.into_iter().map(|it| (it.id.clone(), it)));
        self.known = all.keys().cloned().collect();
        self.asked.retain(|id, _| !self.known.contains(id));
        (self.sink)(Told::All(all.into_values().collect()));
    }

    /// Asks for the ids that are due, for [`ROUND`] and one answer at most. `Ok(false)`: they are so many, or the runtime
    /// so slow, that a list is wanted. `lists_name`: one would name them.
    async fn ask(&mut self, channel: &Channel, lists_name: bool) -> Result<bool, Left> {
        let now = clock::boottime();
        let asked = std::mem::take(&mut *self.shared.asked());
        for id in asked {
            if self.asked.len() < MAX_ASKED && !self.known.contains(&id) {
                let first = Asked {
                    due: now + ASK_AFTER,
                    n: 0,
                };
                self.asked.entry(id).or_insert(first);
            }
        }
        let due = self.asked.iter().filter(|(_, it)| it.due <= now);
        let due: Vec<String> = due.map(|(id, _)| id.clone()).collect();
        let are_few = due.len() <= ASKED_TOGETHER;
        // Of many a list tells, if it is answered.
        let are_asked = are_few || !lists_name;
        let mut is_late = false;
        for (i, id) in due.into_iter().enumerate() {
            is_late |= clock::boottime().saturating_sub(now) >= ROUND;
            if are_asked && (is_late || i >= ASKED_TOGETHER) {
                // Not asked for: its turn comes.
                self.put_off(&id);
                continue;
            }
            if are_asked {
                match self.find(channel, &id).await {
                    Ok(found) => self.learn(found),
                    Err(Unanswered::Refused(Refused::Late(_))) => is_late = true,
                    Err(Unanswered::Refused(Refused::Failed(why))) => {
                        return Err(Left::Failed(why));
                    }
                    Err(Unanswered::Stopped) => return Err(Left::Stopped),
                }
            }
            if let Some(asked) = self.asked.get_mut(&id) {
                asked.n += 1;
                asked.due = clock::boottime() + ASK_AFTER * 4_u32.pow(asked.n);
                if asked.n >= ASKS {
                    self.asked.remove(&id);
                }
            }
        }
        Ok(are_few && !is_late)
    }

    fn put_off(&mut self, id: &str) {
        if let Some(asked) = self.asked.get_mut(id) {
            asked.due = clock::boottime() + LIST_GAP;
        }
    }

    /// One id. The filter of a runtime takes the beginning of another one for it too.
    async fn find(&self, channel: &Channel, id: &str) -> Result<Vec<Identified>, Unanswered> {
        let question = ListContainersRequest {
            filter: Some(ContainerFilter {
                id: id.to_owned(),
                state: None,
            }),
        };
        let calling = containers(channel, question, DEADLINE);
        let mut found = self.answered(calling).await?.containers;
        found.retain(|it| it.id == id);
        if !found.is_empty() {
            return Ok(meaning::of_lists(&[], &found));
        }
        let question = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter {
                id: id.to_owned(),
                state: None,
            }),
        };
        let calling = sandboxes(channel, question, DEADLINE);
        let mut found = self.answered(calling).await?.items;
        found.retain(|it| it.id == id);
        Ok(meaning::of_lists(&found, &[]))
    }

    async fn answered<A>(
        &self,
        calling: impl Future<Output = Result<A, Refused>>,
    ) -> Result<A, Unanswered> {
        match self.unless_stopped(calling).await {
            None => Err(Unanswered::Stopped),
            Some(answer) => answer.map_err(Unanswered::Refused),
        }
    }
}

/// Of a list that is asked for.
async fn answer(asking: &mut Option<Asking<'_>>) -> Result<Vec<Identified>, Refused> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// The ids of those who run and have names. `None`: the runtime does not answer.
pub(super) async fn named(channel: &Channel) -> Option<BTreeSet<String>> {
    let listed = list(channel, Whom::Running, LIST_DEADLINE).await.ok()?;
    Some(listed.into_iter().map(|it| it.id).collect())
}

/// Two calls, one after the other, each with this deadline.
async fn list(
    channel: &Channel,
    whom: Whom,
    deadline: Duration,
) -> Result<Vec<Identified>, Refused> {
    let is_running = whom == Whom::Running;
    let question = ListPodSandboxRequest {
        filter: is_running.then(|| PodSandboxFilter {
            id: String::new(),
            state: Some(PodSandboxStateValue {
                state: PodSandboxState::SandboxReady.into(),
            }),
        }),
    };
    let sandboxes = sandboxes(channel, question, deadline).await?;
    let question = ListContainersRequest {
        filter: is_running.then(|| ContainerFilter {
            id: String::new(),
            state: Some(ContainerStateValue {
                state: ContainerState::ContainerRunning.into(),
            }),
        }),
    };
    let containers = containers(channel, question, deadline).await?;
    Ok(meaning::of_lists(&sandboxes.items, &containers.containers))
}

async fn sandboxes(
    channel: &Channel,
    question: ListPodSandboxRequest,
    deadline: Duration,
) -> Result<ListPodSandboxResponse, Refused> {
    call(channel, path::LIST_POD_SANDBOX, question, deadline).await
}

async fn containers(
    channel: &Channel,
    question: ListContainersRequest,
    deadline: Duration,
) -> Result<ListContainersResponse, Refused> {
    call(channel, path::LIST_CONTAINERS, question, deadline).await
}

async fn call<Q, A>(
    channel: &Channel,
    path: &'static str,
    question: Q,
    deadline: Duration,
) -> Result<A, Refused>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let method = Method {
        path,
        max_answer: MAX_ANSWER,
    };
    match channel.unary(method, question, deadline).await {
        Ok(answer) => Ok(answer),
        Err(status) => match status.code() {
            // A filter that fits nobody.
            Code::NotFound => Ok(A::default()),
            Code::DeadlineExceeded | Code::OutOfRange | Code::ResourceExhausted => {
                Err(Refused::Late(refused(path, &status)))
            }
            _ => Err(Refused::Failed(refused(path, &status))),
        },
    }
}

fn refused(path: &str, status: &Status) -> String {
    let method = path.rsplit('/').next().unwrap_or(path);
    format!("{method}: {}", said(status))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::grpc::messages::cri::VersionResponse;

    const EVERY: Duration = LIST_WITHOUT_EVENTS;

    /// A runtime makes no container while a subscriber does not read: its connection is ended, and another begun.
    #[test]
    fn a_reader_of_events_that_hangs_is_cut_off() {
        let (of_events, mut runtime) = UnixStream::pair().expect("two sockets");
        // The reader has it open for as long as it hangs.
        let _open = of_events.try_clone().expect("it is a socket");
        let shared = Arc::<Shared>::default();
        let endpoint = PathBuf::from("/run/cri.sock");
        let sockets = vec![endpoint.clone()];
        let mut follower = Follower::new(
            Box::new(move || sockets.clone()),
            Follows::Events,
            LIST_DEADLINE,
            shared,
            Box::new(|_| {}),
        );
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let left = tokio.block_on(async {
            // Nobody answers its questions.
            let (calls, _silent) = UnixStream::pair().expect("two sockets");
            calls.set_nonblocking(true).expect("it is a socket");
            let found = Found {
                endpoint,
                channel: Channel::over(calls).await.expect("it is connected"),
                version: VersionResponse::default(),
            };
            let mut events = Some(Events::hanging(of_events));
            follower.follow_lists(&found, &mut events).await
        });
        let Left::Failed(why) = left else {
            panic!("it goes on");
        };
        assert_eq!(why, "its events were not read in time");
        let mut rest = Vec::new();
        let n = runtime.read_to_end(&mut rest).expect("it is closed");
        assert_eq!(n, 0);
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Two lists of all were answered, at 100 s and 101 s.
    fn lists() -> Lists {
        let mut lists = Lists::new(at(100));
        for due in [100, 101] {
            assert_eq!(lists.due(), at(due));
            assert_eq!(lists.begin(at(due)), Whom::All);
            lists.answered(EVERY);
        }
        lists
    }

    #[test]
    fn lists_are_of_those_who_run_unless_somebody_may_have_been_missed() {
        let mut lists = lists();
        assert_eq!(lists.due(), at(111));
        assert_eq!(lists.begin(at(111)), Whom::Running);
        lists.is_wanted = true;
        lists.answered(EVERY);
        assert_eq!(lists.due(), at(112), "it was asked for meanwhile");
        assert_eq!(lists.begin(at(112)), Whom::All);
        lists.answered(EVERY);
        assert_eq!(lists.due(), at(122));
        assert_eq!(lists.begin(at(122)), Whom::Running);
    }

    #[test]
    fn those_of_all_that_are_not_answered_are_not_asked_for_again() {
        let mut lists = Lists::new(at(100));
        assert_eq!(lists.begin(at(100)), Whom::All);
        assert!(!lists.was_late(at(110)), "who runs is asked for first");
        assert!(!lists.are_known() && !lists.name_the_ended());
        assert_eq!(lists.due(), at(110));
        assert_eq!(lists.begin(at(110)), Whom::Running);
        lists.answered(EVERY);
        assert!(lists.are_known());
        lists.is_wanted = true;
        assert_eq!(lists.begin(at(120)), Whom::Running);
    }

    #[test]
    fn lists_that_are_not_answered_are_asked_for_ever_later() {
        let mut lists = lists();
        lists.begin(at(111));
        for (now, due) in [(111, 112), (122, 124), (134, 138)] {
            assert!(lists.was_late(at(now)));
            lists.is_wanted = true;
            assert_eq!(lists.due(), at(due));
        }
        lists.begin(at(138));
        lists.answered(EVERY);
        assert!(!lists.are_late());
        assert_eq!(lists.due(), at(148));
    }
}
