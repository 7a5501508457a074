//! The thread `cri`: connects, follows and tells, and begins again when the runtime goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use super::endpoint::{self, Found};
use super::events::{End, Events};
use super::{DEADLINE, MAX_ANSWER, MAX_ASKED, Shared, Told, meaning};
use crate::grpc::client::{Channel, Method, said};
use crate::grpc::messages::cri::{
    ContainerFilter, ListContainersRequest, ListContainersResponse, ListPodSandboxRequest,
    ListPodSandboxResponse, PodSandboxFilter, path,
};
use crate::model::runtime_names::{Follows, Identified, RuntimeStatus};
use crate::sys::clock;

/// Between two lists that nothing asked for: the net below the events.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// The same where the runtime tells no events. Each new id is asked for besides.
const LIST_WITHOUT_EVENTS: Duration = Duration::from_secs(10);

/// The stream of events has begun by then; who began between the first list and that is in the second.
const SECOND_LIST: Duration = Duration::from_secs(1);

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

/// A question without an answer.
enum Unanswered {
    Left(Left),
    /// The runtime is slow, or its answer too large: it may be asked again, and its events go on.
    Late(String),
}

/// When the next list is due, boottime.
struct Lists {
    asked_at: Duration,
    due: Duration,
    /// After the next one that is not answered.
    pause: Duration,
}

impl Lists {
    /// The last one was not answered.
    fn are_late(&self) -> bool {
        self.pause != FIRST_LIST_PAUSE
    }

    /// One is wanted soon, unless they are not answered.
    fn hurry(&mut self) {
        if !self.are_late() {
            self.due = self.due.min(self.asked_at + LIST_GAP);
        }
    }
}

impl Follower {
    pub(super) fn new(
        sockets: Box<dyn Fn() -> Vec<PathBuf> + Send>,
        at_most: Follows,
        shared: Arc<Shared>,
        sink: Box<dyn Fn(Told) + Send>,
    ) -> Self {
        Self {
            sockets,
            at_most,
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
        let left = self.follow_events(&found, &mut events).await;
        // Whoever was told of until then has the name.
        if let Some(events) = &events {
            self.learn_events(events.take().events);
        }
        left
    }

    /// `events` is `None` if they are not wanted, and once it is known that the runtime tells none.
    async fn follow_events(&mut self, found: &Found, events: &mut Option<Events>) -> Left {
        let now = clock::boottime();
        let mut lists = Lists {
            asked_at: now,
            due: now,
            pause: FIRST_LIST_PAUSE,
        };
        // Said when there are names, or it is known that there are none yet.
        let mut status = RuntimeStatus {
            follows: match events {
                Some(_) => Follows::Events,
                None => Follows::Lists,
            },
            dropped_events: self.status.dropped_events,
            ..found.status()
        };
        let mut every = SECOND_LIST;
        loop {
            if clock::boottime() >= lists.due {
                // A kubelet that came later may have another one.
                if !(self.sockets)().contains(&found.endpoint) {
                    return Left::Failed("another runtime is to be asked".to_owned());
                }
                lists.asked_at = clock::boottime();
                status.fault = match self.list(&found.channel).await {
                    Ok(()) => {
                        lists.pause = FIRST_LIST_PAUSE;
                        lists.due = lists.asked_at + every;
                        every = match events {
                            Some(_) => LIST_EVERY,
                            None => LIST_WITHOUT_EVENTS,
                        };
                        None
                    }
                    Err(Unanswered::Late(why)) => {
                        lists.due = clock::boottime() + lists.pause;
                        lists.pause = (lists.pause * 2).min(LIST_EVERY);
                        Some(why)
                    }
                    Err(Unanswered::Left(left)) => return left,
                };
                self.set_status(status.clone());
            }
            match self.ask(&found.channel, lists.are_late()).await {
                Ok(true) => {}
                Ok(false) => lists.hurry(),
                Err(left) => return left,
            }
            let due = self.asked.values().map(|it| it.due);
            let due = due.fold(lists.due.min(clock::boottime() + WATCH), Duration::min);
            let wait = due.saturating_sub(clock::boottime());
            // Woken or not, there may be something.
            let _ = tokio::time::timeout(wait, self.shared.wake.notified()).await;
            if self.shared.is_stopped() {
                return Left::Stopped;
            }
            let Some(reader) = &*events else { continue };
            let mut taken = reader.take();
            self.learn_events(std::mem::take(&mut taken.events));
            if reader.is_late(clock::boottime()) && taken.end.is_none() {
                return Left::Failed("its events were not read in time".to_owned());
            }
            if taken.n_dropped > 0 {
                lists.hurry();
                status.dropped_events += taken.n_dropped;
                self.set_status(status.clone());
            }
            match taken.end {
                None => {}
                Some(End::Unsupported) => {
                    *events = None;
                    every = LIST_WITHOUT_EVENTS;
                    lists.due = lists.due.min(lists.asked_at + every);
                    status.follows = Follows::Lists;
                    self.set_status(status.clone());
                }
                Some(End::Failed(why)) => return Left::Failed(why),
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
    async fn list(&mut self, channel: &Channel) -> Result<(), Unanswered> {
        let sandboxes = self.sandboxes(channel, None).await?;
        let containers = self.containers(channel, None).await?;
        let listed = meaning::of_lists(&sandboxes.items, &containers.containers);
        let mut all: BTreeMap<String, Identified> = std::mem::take(&mut self.recent);
        all.extend(listed.into_iter().map(|it| (it.id.clone(), it)));
        self.known = all.keys().cloned().collect();
        self.asked.retain(|id, _| !self.known.contains(id));
        (self.sink)(Told::All(all.into_values().collect()));
        Ok(())
    }

    /// Asks for the ids that are due, for [`ROUND`] and one answer at most. `Ok(false)`: they are so many, or the runtime
    /// so slow, that a list is wanted.
    async fn ask(&mut self, channel: &Channel, lists_fail: bool) -> Result<bool, Left> {
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
        let are_asked = are_few || lists_fail;
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
                    Err(Unanswered::Late(_)) => is_late = true,
                    Err(Unanswered::Left(left)) => return Err(left),
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
        let mut found = self.containers(channel, Some(id)).await?;
        found.containers.retain(|it| it.id == id);
        if !found.containers.is_empty() {
            return Ok(meaning::of_lists(&[], &found.containers));
        }
        let mut found = self.sandboxes(channel, Some(id)).await?;
        found.items.retain(|it| it.id == id);
        Ok(meaning::of_lists(&found.items, &[]))
    }

    async fn sandboxes(
        &self,
        channel: &Channel,
        id: Option<&str>,
    ) -> Result<ListPodSandboxResponse, Unanswered> {
        let filter = id.map(|it| PodSandboxFilter { id: it.to_owned() });
        let question = ListPodSandboxRequest { filter };
        self.call(channel, path::LIST_POD_SANDBOX, question).await
    }

    async fn containers(
        &self,
        channel: &Channel,
        id: Option<&str>,
    ) -> Result<ListContainersResponse, Unanswered> {
        let filter = id.map(|it| ContainerFilter { id: it.to_owned() });
        let question = ListContainersRequest { filter };
        self.call(channel, path::LIST_CONTAINERS, question).await
    }

    async fn call<Q, A>(
        &self,
        channel: &Channel,
        path: &'static str,
        question: Q,
    ) -> Result<A, Unanswered>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let method = Method {
            path,
            max_answer: MAX_ANSWER,
        };
        let calling = channel.unary(method, question, DEADLINE);
        match self.unless_stopped(calling).await {
            None => Err(Unanswered::Left(Left::Stopped)),
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => match status.code() {
                // A filter that fits nobody.
                Code::NotFound => Ok(A::default()),
                Code::DeadlineExceeded | Code::OutOfRange | Code::ResourceExhausted => {
                    Err(Unanswered::Late(refused(path, &status)))
                }
                _ => Err(Unanswered::Left(Left::Failed(refused(path, &status)))),
            },
        }
    }
}

fn refused(path: &str, status: &Status) -> String {
    let method = path.rsplit('/').next().unwrap_or(path);
    format!("{method}: {}", said(status))
}
