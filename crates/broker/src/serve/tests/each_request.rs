//! Each request of a worker reaches the privilege that it names, with its arguments, and the answer comes back.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::alone::alone;
use std::sync::{Arc, Mutex};

/// Notes what it is asked for. It can do everything, or nothing.
#[derive(Clone)]
struct Noted {
    said: Arc<Mutex<Vec<String>>>,
    able: bool,
}

impl Noted {
    fn note<T>(&self, what: String, done: T) -> Result<T, i32> {
        self.said.lock().unwrap().push(what);
        if self.able { Ok(done) } else { Err(libc::EXDEV) }
    }
    fn file(&self, what: &str) -> Result<OwnedFd, i32> {
        self.note(what.into(), std::fs::File::open("/dev/null").unwrap().into())
    }
}

impl Privileges for Noted {
    fn owner(&self, _: &OwnedFd) -> Option<u32> {
        self.able.then_some(1000)
    }
    fn prove(&mut self, shown: OwnedFd) -> Result<(OwnedFd, Held), i32> {
        Ok((shown, Held { addr: Ipv4Addr::LOCALHOST.into(), port: 7, dual: false }))
    }
    fn neighbour(&mut self, device: u32, address: IpAddr, change: Change) -> Result<(), i32> {
        self.note(format!("neighbour {device} {address} {change:?}"), ())
    }
    fn program(&mut self, process: i32) -> Result<Vec<u8>, i32> {
        self.note(format!("program {process}"), b"/bin/it".into())
    }
    fn shares_network(&mut self, process: i32) -> Result<bool, i32> {
        self.note(format!("network {process}"), process == 42)
    }
    fn reserve_ports(&mut self) -> Result<(), i32> {
        self.note("reserve".into(), ())
    }
    fn reserved_cpus(&mut self) -> Result<Vec<u8>, i32> {
        self.note("cpus".into(), b"2-3".into())
    }
    fn start_stack(&self, number: u32) -> Result<(), String> {
        if self.able { Ok(()) } else { Err(format!("stack {number} has no device")) }
    }
    fn configuration(&mut self) -> Result<OwnedFd, i32> {
        self.file("configuration")
    }
    fn configuration_taken(&mut self) {
        let _ = self.note("taken".into(), ());
    }
    fn configuration_in_force(&self) -> Option<String> {
        None
    }
    fn open_sockets(&mut self, open: bool) -> Result<(), i32> {
        self.note(format!("open {open}"), ())
    }
    fn open_port(&mut self, number: u32, queues: u32) -> Result<String, (i32, String)> {
        self.note(format!("port {number} {queues}"), "eth0".into()).map_err(|errno| (errno, "it has gone".into()))
    }
    fn port_part(&mut self, number: u32, part: u32) -> Result<OwnedFd, i32> {
        if part < 2 { self.file(&format!("part {number} {part}")) } else { Err(libc::ENOENT) }
    }
    fn renew_port(&mut self, number: u32) -> Result<(), i32> {
        self.note(format!("renew {number}"), ())
    }
    fn namespaces(&mut self) -> Result<Vec<u8>, i32> {
        self.note("namespaces".into(), b"7".into())
    }
    fn join(&mut self, namespace: u32, process: i32, remote: IpAddr) -> Result<(OwnedFd, Held, u32), i32> {
        let own = self.file(&format!("join {namespace} {process} {remote}"))?;
        Ok((own, Held { addr: remote, port: 7, dual: false }, 9))
    }
    fn code_area(&mut self) -> Result<OwnedFd, i32> {
        self.file("code")
    }
    fn successor_memory(&mut self) -> Result<OwnedFd, i32> {
        self.file("successor_memory")
    }
    fn forget(&mut self) {}
    fn first_syns(&mut self, number: u32, v6: bool) -> Result<OwnedFd, i32> {
        self.file(&format!("syns {number} {v6}"))
    }
    fn worker_ended(&mut self, _: bool) {}
}

/// Asks a broker that is able or not; what is answered, and what the privileges were asked for.
fn asked<T: Send + 'static>(able: bool, ask: impl FnOnce(&Broker) -> T + Send + 'static) -> (T, Vec<String>) {
    let ((ours, theirs), said) = (pair(), Arc::default());
    let mut noted = Noted { said: Arc::clone(&said), able };
    let broker = spawn(move || {
        let mut apart = Apart::default();
        while serve(&ours, &mut noted, &mut apart).unwrap() != Served::Ended {}
    });
    let answer = soon(move || ask(&Broker::new(theirs)));
    broker.join().unwrap();
    let said = said.lock().unwrap().clone();
    (answer, said)
}

fn errno<T>(result: io::Result<T>) -> Result<T, Option<i32>> {
    result.map_err(|error| error.raw_os_error())
}

/// What is asked for, by its note, and the answer in words.
type Case = (&'static str, fn(&Broker) -> Result<String, Option<i32>>);

#[test]
fn a_request_reaches_its_privilege_and_the_answer_the_worker() {
    let cases: [(Case, &str); 17] = [
        (
            ("neighbour 3 192.0.2.1 Manage", |broker| {
                errno(broker.neighbour(3, [192, 0, 2, 1].into(), Change::Manage)).map(words)
            }),
            "()",
        ),
        (("program 42", |broker| errno(broker.program(42)).map(words)), "[47, 98, 105, 110, 47, 105, 116]"),
        (("network 42", |broker| errno(broker.shares_network(42)).map(words)), "true"),
        (("network 43", |broker| errno(broker.shares_network(43)).map(words)), "false"),
        (("namespaces", |broker| errno(broker.namespaces()).map(words)), "[55]"),
        (("reserve", |broker| errno(broker.reserve_ports()).map(words)), "()"),
        (("cpus", |broker| errno(broker.reserved_cpus()).map(words)), "[50, 45, 51]"),
        (("configuration", |broker| errno(broker.configuration()).map(|file| words(is_null(&file)))), "true"),
        (("code", |broker| errno(broker.code_area()).map(|memory| words(is_null(&memory)))), "true"),
        (("successor_memory", |broker| errno(broker.successor_memory()).map(|memory| words(is_null(&memory)))), "true"),
        (("open true", |broker| errno(broker.open_sockets(true)).map(words)), "()"),
        (("open false", |broker| errno(broker.open_sockets(false)).map(words)), "()"),
        (("renew 2", |broker| errno(broker.renew_port(2)).map(words)), "()"),
        (("syns 1 true", |broker| errno(broker.first_syns(1, true)).map(|socket| words(is_null(&socket)))), "true"),
        (("syns 2 false", |broker| errno(broker.first_syns(2, false)).map(|socket| words(is_null(&socket)))), "true"),
        (
            ("port 1 4", |broker| broker.open_port(1, 4).map(|(text, _)| text).map_err(|refusal| Some(refusal.errno))),
            "eth0",
        ),
        (("cpus", |broker| errno(broker.reserved_cpus()).map(words)), "[50, 45, 51]"),
    ];
    for ((what, ask), answer) in cases {
        let (answered, said) = asked(true, ask);
        assert_eq!((answered, said[0].as_str()), (Ok(answer.into()), what));
        let (answered, said) = asked(false, ask);
        assert_eq!((answered, said[0].as_str()), (Err(Some(libc::EXDEV)), what));
    }
}

fn words(answer: impl std::fmt::Debug) -> String {
    format!("{answer:?}")
}

fn is_null(file: &OwnedFd) -> bool {
    let number = |stat: rustix::fs::Stat| stat.st_rdev;
    number(rustix::fs::fstat(file).unwrap()) == number(rustix::fs::stat("/dev/null").unwrap())
}

#[test]
fn the_parts_of_an_interface_are_asked_for_in_their_order() {
    let (opened, said) = asked(true, |broker| broker.open_port(1, 4).map(|(_, parts)| parts.len()));
    assert_eq!((opened, said), (Ok(2), ["port 1 4", "part 1 0", "part 1 1"].map(str::to_owned).to_vec()));
}

#[test]
fn a_text_is_in_force_and_clients_are_served_when_the_worker_says_so() {
    let (taken, said) = asked(true, |broker| errno(broker.configuration_taken()));
    assert_eq!((taken, said), (Ok(()), vec!["taken".to_owned()]));
    let (ours, theirs) = pair();
    let worker = spawn(move || Broker::new(theirs).serving());
    let noted = |able| Noted { said: Arc::default(), able };
    assert_eq!(serve(&ours, &mut noted(true), &mut Apart::default()).unwrap(), Served::Serving);
    worker.join().unwrap().unwrap();
}

#[test]
fn what_takes_long_is_done_apart_and_the_answer_comes_from_there() {
    if !alone("serve::tests::each_request::what_takes_long_is_done_apart_and_the_answer_comes_from_there") {
        return;
    }
    assert_eq!(asked(true, |broker| broker.start_stack(5)).0, Ok(()));
    assert_eq!(asked(false, |broker| broker.start_stack(5)).0, Err("stack 5 has no device".into()));
    const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let join =
        |broker: &Broker| errno(broker.join(2, 42, REMOTE)).map(|(own, held, device)| (is_null(&own), held, device));
    let held = Held { addr: REMOTE, port: 7, dual: false };
    assert_eq!(asked(true, join).0, Ok((true, held, 9)));
    assert_eq!(asked(false, join).0, Err(Some(libc::EXDEV)));
    assert_eq!(asked(true, |broker| errno(broker.join(2, 0, REMOTE)).map(drop)).0, Err(Some(libc::ESRCH)));
}
