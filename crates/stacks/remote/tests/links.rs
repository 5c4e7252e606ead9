//! Every transport does what the trait promises: a byte stream, the same encrypted, and RDMA verbs on a fabric as unkind
//! as the rules allow.
#![allow(clippy::unwrap_used)]

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_remote::link::inbox;
use towpath_remote::link::software::{self, Fabric};
use towpath_remote::link::stream::Stream;
use towpath_remote::link::tls::Tls;
use towpath_remote::token::Token;
use towpath_remote::{Arrival, Link};
use towpath_ring::span::Span;

const FABRIC: Fabric = Fabric { seed: 1, pairs: 4, latency_us: 300, fails: 0 };
const KEY: u32 = inbox::KEYS + 7;
const MEMORY: usize = 1 << 20;

fn streams() -> (Arc<dyn Link>, Arc<dyn Link>) {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (Arc::new(Stream::new(a).unwrap()), Arc::new(Stream::new(b).unwrap()))
}

fn encrypted() -> (Arc<dyn Link>, Arc<dyn Link>) {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let file = std::env::temp_dir().join(format!("towpath-links-{:?}", std::thread::current().id()));
    let _ = std::fs::remove_file(&file);
    Token::make(&file).unwrap();
    let token = Token::load(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let accepting = {
        let token = token.clone();
        std::thread::spawn(move || Tls::accept(b, &token).unwrap())
    };
    let a = Tls::connect(a, &token).unwrap();
    (Arc::new(Stream::over(a)), Arc::new(Stream::over(accepting.join().unwrap())))
}

fn verbs(fabric: &Fabric) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (a, b) = software::link(fabric).unwrap();
    (a, b)
}

/// Waits for arrivals, until `done`.
fn follow(link: &Arc<dyn Link>, inbox: &mut inbox::Inbox, mut each: impl FnMut(u32, &[u8]) -> bool) {
    let (mut arrivals, until) = (Vec::new(), Instant::now() + Duration::from_secs(30));
    loop {
        assert!(Instant::now() < until, "nothing comes any more");
        link.wait(&mut arrivals, Duration::from_millis(100)).unwrap();
        let mut done = false;
        for arrival in arrivals.drain(..) {
            let read = |lane, record: &[u8]| {
                done |= each(lane, record);
                Ok(())
            };
            inbox.arrived(arrival, read).unwrap();
        }
        if done {
            return;
        }
    }
}

/// Numbers that depend on a seed.
fn pattern(seed: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(n.wrapping_mul(n)) >> 13) as u8).collect()
}

/// An entry is true about bytes that were written before it, on every lane. No entry is lost or overtaken on its lane.
fn bytes_are_there_before_the_word(a: Arc<dyn Link>, b: Arc<dyn Link>) {
    const EACH: u32 = 150;
    let (mut outbox, _) = inbox::open(&a).unwrap();
    let (_kept, mut inbox) = inbox::open(&b).unwrap();
    let memory = Span::fresh(MEMORY).unwrap();
    b.register(KEY, memory.clone()).unwrap();
    let lanes = a.lanes();
    let reader = std::thread::spawn(move || {
        let (mut next, mut left) = (vec![0u32; lanes as usize], lanes * EACH);
        follow(&b, &mut inbox, |lane, record| {
            let [number, offset, length] =
                [0, 4, 8].map(|at| u32::from_le_bytes(record[at..at + 4].try_into().unwrap()));
            assert_eq!(std::mem::replace(&mut next[lane as usize], number + 1), number, "lane {lane}");
            let mut got = vec![0; length as usize];
            assert!(memory.read(offset.into(), &mut got));
            assert!(got == pattern(lane * EACH + number, length as usize), "record {number} of lane {lane}");
            left -= 1;
            left == 0
        });
        // Kept open until everything has arrived.
        drop(_kept);
    });
    // The sender's completions and its directory must be read as well.
    let waiter = Waiter::new(&a);
    let part = MEMORY as u32 / lanes;
    for number in 0..EACH {
        for lane in 0..lanes {
            let length = 1 + (number * 7919) % (part / EACH - 1);
            let offset = lane * part + number * (part / EACH);
            let bytes = pattern(lane * EACH + number, length as usize);
            a.write(lane, KEY, offset.into(), &bytes).unwrap();
            let record: Vec<u8> = [number, offset, length].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert!(outbox.send(lane, &record).unwrap());
        }
        a.flush().unwrap();
    }
    reader.join().unwrap();
    drop(waiter);
}

#[test]
fn over_a_stream_bytes_are_there_before_the_word_that_tells_of_them() {
    let (a, b) = streams();
    bytes_are_there_before_the_word(a, b);
}

#[test]
fn over_tls_bytes_are_there_before_the_word_that_tells_of_them() {
    let (a, b) = encrypted();
    bytes_are_there_before_the_word(a, b);
}

#[test]
fn over_verbs_bytes_are_there_before_the_word_that_tells_of_them() {
    for seed in 1..=5 {
        let (a, b) = verbs(&Fabric { seed, ..FABRIC });
        bytes_are_there_before_the_word(a, b);
    }
}

/// A thread that waits for a link's arrivals.
struct Waiter {
    link: Arc<dyn Link>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    broken: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiter {
    fn new(link: &Arc<dyn Link>) -> Self {
        let (arrivals, broken) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
        let (waits, come, why) = (Arc::clone(link), Arc::clone(&arrivals), Arc::clone(&broken));
        let wait = move || {
            let mut all = Vec::new();
            loop {
                let waited = waits.wait(&mut all, Duration::from_millis(100));
                come.lock().unwrap().append(&mut all);
                if let Err(error) = waited {
                    *why.lock().unwrap() = Some(error.to_string());
                    // As its user does.
                    return waits.close();
                }
            }
        };
        Self { link: Arc::clone(link), arrivals, broken, thread: Some(std::thread::spawn(wait)) }
    }
    /// Why the link has ended.
    fn why(&self) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(why) = self.broken.lock().unwrap().clone() {
                return why;
            }
            assert!(Instant::now() < until, "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.link.close();
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn queue_pairs_overtake_each_other_and_writes_of_one_do_not() {
    let (a, b) = verbs(&Fabric { latency_us: 2_000, ..FABRIC });
    let (_ours, theirs) = (Waiter::new(&a), Waiter::new(&b));
    b.register(KEY, Span::fresh(MEMORY).unwrap()).unwrap();
    let sent: Vec<(u32, u32)> = (0..40).flat_map(|n| (0..4).map(move |lane| (lane, n))).collect();
    for (lane, n) in &sent {
        a.write_with_immediate(*lane, KEY, 0, &[1], *n).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while theirs.arrivals.lock().unwrap().len() < sent.len() {
        assert!(Instant::now() < until && theirs.broken.lock().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let come = theirs.arrivals.lock().unwrap();
    let order: Vec<(u32, u32)> = come.iter().map(|arrival| (arrival.lane, arrival.immediate)).collect();
    assert_ne!(order, sent, "nothing was overtaken");
    for lane in 0..4 {
        let of_lane: Vec<u32> = order.iter().filter(|one| one.0 == lane).map(|one| one.1).collect();
        assert_eq!(of_lane, (0..40).collect::<Vec<_>>());
    }
}

#[test]
fn a_write_that_fails_ends_the_link_for_both_sides() {
    let (a, b) = verbs(&Fabric { fails: 500, ..FABRIC });
    let (ours, theirs) = (Waiter::new(&a), Waiter::new(&b));
    b.register(KEY, Span::fresh(MEMORY).unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while a.write_with_immediate(0, KEY, 0, &[1; 5000], 1).is_ok() {
        assert!(Instant::now() < until, "nothing fails");
    }
    assert!(ours.why().contains("retry counter"), "{}", ours.why());
    assert!(theirs.why().starts_with("a write has failed"), "{}", theirs.why());
    assert!(a.write(0, KEY, 0, &[1]).is_err() && b.write(0, KEY, 0, &[1]).is_err());
}

#[test]
fn a_write_beyond_registered_memory_ends_the_link() {
    for (offset, deregistered) in [(MEMORY as u64 - 1, false), (u64::MAX, false), (0, true)] {
        for (a, b) in [streams(), encrypted(), verbs(&FABRIC)] {
            let (ours, theirs) = (Waiter::new(&a), Waiter::new(&b));
            let memory = Span::fresh(MEMORY).unwrap();
            b.register(KEY, memory.clone()).unwrap();
            if deregistered {
                b.deregister(KEY);
            }
            let _ = a.write_with_immediate(0, KEY, offset, &[1, 2], 3).and_then(|()| a.flush());
            let both = [ours.why(), theirs.why()];
            assert!(both.iter().any(|why| why.contains("remote access error") || why.contains("memory")), "{both:?}");
            assert!(theirs.arrivals.lock().unwrap().is_empty());
            let mut all = vec![1; MEMORY];
            memory.read(0, &mut all);
            assert!(all.iter().all(|byte| *byte == 0), "something was written");
        }
    }
}
