//! The stack under a policy.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, direct_and_guarded, guarded};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_runtime::{AdmissionPolicy, ClientId, Exceeded, Limit, Stack, Verdict};

/// A policy with given answers, which notes the questions.
#[derive(Clone)]
struct Told {
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<String>>>,
}

struct Answers {
    connect: Verdict,
    listen: Verdict,
    accept: Verdict,
    limit: Option<Limit>,
}

impl Told {
    fn new() -> Self {
        let allow = Verdict::Allow(0);
        let answers = Answers { connect: allow, listen: allow, accept: allow, limit: None };
        Self { answers: Arc::new(Mutex::new(answers)), asked: Arc::default() }
    }
    fn tell(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl AdmissionPolicy for Told {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.note(format!("{} connect {remote}", client.0));
        self.answers.lock().unwrap().connect
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        self.note(format!("{} listen {local} {dual}", client.0));
        self.answers.lock().unwrap().listen
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.note(format!("{} accept {} {}", client.0, remote.ip(), local.port()));
        self.answers.lock().unwrap().accept
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        self.answers.lock().unwrap().limit
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        self.note(format!("{} exceeded {} {what:?}", client.0, limit.id));
    }
}

#[test]
fn the_policy_is_asked_before_every_connect_listen_and_accept() {
    let told = Told::new();
    let stack = guarded(1, Box::new(told.clone()));
    let (server, client) = (App::new(&stack, small(1)), App::new(&stack, small(1)));
    told.tell(|answers| answers.listen = Verdict::Refuse(libc::EACCES));
    assert_eq!(server.listen(LOCAL, 7, 4).err(), Some(-libc::EACCES));
    told.tell(|answers| answers.listen = Verdict::Allow(0));
    let mut listener = server.listen(LOCAL, 7, 4).unwrap();
    told.tell(|answers| answers.connect = Verdict::Refuse(libc::EPERM));
    assert_eq!(client.connect(LOCAL, 7).err(), Some(-libc::EPERM));
    told.tell(|answers| answers.connect = Verdict::Allow(0));
    let ends = client.pair(&mut listener, 7);
    told.tell(|answers| answers.accept = Verdict::Refuse(libc::ECONNREFUSED));
    assert_eq!(client.connect(LOCAL, 7).err(), Some(libc::ECONNREFUSED));
    let asked = told.asked();
    let expected = [
        "1 listen 127.0.0.1:7 false",
        "1 listen 127.0.0.1:7 false",
        "2 connect 127.0.0.1:7",
        "2 connect 127.0.0.1:7",
        "1 accept 127.0.0.1 7",
        "2 connect 127.0.0.1:7",
        "1 accept 127.0.0.1 7",
    ];
    assert_eq!(asked, expected);
    drop(ends);
}

#[test]
fn clients_under_one_limit_share_its_connections() {
    let told = Told::new();
    let stack = guarded(1, Box::new(told.clone()));
    let server = App::new(&stack, small(1));
    let mut listener = server.listen(LOCAL, 7, 8).unwrap();
    // The server has the first client number. It stays without a limit.
    let limit = Limit { id: 9, number: 0, weight: 3, rate: 0, connections: 4, new_per_s: 0 };
    let (one, two) = (App::new(&stack, small(1)), App::new(&stack, small(1)));
    told.tell(|answers| answers.limit = Some(limit));
    stack.policy_changed();
    // Each connection has an end at the server, which is under the limit, too.
    let first = one.pair(&mut listener, 7);
    let _second = two.pair(&mut listener, 7);
    told.asked();
    assert_eq!(two.connect(LOCAL, 7).err(), Some(-libc::EAGAIN));
    // The counts are the same when counted anew: under the same limit, under none, and under it again.
    stack.policy_changed();
    assert_eq!(two.connect(LOCAL, 7).err(), Some(-libc::EAGAIN));
    told.tell(|answers| answers.limit = None);
    stack.policy_changed();
    told.tell(|answers| answers.limit = Some(limit));
    stack.policy_changed();
    told.asked();
    assert_eq!(two.connect(LOCAL, 7).err(), Some(-libc::EAGAIN));
    assert_eq!(one.connect(LOCAL, 7).err(), Some(-libc::EAGAIN));
    assert_eq!(told.asked()[1], "3 exceeded 9 Connections");
    first.0.close();
    first.1.close();
    eventually("room for another", || match one.connect(LOCAL, 7) {
        Ok(sock) => {
            sock.close();
            true
        }
        Err(error) => {
            assert_eq!(error, -libc::EAGAIN);
            false
        }
    });
    told.tell(|answers| answers.limit = None);
    stack.policy_changed();
    let _third = one.pair(&mut listener, 7);
    let _fourth = two.pair(&mut listener, 7);
}

/// The library does not wake a stack that naps for the end of a direct connection.
#[test]
fn connections_that_have_ended_unheard_count_for_no_limit() {
    let told = Told::new();
    let stack = direct_and_guarded(Box::new(told.clone()));
    let server = App::new(&stack, small(1));
    let mut listener = server.listen(LOCAL, 7, 8).unwrap();
    let (one, two) = (App::new(&stack, small(1)), App::new(&stack, small(1)));
    let limit = Limit { id: 9, number: 0, weight: 1, rate: 0, connections: 2, new_per_s: 0 };
    told.tell(|answers| answers.limit = Some(limit));
    stack.policy_changed();
    for _ in 0..50 {
        let (ours, theirs) = two.pair(&mut listener, 7);
        assert_eq!(one.connect(LOCAL, 7).err(), Some(-libc::EAGAIN));
        ours.close_unheard();
        theirs.close_unheard();
        // This command is in the queue of a client whose turn comes before that of `two`.
        let (ours, theirs) = one.pair(&mut listener, 7);
        ours.close_unheard();
        theirs.close_unheard();
        // The stack looks by itself when the nap is over.
        eventually("all are gone", || [&server, &one, &two].map(|app| app.busy_slots()) == [1, 0, 0]);
    }
}
