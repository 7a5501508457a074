//! Which Events the API server gets, and when: one object for what happens again and again to one container, few
//! writes, and none without bound.
//!
//! In: notices of what happened, and what became of each write. Out: the next write.
//!
//! An agent that is killed has not told everything. The next one takes as *earlier* notices what happened after
//! [`Outbox::told_until`], as it was last: those that the object on the API server tells of are not told again.
//!
//! Invariants: one write at a time; who is refused goes after all whose namespaces refuse nothing; a count never falls
//! while its object is there; what is not written is counted.

mod notice;
mod unnamed;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use self::notice::notices;
pub use self::unnamed::{Kill, Unnamed, told_until};

use crate::model::kube_event::{MAX_MESSAGE, Notice, Outcome, Reason, Regarding, Write, WriteKind};
use crate::model::time::WallTime;

/// Between two writes of one object: the first gap and the longest. Each gap is twice as long as the one before it. With
/// the longest, a pod that is killed every second costs the API server 288 writes a day; with the first alone 8640.
const FIRST_GAP: Duration = Duration::from_secs(10);
const LAST_GAP: Duration = Duration::from_secs(300);

/// New objects of a node, and writes: so many at once, and then one after the other. As the spam filter of client-go's
/// recorder has it for one object (tools/record/events_cache.go, burst 25), but that new ones come again within seconds.
const BURST: u32 = 25;
const EVERY: Duration = Duration::from_millis(200);

/// After a write that failed, at first and at last: others are written meanwhile.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Objects that are not written yet, at most; as many as the recorder of client-go keeps.
const MAX_WAITING: usize = 1_000;

/// Objects in all; of more those are forgotten that nothing has happened to for longest. As many as the cache of the
/// recorder has.
const MAX_OBJECTS: usize = 4_096;

/// What could not be written for so long is not news any more. A series that was quiet for so long is over, and the gaps of
/// its object begin anew.
pub const OLD: Duration = Duration::from_secs(15 * 60);

/// How long a write is tried whose news is almost old, or older, when its time comes: the name of its pod was waited for,
/// or the end of a gap.
const LATE: Duration = Duration::from_secs(60);

/// Commands that are told apart; of more it is said that there were more.
const MAX_COMMANDS: usize = 16;

type Key = (Regarding, Reason);

/// See the module. Times are boottime, but for those that are shown.
#[derive(Debug)]
pub struct Outbox {
    objects: BTreeMap<Key, Object>,
    in_flight: Option<(Key, u64)>,
    new_objects: Allowance,
    writes: Allowance,
    n_objects: u64,
    given_up: Option<GivenUp>,
    /// When the newest happened of what was taken; zero: nothing was.
    taken_until: Duration,
    counts: BTreeMap<Reason, Counts>,
}

/// Of one reason, since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of which an Event tells.
    pub sent: u64,
    /// Of which an Event of the node tells, as of one of many.
    pub folded: u64,
    /// Of which none tells.
    pub dropped: u64,
}

/// [`BURST`] at once, and one more after [`EVERY`].
#[derive(Debug)]
struct Allowance {
    /// When all of them may come again.
    is_full_at: Duration,
}

impl Allowance {
    /// When the next one may come.
    fn next(&self) -> Duration {
        (self.is_full_at + EVERY).saturating_sub(EVERY * BURST)
    }

    /// Whether one may come now, which it does then.
    fn take(&mut self, now: Duration) -> bool {
        let is_within = self.next() <= now;
        if is_within {
            self.is_full_at = self.is_full_at.max(now) + EVERY;
        }
        is_within
    }
}

/// Why the last object that was given up had not been written: until one is written in its namespace, or nobody asks any
/// more.
#[derive(Debug)]
struct GivenUp {
    /// `None`: it was of the node.
    namespace: Option<String>,
    /// When it was tried last.
    at: Duration,
    why: String,
}

#[derive(Debug)]
struct Object {
    id: u64,
    first: WallTime,
    newest: Notice,
    happened_at: Duration,
    commands: BTreeSet<String>,
    /// Before this agent, as the object on the API server has it.
    n_before: u64,
    /// Those before this agent happened until then.
    before_until: Duration,
    /// Part of `n`, which an earlier agent may have told: when, and how many. Empty once the object is there.
    earlier: Vec<(Duration, u64)>,
    n: u64,
    n_written: u64,
    is_there: bool,
    is_name_taken: bool,
    /// Of the next write.
    due: Duration,
    /// After the next one that is taken.
    gap: Duration,
    /// After the next one that fails.
    pause: Duration,
    /// When its last write failed, and why.
    fault: Option<(Duration, String)>,
}

impl Outbox {
    pub fn new(now: Duration) -> Self {
        Self {
            objects: BTreeMap::new(),
            in_flight: None,
            new_objects: Allowance { is_full_at: now },
            writes: Allowance { is_full_at: now },
            n_objects: 0,
            given_up: None,
            taken_until: Duration::ZERO,
            counts: Reason::ALL.map(|it| (it, Counts::default())).into(),
        }
    }

    /// Takes what happened.
    pub fn take(&mut self, notice: Notice, now: Duration) {
        let key = (notice.regarding.clone(), notice.reason);
        if self.is_to_fold(&key, now) {
            self.count(notice.reason, |it| it.folded += notice.n);
            return self.take(folded(notice), now);
        }
        self.add(key, notice, now);
    }

    /// Takes what happened before this agent, of which an earlier one may have told. It is told by an object of its
    /// own, whatever the number: what that one tells already it says itself, and one of many could not.
    pub fn take_earlier(&mut self, notice: Notice, now: Duration) {
        let key = (notice.regarding.clone(), notice.reason);
        let (at, n) = (notice.since_boot, notice.n);
        let known = self.objects.get(&key);
        if known.is_some_and(|it| at <= it.before_until) {
            return;
        }
        let is_there = known.is_some_and(|it| it.is_there);
        self.add(key.clone(), notice, now);
        if let Some(object) = self.objects.get_mut(&key).filter(|_| !is_there) {
            object.earlier.push((at, n));
        }
    }

    /// Whether it is one object too many.
    fn is_to_fold(&mut self, key: &Key, now: Duration) -> bool {
        let is_new = key.0 != Regarding::Node && !self.objects.contains_key(key);
        is_new && !self.new_objects.take(now)
    }

    fn add(&mut self, key: Key, notice: Notice, now: Duration) {
        self.taken_until = self.taken_until.max(notice.since_boot);
        match self.objects.get_mut(&key) {
            Some(object) => object.add(notice),
            None => {
                self.n_objects += 1;
                let object = Object::new(self.n_objects, notice, now);
                self.objects.insert(key, object);
            }
        }
        self.bound();
    }

    fn bound(&mut self) {
        let waiting = self.objects.values().filter(|it| !it.is_there).count();
        if waiting > MAX_WAITING {
            self.forget_oldest(|it| !it.is_there);
        } else if self.objects.len() > MAX_OBJECTS {
            self.forget_oldest(|it| it.is_there);
        }
    }

    fn forget_oldest(&mut self, is_it: impl Fn(&Object) -> bool) {
        let in_flight = self.in_flight.as_ref().map(|(key, _)| key.clone());
        let objects = self.objects.iter();
        let of_them = objects.filter(|(key, it)| is_it(it) && Some(*key) != in_flight.as_ref());
        let oldest = of_them.min_by_key(|(_, it)| it.happened_at);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(object) = self.objects.remove(key) {
            self.count(key.1, |it| it.dropped += object.n - object.n_written);
            let is_waiting = object.due().is_some();
            if let Some((at, why)) = object.fault.filter(|_| is_waiting) {
                let namespace = namespace(key).map(str::to_owned);
                self.given_up = Some(GivenUp { namespace, at, why });
            }
        }
    }

    fn forget_given_up(&mut self, namespace: Option<&str>) {
        self.given_up
            .take_if(|it| it.namespace.as_deref() == namespace);
    }

    /// What is to be written next: first what namespaces have that refuse nothing, of that what has failed least often,
    /// of that what did not happen before this agent, and of that what has waited longest. Until [`Outbox::done`] says
    /// what became of it there is nothing else.
    pub fn next(&mut self, now: Duration) -> Option<Write> {
        if self.in_flight.is_some() {
            return None;
        }
        self.forget_old(now);
        let refused: BTreeSet<&str> = self
            .objects
            .iter()
            .filter(|(_, it)| it.due().is_some() && it.fault.is_some())
            .filter_map(|(key, _)| namespace(key))
            .collect();
        let due = self
            .objects
            .iter()
            .filter(|(_, it)| it.due() <= Some(now) && it.due().is_some());
        // A namespace can refuse each of its Events after ten seconds, as one whose webhook is away.
        let (key, object) = due.min_by_key(|(key, it)| {
            let is_refused = namespace(key).is_some_and(|it| refused.contains(it));
            (
                is_refused,
                it.pause,
                it.is_earlier(),
                it.due,
                it.happened_at,
            )
        })?;
        if !self.writes.take(now) {
            return None;
        }
        let write = object.write(key);
        self.in_flight = Some((key.clone(), object.n));
        Some(write)
    }

    fn forget_old(&mut self, now: Duration) {
        let old = self.objects.iter().filter(|(_, it)| it.is_old(now));
        let old: Vec<Key> = old.map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| self.forget(key));
        self.given_up
            .take_if(|it| now.saturating_sub(it.at) > 2 * OLD);
    }

    /// What waits for its time is written as soon as may be: the agent ends.
    pub fn hurry(&mut self, now: Duration) {
        for object in self.objects.values_mut() {
            object.due = object.due.min(now);
        }
    }

    /// What became of the write that [`Outbox::next`] gave.
    pub fn done(&mut self, outcome: Outcome, now: Duration) {
        let Some((key, n)) = self.in_flight.take() else {
            return;
        };
        let Some(object) = self.objects.get_mut(&key) else {
            return;
        };
        match outcome {
            Outcome::Written => {
                let new = n - object.n_written;
                (object.n_written, object.is_there) = (n, true);
                object.earlier.clear();
                (object.due, object.pause) = (now + object.gap, FIRST_PAUSE);
                object.gap = (object.gap * 2).min(LAST_GAP);
                object.fault = None;
                self.count(key.1, |it| it.sent += new);
                self.forget_given_up(namespace(&key));
            }
            Outcome::Exists {
                count,
                is_own,
                told_until,
            } => {
                (object.is_there, object.due) = (true, now);
                (object.pause, object.fault) = (FIRST_PAUSE, None);
                match is_own {
                    true => {
                        let n_written = count.saturating_sub(object.n_before).min(object.n);
                        let new = n_written.saturating_sub(object.n_written);
                        object.n_written += new;
                        self.count(key.1, |it| it.sent += new);
                    }
                    false => {
                        object.n_before = count;
                        object.leave_told(told_until);
                    }
                }
            }
            Outcome::Taken => {
                object.is_name_taken = true;
                object.due = now;
            }
            Outcome::Gone => {
                object.is_there = false;
                object.due = now;
            }
            Outcome::Never => {
                // There is nothing to be mended.
                object.fault = None;
                self.forget(&key);
                self.forget_given_up(namespace(&key));
            }
            Outcome::Failed { why, after } => {
                object.due = now + object.pause.max(after);
                object.pause = (object.pause * 2).min(LAST_PAUSE);
                object.fault = Some((now, why));
            }
        }
    }

    /// When there is something to write, unless a write is under way; `None`: nothing is waited for.
    pub fn wake(&self) -> Option<Duration> {
        if self.in_flight.is_some() {
            return None;
        }
        let due = self.objects.values().filter_map(Object::due).min()?;
        Some(due.max(self.writes.next()))
    }

    /// Everything that was taken until then was told, or will not be. `None`: something waits.
    pub fn told_until(&self) -> Option<Duration> {
        (self.n_waiting() == 0).then_some(self.taken_until)
    }

    /// Why an Event waits or was given up: of those that wait that of the one that has failed most often. `None`: none
    /// has failed, or what was given up is in a namespace where another was written since, or was tried half an hour ago.
    pub fn fault(&self) -> Option<&str> {
        let waiting = self.objects.values().filter(|it| it.due().is_some());
        let stuck = waiting.filter_map(|it| Some((it.pause, &it.fault.as_ref()?.1)));
        let stuck = stuck.max_by_key(|(pause, _)| *pause).map(|(_, why)| why);
        let given_up = self.given_up.as_ref().map(|it| &it.why);
        stuck.or(given_up).map(String::as_str)
    }

    /// Whether something waits that has not failed since then.
    pub fn has_untried(&self, since: Duration) -> bool {
        let mut waiting = self.objects.values().filter(|it| it.due().is_some());
        waiting.any(|it| it.fault.as_ref().is_none_or(|(at, _)| *at < since))
    }

    /// So many are on record as a number alone.
    pub fn give_up_unnamed(&mut self, n: u64) {
        self.count(Reason::OomKilled, |it| it.dropped += n);
    }

    pub fn counts(&self) -> &BTreeMap<Reason, Counts> {
        &self.counts
    }

    /// Of which no Event tells yet.
    pub fn n_waiting(&self) -> u64 {
        let objects = self.objects.values();
        objects.map(|it| it.n - it.n_written).sum()
    }

    fn count(&mut self, reason: Reason, count: impl FnOnce(&mut Counts)) {
        count(self.counts.entry(reason).or_default());
    }
}

/// `None`: of the node.
fn namespace((regarding, _): &Key) -> Option<&str> {
    match regarding {
        Regarding::Pod { pod, .. } => Some(&pod.namespace),
        Regarding::Node => None,
    }
}

/// One of many that have no Event of their own.
fn folded(notice: Notice) -> Notice {
    Notice {
        regarding: Regarding::Node,
        reason: Reason::OomRepeated,
        message: match &notice.regarding {
            Regarding::Pod { pod, .. } => format!(
                "OOM kills in more pods than have Events of their own; the newest in {pod}: {}",
                notice.message
            ),
            Regarding::Node => notice.message,
        },
        ..notice
    }
}

impl Object {
    fn new(id: u64, notice: Notice, now: Duration) -> Self {
        Self {
            id,
            first: notice.at,
            happened_at: notice.since_boot,
            commands: notice.command.iter().cloned().collect(),
            n_before: 0,
            before_until: Duration::ZERO,
            earlier: Vec::new(),
            n: notice.n,
            n_written: 0,
            is_there: false,
            is_name_taken: false,
            due: now,
            gap: FIRST_GAP,
            pause: FIRST_PAUSE,
            fault: None,
            newest: notice,
        }
    }

    fn add(&mut self, notice: Notice) {
        if notice.since_boot > self.happened_at + OLD {
            self.gap = FIRST_GAP;
        }
        self.n += notice.n;
        self.happened_at = self.happened_at.max(notice.since_boot);
        if self.commands.len() <= MAX_COMMANDS {
            self.commands.extend(notice.command.clone());
        }
        if notice.since_boot >= self.newest.since_boot {
            self.newest = notice;
        }
    }

    /// Those earlier ones that the object tells of are part of its count. `until`: what happened until then; `None`:
    /// all, as far as is known.
    fn leave_told(&mut self, until: Option<Duration>) {
        self.before_until = until.unwrap_or(Duration::MAX);
        let told = self
            .earlier
            .iter()
            .filter(|(at, _)| *at <= self.before_until);
        self.n -= told.map(|(_, n)| n).sum::<u64>();
        self.earlier.clear();
    }

    /// `None`: it is written.
    fn due(&self) -> Option<Duration> {
        (self.n > self.n_written).then_some(self.due)
    }

    /// It waits, and is not news any more. The time that it waits for the end of a gap does not count.
    fn is_old(&self, now: Duration) -> bool {
        let waits_for_gap = self.is_there && self.fault.is_none();
        let tried_until = waits_for_gap.then(|| self.due + LATE);
        self.due().is_some()
            && now > self.happened_at + OLD
            && tried_until.is_none_or(|it| now > it)
    }

    /// All of it happened before this agent.
    fn is_earlier(&self) -> bool {
        !self.earlier.is_empty() && self.earlier.iter().map(|(_, n)| n).sum::<u64>() == self.n
    }

    fn write(&self, (regarding, reason): &Key) -> Write {
        let count = self.n_before + self.n;
        Write {
            kind: match self.is_there {
                true => WriteKind::Patch,
                false => WriteKind::Create,
            },
            id: self.id,
            is_name_taken: self.is_name_taken,
            regarding: regarding.clone(),
            reason: *reason,
            role: None,
            count,
            first: self.first,
            last: self.newest.at,
            told_until: self.newest.since_boot,
            message: cut(&self.newest.message, &self.repeated(count)),
            details: self.newest.details.clone(),
        }
    }

    fn repeated(&self, count: u64) -> String {
        if count < 2 {
            return String::new();
        }
        let commands = match self.commands.len() {
            0 | 1 => String::new(),
            n if n > MAX_COMMANDS => format!(" of more than {MAX_COMMANDS} commands"),
            n => format!(" of {n} commands"),
        };
        format!("; the newest of {count}{commands}")
    }
}

/// What an API server takes, whole characters. The end stays whole.
fn cut(message: &str, end: &str) -> String {
    const MORE: &str = "...";
    let room = MAX_MESSAGE.saturating_sub(end.len());
    if message.len() <= room {
        return format!("{message}{end}");
    }
    let length = message.floor_char_boundary(room.saturating_sub(MORE.len()));
    format!("{}{MORE}{end}", &message[..length])
}

#[cfg(test)]
mod tests;
