//! Shared by the tests of the native API. A process has one service. So each test runs in two processes of its own:
//! over the stack, and directly.

use crate::{Program, Service, bin};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use towpath_native::{Connection, Event, Listener, Readiness, Stack};

/// Set in the process that runs a test's body.
pub const INSIDE: &str = "TOWPATH_TEST_INSIDE";
/// The time limit of a wait.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs the body of the test `name` in a process of its own, over the stack and directly.
pub fn both_ways(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    for (service, direct) in [(Service::embedded(), false), (Service::direct(), true)] {
        inside(name, &service).run(180).ok();
        assert_eq!(service.segments() == 0, direct, "{name}: the segments do not fit the way");
    }
}

/// The process of the test `name`.
pub fn inside(name: &str, service: &Service) -> Program {
    let exe = std::env::current_exe().expect("own path");
    let program = Program::new(&[exe]).arg("--exact").arg(name).arg("--nocapture");
    program.env(INSIDE, service.running.pid().to_string()).env("TOWPATH_SOCKET", &service.socket)
}

/// Python under the library, against the service of this process.
pub fn python(script: &str) -> Program {
    let socket = std::env::var_os("TOWPATH_SOCKET").expect("inside");
    let under =
        [bin("towpath").into_os_string(), "run".into(), "--require".into(), "--socket".into(), socket, "--".into()];
    Program::line("python3 -c").arg(format!("import socket,sys,time,struct,hashlib\n{script}")).under(&under)
}

/// The loopback address and any port.
pub fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Does the error say that the call must be made again later?
pub fn is_later(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

/// Waits on the stack for an event that `wanted` accepts. Other events are dropped.
pub fn await_event(stack: &mut Stack, what: &str, mut wanted: impl FnMut(&Event) -> bool) -> Event {
    let end = Instant::now() + LIMIT;
    let mut events = [Event::default(); 16];
    loop {
        assert!(Instant::now() < end, "no such event: {what}");
        let count = stack.wait(&mut events, Some(Duration::from_secs(1))).expect("wait");
        if let Some(event) = events[..count].iter().find(|event| wanted(event)) {
            return *event;
        }
    }
}

/// Accepts the next connection.
pub fn accept(listener: &mut Listener, stack: &mut Stack) -> Connection {
    stack.watch(listener, u64::MAX).unwrap();
    loop {
        match listener.accept() {
            Ok((connection, _)) => return connection,
            Err(error) if is_later(&error) => await_event(stack, "a connection", |event| event.token == u64::MAX),
            Err(error) => panic!("accept: {error}"),
        };
    }
}

/// Makes a connection and waits until it is established.
pub fn connect(stack: &mut Stack, to: SocketAddr) -> Connection {
    let mut connection = Connection::connect(stack, to).expect("connect");
    assert!(connection.wait(Readiness::WRITABLE, Some(LIMIT)).expect("wait"), "not connected in time");
    assert!(connection.is_established().expect("established"));
    connection
}

/// The stack, and both ends of a connection on it. The listener is gone, and nothing is watched.
pub fn pair() -> (Stack, Connection, Connection) {
    let mut stack = Stack::open().expect("open");
    let mut listener = Listener::bind(&stack, anywhere(), 16).expect("bind");
    let ours = connect(&mut stack, listener.local_addr());
    let theirs = accept(&mut listener, &mut stack);
    assert_eq!((ours.local_addr(), ours.peer_addr()), (theirs.peer_addr(), theirs.local_addr()));
    (stack, ours, theirs)
}

/// Receives bytes, blocking; empty = the end of the stream.
pub fn take(connection: &mut Connection, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    loop {
        match connection.receive(&mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(bytes);
            }
            Err(error) if is_later(&error) => {
                assert!(connection.wait(Readiness::READABLE, Some(LIMIT))?, "nothing came");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Receives everything up to the end of the stream.
pub fn take_all(connection: &mut Connection) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let more = take(connection, 100_000)?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

/// Sends all bytes, blocking.
pub fn give(connection: &mut Connection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match connection.send(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_later(&error) => {
                assert!(connection.wait(Readiness::WRITABLE, Some(LIMIT))?, "no event of room in time");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes in which any two places less than 251 · 256 apart differ.
pub fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}

/// Echoes by spans. True: the stream has ended.
pub fn echo(connection: &mut Connection) -> io::Result<bool> {
    let (mut receiver, mut sender) = connection.split();
    loop {
        let received = match receiver.received() {
            Err(error) if is_later(&error) => return Ok(false),
            received => received?,
        };
        if received.is_empty() {
            return Ok(true);
        }
        let mut room = match sender.reserve(received.len()) {
            Err(error) if is_later(&error) => return Ok(false),
            room => room?,
        };
        for span in received.spans() {
            room.put_span(span);
        }
        let count = room.commit();
        receiver.consume(count);
    }
}

/// Echoes on the connections of `listener` until `connections` of them have ended.
pub fn serve(stack: &mut Stack, listener: &mut Listener, connections: usize) {
    let (mut open, mut last, mut over) = (HashMap::new(), 0, 0);
    stack.watch(listener, 0).unwrap();
    let mut events = [Event::default(); 8];
    while over < connections {
        let count = stack.wait(&mut events, Some(LIMIT)).expect("wait");
        assert!(count > 0, "nothing happens, {over} of {connections} are over");
        for event in &events[..count] {
            if event.token == 0 {
                loop {
                    match listener.accept() {
                        Ok((connection, _)) => {
                            last += 1;
                            stack.watch(&connection, last).unwrap();
                            open.insert(last, connection);
                        }
                        Err(error) => break assert!(is_later(&error), "accept: {error}"),
                    }
                }
            } else if echo(open.get_mut(&event.token).expect("an event of a closed connection")).expect("echo") {
                open.remove(&event.token);
                over += 1;
            }
        }
    }
}
