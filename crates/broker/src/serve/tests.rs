#![allow(clippy::unwrap_used)]
use super::*;
use crate::{Broker, Change, Held, Privileges};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socketpair, sockopt};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// Proofs and starts say that they have begun, and wait for a byte of a pipe.
struct Slow {
    begun: OwnedFd,
    wait: OwnedFd,
}

impl Slow {
    fn wait(&self) {
        rustix::io::write(&self.begun, &[1]).unwrap();
        rustix::io::read(&self.wait, &mut [0; 1]).unwrap();
    }
}

impl Privileges for Slow {
    fn owner(&self, shown: &OwnedFd) -> Option<u32> {
        // A UNIX socket is one that keeps whoever looks at it waiting.
        if sockopt::socket_domain(shown).ok()? == AddressFamily::UNIX {
            rustix::io::write(&self.begun, &[1]).unwrap();
            std::thread::sleep(Duration::from_secs(3600));
        }
        // IPv6 is another user's.
        Some(u32::from(sockopt::socket_domain(shown).ok()? == AddressFamily::INET6))
    }
    fn prove(&mut self, shown: OwnedFd) -> Result<(OwnedFd, Held), i32> {
        self.wait();
        Ok((shown, Held { addr: Ipv4Addr::LOCALHOST.into(), port: 7, dual: false }))
    }
    fn neighbour(&mut self, _: u32, _: IpAddr, _: Change) -> Result<(), i32> {
        Ok(())
    }
    fn program(&mut self, process: i32) -> Result<Vec<u8>, i32> {
        Ok(process.to_string().into())
    }
    fn shares_network(&mut self, _: i32) -> Result<bool, i32> {
        Ok(true)
    }
    fn reserve_ports(&mut self) -> Result<(), i32> {
        Ok(())
    }
    fn reserved_cpus(&mut self) -> Result<Vec<u8>, i32> {
        Ok(b"2-3".into())
    }
    fn start_stack(&self, _: u32) -> Result<(), String> {
        self.wait();
        Ok(())
    }
    fn configuration(&mut self) -> Result<OwnedFd, i32> {
        Err(libc::ENOENT)
    }
    fn first_syns(&mut self, _: u32, _: bool) -> Result<OwnedFd, i32> {
        Err(libc::EPERM)
    }
    fn configuration_taken(&mut self) {}
    fn configuration_in_force(&self) -> Option<String> {
        None
    }
    fn open_sockets(&mut self, _: bool) -> Result<(), i32> {
        Ok(())
    }
    fn open_port(&mut self, number: u32, queues: u32) -> Result<String, (i32, String)> {
        if number == 0 { Ok(queues.to_string()) } else { Err((libc::ENODEV, "it has gone".into())) }
    }
    fn port_part(&mut self, _: u32, part: u32) -> Result<OwnedFd, i32> {
        if part < 3 { self.begun.try_clone().map_err(|_| libc::EMFILE) } else { Err(libc::ENOENT) }
    }
    fn renew_port(&mut self, _: u32) -> Result<(), i32> {
        Ok(())
    }
    fn join(&mut self, _: u32, _: i32, _: IpAddr) -> Result<(OwnedFd, Held, u32), i32> {
        Err(libc::EPERM)
    }
    fn forget(&mut self) {}
    fn worker_ended(&mut self, _: bool) {}
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A worker's way to a broker of one thread; the end that says what has begun; and the end that lets it go on.
fn served() -> (Broker, OwnedFd, OwnedFd, JoinHandle<io::Result<()>>) {
    let ((ours, theirs), (said, begun), (wait, go)) =
        (pair(), rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
    let thread = spawn(move || {
        let (mut privileges, mut apart) = (Slow { begun, wait }, Apart::default());
        loop {
            let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let waiting = std::iter::once(&ours).chain(apart.waiting());
            let mut waiting: Vec<_> = waiting.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            poll(&mut waiting, Some(&tick)).unwrap();
            let asked = !waiting[0].revents().is_empty();
            apart.hear();
            if asked && serve(&ours, &mut privileges, &mut apart)? == Served::Ended {
                return Ok(());
            }
        }
    });
    (Broker::new(theirs), said, go, thread)
}

fn has_begun(said: &OwnedFd) {
    assert_eq!(rustix::io::read(said, &mut [0; 1]), Ok(1));
}

/// Asks in a thread of its own, so that a broker that waits fails the test.
fn soon<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = channel();
    spawn(move || done.send(ask()));
    answer.recv_timeout(Duration::from_secs(30)).expect("the broker answers")
}

#[test]
fn a_client_that_keeps_its_proofs_waiting_holds_up_nobody_else() {
    let (broker, said, go, thread) = served();
    let broker = std::sync::Arc::new(broker);
    let prove = |family| {
        let broker = broker.clone();
        spawn(move || {
            broker.prove(socket(family, SocketType::STREAM, None).unwrap().as_fd()).map(|(_, held)| held.port)
        })
    };
    let mut waiting: Vec<_> = (0..crate::apart::MOST_OF_A_USER).map(|_| prove(AddressFamily::INET)).collect();
    waiting.iter().for_each(|_| has_begun(&said));
    let begun = Instant::now();
    assert_eq!(broker.program(4).unwrap(), b"4", "another request");
    assert_eq!(prove(AddressFamily::INET).join().unwrap(), Err(-libc::EAGAIN), "one more of the same user");
    waiting.push(prove(AddressFamily::INET6));
    has_begun(&said);
    assert!(begun.elapsed() < Duration::from_secs(4), "none of them has waited");
    rustix::io::write(&go, &vec![1; waiting.len()]).unwrap();
    for proof in waiting {
        assert_eq!(proof.join().unwrap(), Ok(7));
    }
    drop(broker);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_descriptor_that_keeps_whoever_looks_at_it_waiting_keeps_no_broker() {
    let (broker, said, _go, thread) = served();
    let broker = std::sync::Arc::new(broker);
    let proves = broker.clone();
    let prove = move |shown: OwnedFd| {
        let broker = proves.clone();
        spawn(move || broker.prove(shown.as_fd()).map(|(_, held)| held.port))
    };
    let waits = prove(pair().0);
    has_begun(&said);
    let asks = broker.clone();
    assert_eq!(soon(move || asks.program(4).unwrap()), b"4", "another request, meanwhile");
    assert_eq!(soon(|| waits.join().unwrap()), Err(-libc::EAGAIN), "the proof is refused after a while");
    // What is no socket is refused at once.
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(soon(move || prove(file.into()).join().unwrap()), Err(-libc::EINVAL));
    drop(broker);
    thread.join().unwrap().unwrap();
}

#[test]
fn one_start_of_a_stack_is_under_way_at_a_time() {
    let (broker, said, go, thread) = served();
    let broker = std::sync::Arc::new(broker);
    let first = {
        let broker = broker.clone();
        spawn(move || broker.start_stack(1))
    };
    has_begun(&said);
    let busy = io::Error::from_raw_os_error(libc::EBUSY).to_string();
    assert_eq!(broker.start_stack(1), Err(busy));
    rustix::io::write(&go, &[1]).unwrap();
    assert_eq!(first.join().unwrap(), Ok(()));
    drop(broker);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_worker_that_takes_no_answers_does_not_keep_the_broker() {
    let (ours, theirs) = pair();
    let ended = soon(move || {
        let (begun, wait) = rustix::pipe::pipe().map(|(read, write)| (write, read)).unwrap();
        let (mut privileges, mut apart) = (Slow { begun, wait }, Apart::default());
        let request = Numbered { number: 1, request: Request::ReservePorts }.encode();
        (0..100_000).find_map(|_| {
            crate::channel::send(&theirs, &request, None).unwrap();
            serve(&ours, &mut privileges, &mut apart).err()
        })
    });
    assert_eq!(ended.unwrap().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_process_that_is_not_seen_from_here_is_not_asked_for() {
    let (broker, _said, _go, thread) = served();
    for unseen in [0, -1] {
        assert_eq!(broker.program(unseen).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(broker.shares_network(unseen).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
    assert!(broker.shares_network(1).unwrap(), "the worker has not broken the protocol");
    drop(broker);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_port_comes_with_all_its_descriptors_or_with_the_reason() {
    let (broker, _said, _go, thread) = served();
    let (text, parts) = broker.open_port(0, 7).unwrap();
    assert_eq!((text.as_str(), parts.len()), ("7", 3));
    let refused = broker.open_port(1, 7).unwrap_err();
    assert_eq!((refused.errno, refused.why.as_str()), (libc::ENODEV, "it has gone"));
    drop(broker);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_descriptor_beside_another_request_breaks_the_protocol() {
    let (ours, theirs) = pair();
    let (begun, wait) = rustix::pipe::pipe().map(|(read, write)| (write, read)).unwrap();
    let (mut privileges, mut apart) = (Slow { begun, wait }, Apart::default());
    let mut served = |request, shown| {
        crate::channel::send(&theirs, &Numbered { number: 1, request }.encode(), shown).unwrap();
        serve(&ours, &mut privileges, &mut apart).map_err(|error| error.kind())
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(served(Request::Serving, Some(file.as_fd())), Err(io::ErrorKind::InvalidData));
}

mod each_request;
