//! Events that were missed: a socket is ready, and its context was not told. There should be none. But if one is lost,
//! the waiting program would sleep for ever. So waits in which nothing comes look at some sockets about once a second.

use super::{EXCLUSIVE, Entry, EntryState, Interest};
use crate::ready::readiness;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::session;
use towpath_client::socket::Socket;

/// The most sockets that one look loads the words of.
const LOOKS: usize = 64;
/// The most entries that one look passes.
const PASSES: usize = 4096;

/// Has the socket events that the stack should have told of since the last report? It tells of room only if asked to.
fn has_news(entry: &Entry, socket: &Socket) -> bool {
    let Some((_, [received, _, status, _])) = entry.reported else {
        return readiness::events_for(socket, entry.events) != 0;
    };
    let asked_for_room = socket.wants_room();
    let [received_now, _, status_now, _] = socket.words();
    let events = readiness::events_for(socket, entry.events);
    let arrived = (received_now, status_now) != (received, status);
    (arrived && events & !readiness::OUT != 0) || (asked_for_room && events & readiness::OUT != 0)
}

impl Interest {
    /// Looks at the next watched entries, in turn, and queues those with news. Returns how many there were. An entry with
    /// EPOLLEXCLUSIVE is left out: another waiter has got its event.
    #[cold]
    pub fn look_for_missed(&mut self, now_ms: u64) -> usize {
        let Some(session) = session::numbered(self.own) else { return 0 };
        if now_ms < self.next_look_ms {
            return 0;
        }
        self.next_look_ms = now_ms + LIFE_CHECK.as_millis() as u64;
        let (mut looks, mut missed) = (0, 0);
        for _ in 0..self.entries.len().min(PASSES) {
            self.last_looked_at = (self.last_looked_at + 1) % self.entries.len();
            let at = self.last_looked_at;
            let entry = &self.entries[at];
            if entry.state != EntryState::Watching || entry.queued || entry.events & EXCLUSIVE != 0 {
                continue;
            }
            let socket = entry.socket(session).filter(|socket| !socket.is_gone());
            if socket.is_some_and(|socket| has_news(entry, &socket)) {
                self.queue(at);
                missed += 1;
            }
            looks += 1;
            if looks == LOOKS {
                break;
            }
        }
        missed
    }
}
