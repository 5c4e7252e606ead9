//! The operator's policy, which is on the host: each question is a message, and its answer another.

use super::post::Post;
use crate::message::{FromCard, Question, ToCard};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use towpath_stack::guard::{Exceeded, Limit};
use towpath_stack::{ClientId, Guard, Verdict};

/// How long an answer may take. Nothing is allowed that was not answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// The places of the clients, as the stack numbers them.
pub type Places = Arc<Mutex<HashMap<ClientId, u32>>>;

/// Answers that are awaited.
#[derive(Default)]
struct Awaited {
    last: u32,
    /// Nobody will answer any more.
    over: bool,
    questions: HashMap<u32, SyncSender<ToCard>>,
}

/// Asks the host.
#[derive(Clone)]
pub struct Asker {
    messages: Arc<dyn Post>,
    places: Places,
    awaited: Arc<Mutex<Awaited>>,
}

impl Asker {
    /// Over a line.
    pub fn new(messages: Arc<dyn Post>, places: Places) -> Self {
        Self { messages, places, awaited: Arc::default() }
    }
    /// An answer has come.
    pub fn answered(&self, number: u32, answer: ToCard) {
        let question = self.awaited.lock().unwrap_or_else(PoisonError::into_inner).questions.remove(&number);
        if let Some(question) = question {
            let _ = question.try_send(answer);
        }
    }
    /// Nobody will answer any more.
    pub fn hang_up(&self) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.over = true;
        awaited.questions.clear();
    }
    fn place(&self, client: ClientId) -> Option<u32> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied()
    }
    fn ask(&self, question: Question) -> Option<ToCard> {
        let (reply, answer) = sync_channel(1);
        let number = {
            let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
            if awaited.over {
                return None;
            }
            awaited.last = awaited.last.wrapping_add(1).max(1);
            let number = awaited.last;
            awaited.questions.insert(number, reply);
            number
        };
        self.messages.send(number, &FromCard::Ask(question)).ok()?;
        let answer = answer.recv_timeout(PATIENCE).ok();
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).questions.remove(&number);
        answer
    }
    fn verdict(&self, client: ClientId, question: impl FnOnce(u32) -> Question) -> Verdict {
        match self.place(client).and_then(|place| self.ask(question(place))) {
            Some(ToCard::Verdict(verdict)) => verdict,
            _ => Verdict::Refuse(libc::EACCES),
        }
    }
}

impl Guard for Asker {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.verdict(client, |place| Question::Connect { place, remote })
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        self.verdict(client, |place| Question::Listen { place, local, dual })
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.verdict(client, |place| Question::Accept { place, local, remote })
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        match self.place(client).and_then(|place| self.ask(Question::Limit { place })) {
            Some(ToCard::Limit(limit)) => limit,
            _ => None,
        }
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        let Some(place) = self.place(client) else { return };
        let question = Question::Exceeded { place, limit: *limit, connections: what == Exceeded::Connections };
        let _ = self.messages.send(0, &FromCard::Ask(question));
    }
}
