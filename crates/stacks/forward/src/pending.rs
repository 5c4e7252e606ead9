//! Requests that wait for their answers.

use crate::lock::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The waiting requests by number. `M` is the message that an answer is.
pub struct PendingRequests<M>(Mutex<Requests<M>>);

struct Requests<M> {
    /// Number of the newest request. 0 is never used: messages that are no answers have it.
    last: u32,
    /// No answer will come any more.
    closed: bool,
    waiting: HashMap<u32, SyncSender<M>>,
}

impl<M> Default for PendingRequests<M> {
    fn default() -> Self {
        Self(Mutex::new(Requests { last: 0, closed: false, waiting: HashMap::new() }))
    }
}

impl<M> PendingRequests<M> {
    /// Sends a request by `send`, which gets its number, and waits for the answer. `None` if `send` fails or no answer
    /// comes.
    pub fn ask(&self, timeout: Duration, send: impl FnOnce(u32) -> bool) -> Option<M> {
        let (reply, answer) = sync_channel(1);
        let number = {
            let mut requests = lock(&self.0);
            if requests.closed {
                return None;
            }
            requests.last = requests.last.wrapping_add(1).max(1);
            let number = requests.last;
            requests.waiting.insert(number, reply);
            number
        };
        let answer = send(number).then(|| answer.recv_timeout(timeout).ok()).flatten();
        lock(&self.0).waiting.remove(&number);
        answer
    }
    /// Passes an answer to the request of this number, if it still waits.
    pub fn answer(&self, number: u32, answer: M) {
        let request = lock(&self.0).waiting.remove(&number);
        if let Some(request) = request {
            let _ = request.try_send(answer);
        }
    }
    /// Ends the requests that wait now without an answer.
    pub fn clear(&self) {
        lock(&self.0).waiting.clear();
    }
    /// Ends all requests without an answer, later ones too.
    pub fn close(&self) {
        let mut requests = lock(&self.0);
        requests.closed = true;
        requests.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_its_request_and_no_other() {
        let pending = PendingRequests::default();
        let second = Duration::from_secs(1);
        let answered = pending.ask(second, |number| {
            pending.answer(number + 1, "another's");
            pending.answer(number, "ours");
            true
        });
        assert_eq!(answered, Some("ours"));
        assert_eq!(pending.ask(second, |_| false), None, "it could not be sent");
        let cleared = pending.ask(second, |_| {
            pending.clear();
            true
        });
        assert_eq!(cleared, None);
        pending.close();
        assert_eq!(pending.ask(second, |_| panic!("nothing is sent any more")), None);
    }
}
