//! The operator's policy, which is on the host. Each question and each answer is a message.

use crate::lock::lock;
use crate::message::{Question, ToHost, ToStack};
use crate::pending::PendingRequests;
use crate::server::sender::MessageSender;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use towpath_runtime::policy::{Exceeded, Limit};
use towpath_runtime::{AdmissionPolicy, ClientId, Verdict};

/// How long an answer may take. A request without an answer is refused.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Indexes of the clients, by the stack's numbers.
pub type ClientIndexes = Arc<Mutex<HashMap<ClientId, u32>>>;

/// Asks the host for the policy.
#[derive(Clone)]
pub struct RemotePolicy {
    messages: Arc<dyn MessageSender>,
    indexes: ClientIndexes,
    pending: Arc<PendingRequests<ToStack>>,
}

impl RemotePolicy {
    /// Sends its questions over `messages`.
    pub fn new(messages: Arc<dyn MessageSender>, indexes: ClientIndexes) -> Self {
        Self { messages, indexes, pending: Arc::default() }
    }
    /// Passes an answer to the question of this number.
    pub fn answered(&self, number: u32, answer: ToStack) {
        self.pending.answer(number, answer);
    }
    /// Ends all questions: no answer will come any more.
    pub fn hang_up(&self) {
        self.pending.close();
    }
    fn index(&self, client: ClientId) -> Option<u32> {
        lock(&self.indexes).get(&client).copied()
    }
    fn ask(&self, question: Question) -> Option<ToStack> {
        self.pending.ask(ANSWER_TIMEOUT, |number| self.messages.send(number, &ToHost::Ask(question)).is_ok())
    }
    fn verdict(&self, client: ClientId, question: impl FnOnce(u32) -> Question) -> Verdict {
        match self.index(client).and_then(|index| self.ask(question(index))) {
            Some(ToStack::Verdict(verdict)) => verdict,
            _ => Verdict::Refuse(libc::EACCES),
        }
    }
}

impl AdmissionPolicy for RemotePolicy {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.verdict(client, |index| Question::Connect { index, remote })
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        self.verdict(client, |index| Question::Listen { index, local, dual })
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.verdict(client, |index| Question::Accept { index, local, remote })
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        match self.index(client).and_then(|index| self.ask(Question::Limit { index })) {
            Some(ToStack::Limit(limit)) => limit,
            _ => None,
        }
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        let Some(index) = self.index(client) else { return };
        let question = Question::Exceeded { index, limit: *limit, connections: what == Exceeded::Connections };
        let _ = self.messages.send(0, &ToHost::Ask(question));
    }
}
