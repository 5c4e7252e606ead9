//! Events that were missed: a socket is ready, and its context was not told. There should be none. But if one is lost
//! the waiting program would sleep for ever, so entries are looked at after each long sleep in which nothing came.

use super::{ET, EXCLUSIVE, EntryState, Interest};
use crate::ready::readiness;
use towpath_client::session;

/// The most sockets that one look loads the words of.
const LOOKS: usize = 64;
/// The most entries that one look passes.
const PASSES: usize = 4096;

impl Interest {
    /// Looks at the next watched entries, in turn, and queues those that are ready. Returns how many should have been told:
    /// of those who take turns (`EPOLLEXCLUSIVE`) others may have been.
    #[cold]
    pub fn look_for_missed(&mut self) -> usize {
        let Some(session) = session::numbered(self.own) else { return 0 };
        let (mut looks, mut missed) = (0, 0);
        for _ in 0..self.entries.len().min(PASSES) {
            self.next_look = (self.next_look + 1) % self.entries.len();
            let at = self.next_look;
            let entry = &self.entries[at];
            if entry.state != EntryState::Watching || entry.queued {
                continue;
            }
            if let Some(socket) = entry.socket(session).filter(|socket| !socket.is_gone()) {
                let words = (entry.events & ET != 0).then(|| socket.words());
                let events = readiness::events_for(&socket, entry.events);
                let is_exclusive = entry.events & EXCLUSIVE != 0;
                let is_known = entry.reported.is_some() && entry.reported == words.map(|words| (events, words));
                if events != 0 && !is_known {
                    self.queue(at);
                    missed += usize::from(!is_exclusive);
                }
            }
            looks += 1;
            if looks == LOOKS {
                break;
            }
        }
        missed
    }
}
