//! The places of a server's connections.
//!
//! Invariant: a client keeps nobody out by waiting. When every place is taken, the connection that
//! has kept the agent waiting longest ends: an idle one, one whose request never ends, one that does
//! not read its answer, or one that waits for a disk. No connection ends while the agent works for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// A client that has just connected, or was just answered, has this long to act before another may
/// have its place: one that waits is told to end no later than this after a newcomer has come.
pub(crate) const TURN_GRACE: Duration = Duration::from_millis(20);

/// All places of one server. One task takes them.
pub(crate) struct ClientPlaces {
    max: usize,
    taken: Mutex<Taken>,
    /// A connection has ended, or waits for its client now.
    changed: Notify,
}

#[derive(Default)]
struct Taken {
    next_id: u64,
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    turn: Turn,
    /// Told when the connection has to end.
    end: Arc<Notify>,
}

/// Whose turn it is on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Agent,
    Client {
        since: Instant,
    },
    /// It was told to end.
    Over,
}

/// The place of one connection, until it is dropped. It begins with the client's turn.
pub(crate) struct ClientPlace {
    places: Arc<ClientPlaces>,
    id: u64,
    end: Arc<Notify>,
}

impl ClientPlaces {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A place for a connection that is there already, as soon as there is one.
    pub(crate) async fn take(self: &Arc<Self>) -> ClientPlace {
        let begun = Instant::now();
        loop {
            if let Some(place) = self.take_free() {
                return place;
            }
            let Some(due) = self.make_room(begun) else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    fn take_free(self: &Arc<Self>) -> Option<ClientPlace> {
        let mut taken = self.lock();
        if taken.connections.len() >= self.max {
            return None;
        }
        let id = taken.next_id;
        taken.next_id += 1;
        let end = Arc::new(Notify::new());
        let connection = Connection {
            turn: Turn::Client {
                since: Instant::now(),
            },
            end: Arc::clone(&end),
        };
        taken.connections.insert(id, connection);
        Some(ClientPlace {
            places: Arc::clone(self),
            id,
            end,
        })
    }

    /// Tells the connection that has waited longest for its client to end, or gives the time when
    /// it may be told. `None`: only a change helps. `begun`: since when somebody needs the place.
    fn make_room(&self, begun: Instant) -> Option<Instant> {
        let mut taken = self.lock();
        let connections = &mut taken.connections;
        if connections.values().any(|it| it.turn == Turn::Over) {
            return None;
        }
        let waiting = connections.values_mut().filter_map(|it| match it.turn {
            Turn::Client { since } => Some((since, it)),
            Turn::Agent | Turn::Over => None,
        });
        let (since, longest) = waiting.min_by_key(|(since, _)| *since)?;
        let due = since.min(begun) + TURN_GRACE;
        if due > Instant::now() {
            return Some(due);
        }
        longest.turn = Turn::Over;
        longest.end.notify_one();
        None
    }

    /// Every change is one assignment, so a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientPlace {
    /// The agent works for the client from now on.
    pub(crate) fn agents_turn(&self) {
        self.set(Turn::Agent);
    }

    /// The agent waits for the client from now on: to read, to ask, to go. Or it waits for something else on behalf of
    /// the client, which is not work.
    pub(crate) fn clients_turn(&self) {
        let since = Instant::now();
        self.set(Turn::Client { since });
        self.places.changed.notify_one();
    }

    /// The client has taken a part of what the agent has for it.
    pub(crate) fn client_has_moved(&self) {
        if self.client_since().is_some() {
            self.clients_turn();
        }
    }

    /// Returns when the connection has to end: somebody else needs its place.
    pub(crate) async fn taken_back(&self) {
        self.end.notified().await;
    }

    /// Returns when the client has had its turn for `patience`.
    pub(crate) async fn kept_waiting(&self, patience: Duration) {
        loop {
            let since = self.client_since().unwrap_or_else(Instant::now);
            if since.elapsed() >= patience {
                return;
            }
            tokio::time::sleep_until(since + patience).await;
        }
    }

    fn client_since(&self) -> Option<Instant> {
        match self.places.lock().connections.get(&self.id)?.turn {
            Turn::Client { since } => Some(since),
            Turn::Agent | Turn::Over => None,
        }
    }

    fn set(&self, turn: Turn) {
        let mut taken = self.places.lock();
        if let Some(connection) = taken.connections.get_mut(&self.id)
            && connection.turn != Turn::Over
        {
            connection.turn = turn;
        }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.id);
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_told_to_end(place: &ClientPlace) -> bool {
        tokio::time::timeout(Duration::ZERO, place.taken_back())
            .await
            .is_ok()
    }

    /// Whether `places` has one more within a second.
    async fn another(places: &Arc<ClientPlaces>) -> Option<ClientPlace> {
        let patience = Duration::from_secs(1);
        tokio::time::timeout(patience, places.take()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_keeps_its_place_before_idle_ones() {
        let places = ClientPlaces::new(2);
        let reads = places.take().await;
        tokio::time::advance(TURN_GRACE).await;
        let is_idle = places.take().await;
        tokio::time::advance(TURN_GRACE).await;
        reads.client_has_moved();
        assert!(another(&places).await.is_none(), "none has ended");
        assert!(is_told_to_end(&is_idle).await);
        assert!(!is_told_to_end(&reads).await);
        reads.agents_turn();
        reads.client_has_moved();
        assert_eq!(reads.client_since(), None, "it is the agent's");
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_that_was_waited_for_longest_gives_its_place() {
        let places = ClientPlaces::new(3);
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(places.take().await);
            tokio::time::advance(TURN_GRACE).await;
        }
        taken[0].agents_turn();
        taken[0].clients_turn();
        assert!(another(&places).await.is_none(), "none has ended");
        assert!(!is_told_to_end(&taken[0]).await, "it was answered just now");
        assert!(is_told_to_end(&taken[1]).await);
        assert!(!is_told_to_end(&taken[2]).await, "one is enough");
        taken.remove(1);
        assert!(another(&places).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn no_connection_ends_while_the_agent_works_for_it() {
        let places = ClientPlaces::new(1);
        let served = places.take().await;
        served.agents_turn();
        assert!(another(&places).await.is_none());
        assert!(!is_told_to_end(&served).await);
        served.clients_turn();
        assert!(another(&places).await.is_none());
        assert!(is_told_to_end(&served).await);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_ask_all_the_time_keep_nobody_out() {
        let places = ClientPlaces::new(1);
        let busy = places.take().await;
        let ask = async {
            while !is_told_to_end(&busy).await {
                busy.agents_turn();
                busy.clients_turn();
                tokio::time::sleep(TURN_GRACE / 5).await;
            }
        };
        let begun = Instant::now();
        tokio::select! {
            () = ask => {}
            _ = places.take() => {}
        }
        assert!(begun.elapsed() <= TURN_GRACE * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_has_time_to_ask() {
        let places = ClientPlaces::new(1);
        let begun = Instant::now();
        let fresh = places.take().await;
        assert!(another(&places).await.is_none());
        fresh.taken_back().await;
        assert!(begun.elapsed() >= TURN_GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_begins_anew_with_each_turn_of_the_client() {
        let patience = Duration::from_secs(10);
        let places = ClientPlaces::new(1);
        let place = places.take().await;
        let begun = Instant::now();
        let act = async {
            tokio::time::sleep(patience / 2).await;
            place.agents_turn();
            tokio::time::sleep(patience * 2).await;
            place.clients_turn();
        };
        tokio::join!(act, place.kept_waiting(patience));
        let expected = patience / 2 + patience * 2 + patience;
        assert!(begun.elapsed() >= expected, "{:?}", begun.elapsed());
    }
}
