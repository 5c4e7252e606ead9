//! Both sides against a peer that speaks the protocol and means ill: records of any words at any time, messages that nobody asked for,
//! bytes where they do not belong. Nothing panics, and whoever is left goes on.
#![allow(clippy::unwrap_used)]

use super::far::{FarConfig, serve};
use super::key;
use super::near::Near;
use super::record::Record;
use crate::message::{self, FromCard, Question, ToCard};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_kernel::KernelConfig;
use towpath_link::stream::Stream;
use towpath_link::{Link, mail};
use towpath_ring::Geometry;
use towpath_ring::layout::VERSION;
use towpath_ring::lines::state;
use towpath_ring::span::Span;
use towpath_stack::guard::Open;
use towpath_stack::{ClientSetup, Stack, Verdict};

const GEOMETRY: Geometry =
    Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 2, ..Geometry::DEFAULT };

/// What a peer does, made out of random numbers.
type Deed = (u8, u8, [u8; 4], Vec<u8>);

fn streams() -> (Arc<dyn Link>, Arc<dyn Link>) {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (Arc::new(Stream::new(a).unwrap()), Arc::new(Stream::new(b).unwrap()))
}

/// A peer that sends what it is told, and notes what it hears.
struct Peer {
    link: Arc<dyn Link>,
    outbox: mail::Outbox,
    heard: Receiver<Record>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    fn new(link: Arc<dyn Link>) -> Self {
        let (outbox, mut inbox) = mail::open(&link).unwrap();
        let (tell, heard) = channel();
        let waits = Arc::clone(&link);
        let thread = std::thread::spawn(move || {
            let mut arrivals = Vec::new();
            while waits.wait(&mut arrivals, Duration::from_secs(1)).is_ok() {
                for arrival in arrivals.drain(..) {
                    let each = |_, record: &[u8]| {
                        let _ = tell.send(Record::decode(record).unwrap());
                        Ok(())
                    };
                    inbox.arrived(arrival, each).unwrap();
                }
            }
        });
        for place in 0..2 {
            link.register(key(place), Span::fresh(16 * 4096).unwrap()).unwrap();
        }
        Self { link, outbox, heard, thread: Some(thread) }
    }
    /// False = nobody takes it any more.
    fn say(&mut self, record: &Record) -> bool {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let sent = self.outbox.send(0, &bytes).is_ok();
        sent && self.outbox.acknowledge().and_then(|()| self.link.flush()).is_ok()
    }
    fn message(&mut self, number: u32, put: impl FnOnce(&mut Vec<u8>, u32)) -> bool {
        let mut bytes = Vec::new();
        put(&mut bytes, number);
        self.say(&Record::Part { last: true, bytes })
    }
    fn order(&mut self, number: u32, order: &ToCard) -> bool {
        self.message(number, |bytes, number| message::send(bytes, number, order).unwrap())
    }
    fn tell(&mut self, number: u32, told: &FromCard) -> bool {
        self.message(number, |bytes, number| message::send(bytes, number, told).unwrap())
    }
    /// Allows what is asked; false = nothing is.
    fn allow(&mut self, record: &Record) -> bool {
        let Record::Part { bytes, .. } = record else { return false };
        match message::receive(&mut bytes.as_slice()) {
            Ok((number, FromCard::Ask(Question::Limit { .. }))) => self.order(number, &ToCard::Limit(None)),
            Ok((number, FromCard::Ask(_))) => self.order(number, &ToCard::Verdict(Verdict::Allow(0))),
            _ => false,
        }
    }
    /// Allows whatever is asked by now.
    fn allow_all(&mut self) {
        while let Ok(record) = self.heard.try_recv() {
            self.allow(&record);
        }
    }
    /// The next thing heard that is `wanted`.
    fn hear<T>(&mut self, mut wanted: impl FnMut(Record) -> Option<T>) -> T {
        loop {
            match self.heard.recv_timeout(Duration::from_secs(30)) {
                Ok(record) if self.allow(&record) => {}
                Ok(record) => {
                    if let Some(found) = wanted(record) {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("nothing is heard"),
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close();
        let _ = self.thread.take().unwrap().join();
    }
}

/// Words of a line: mostly small numbers, some at the edges.
fn words<const N: usize>(seed: &[u8; 4], bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|n| {
        let of = bytes.get(n).copied().unwrap_or(seed[n % 4]);
        match of {
            0..=199 => u32::from(of) % 8,
            200..=219 => u32::MAX - u32::from(of % 4),
            220..=239 => 4096 * u32::from(of % 3) + u32::from(of % 2),
            _ => u32::from(of) << 24,
        }
    })
}

/// A message of an ill-meaning near side; some are what an honest one sends.
fn order(what: u8, seed: [u8; 4]) -> ToCard {
    let [place, slot, seq, generation] = seed.map(|byte| u32::from(byte % 20));
    match what % 8 {
        0 => ToCard::Reserve { place, slot, seq },
        1 => ToCard::Hangup { place, slot, generation },
        2 => ToCard::Departed { place, process: seq },
        3 => ToCard::Add { place, uid: seq, pid: -1, name: "x".into() },
        4 => ToCard::Remove { place: place + 1 },
        5 => ToCard::Context { place, context: slot * 8, open: seq % 2 == 0 },
        6 => ToCard::Connections,
        _ => ToCard::Policy,
    }
}

/// One deed against a far side; false = it has had enough.
fn against_far(peer: &mut Peer, (kind, what, seed, bytes): &Deed) -> bool {
    peer.allow_all();
    let (place, slot) = (u32::from(seed[0] % 16 / 15), u32::from(seed[1]) % 17);
    match kind % 16 {
        0..=4 => {
            let mut app = words(seed, bytes);
            app[4] = u32::from(seed[3] % 4);
            peer.say(&Record::App { place, slot: slot % 16, app })
        }
        5..=9 => {
            let mut command = words(seed, bytes);
            // Commands of one kind or the other, on this host.
            (command[1], command[14]) = (u32::from(what % 4), u32::from(seed[2]) + 1);
            for (at, part) in [0, 0, 0xffff_0000, 0x0100_007f].into_iter().enumerate() {
                (command[2 + at], command[7 + at]) = (part, part);
            }
            (command[6], command[11]) = (u32::from(seed[2]), 0);
            let app = words(seed, &bytes[bytes.len() / 2..]);
            peer.say(&Record::Command { place, slot: slot % 16, app, options: words(seed, bytes), command })
        }
        10..=11 => peer.order(u32::from(*what), &order(*what, *seed)),
        12 => peer.link.write(0, key(0), u64::from(seed[1]) * 250, bytes).and_then(|()| peer.link.flush()).is_ok(),
        13 => peer.say(&Record::Part { last: what % 2 == 0, bytes: bytes.clone() }),
        14 => peer.say(&Record::App { place, slot: u32::from(*what), app: words(seed, bytes) }),
        _ => peer.say(&Record::Stack { place, slot, shown: words(seed, bytes) }),
    }
}

fn far_config() -> FarConfig {
    FarConfig { kernel: KernelConfig { cores: 1, spin_us: 0, cpus: Vec::new() }, may_run: false }
}

/// A far side, and a peer that has greeted and has a client.
fn greeted() -> (Peer, JoinHandle<()>) {
    let (a, b) = streams();
    let served = std::thread::spawn(move || drop(serve(b, &far_config())));
    let mut peer = Peer::new(a);
    assert!(peer.say(&Record::Greeting { version: VERSION, geometry: GEOMETRY }));
    assert!(peer.order(1, &ToCard::Add { place: 0, uid: 1000, pid: 1, name: "ill".into() }));
    peer.hear(|record| matches!(answer(&record, 1), Some(FromCard::Done)).then_some(()));
    (peer, served)
}

/// The answer to the question of a number.
fn answer(record: &Record, to: u32) -> Option<FromCard> {
    let Record::Part { bytes, .. } = record else { return None };
    let (number, answer) = message::receive(&mut bytes.as_slice()).ok()?;
    (number == to).then_some(answer)
}

#[test]
fn fuzz_a_far_side_with_an_ill_meaning_service() {
    bolero::check!().with_type::<Vec<Deed>>().with_iterations(100).for_each(|deeds| {
        let (mut peer, served) = greeted();
        // The far side ends the link if it has to, or it still answers and nothing has panicked.
        deeds.iter().take(40).all(|deed| against_far(&mut peer, deed));
        drop(peer);
        served.join().unwrap();
    });
}

#[test]
fn a_far_side_survives_a_thousand_plausible_lies_and_answers() {
    let (mut peer, served) = greeted();
    for n in 0..1000u32 {
        let seed = [(n % 15) as u8, (n * 7) as u8, (n * 13) as u8, (n % 5) as u8];
        let bytes: Vec<u8> = (0..20).map(|at| (n.wrapping_mul(at + 3) >> 2) as u8).collect();
        let kind = [0, 5, 12][n as usize % 3];
        assert!(against_far(&mut peer, &(kind, (n % 4) as u8, seed, bytes)), "at {n}");
    }
    // What was said before it may be looked at after it, by another thread.
    let noticed = (77..1077).any(|number| {
        assert!(peer.order(number, &ToCard::Status));
        let status = peer.hear(|record| answer(&record, number));
        let FromCard::Status(status) = status else { panic!("{status:?}") };
        assert_eq!(status.panics, 0);
        std::thread::sleep(Duration::from_millis(10));
        status.clients[0].lies > 0
    });
    assert!(noticed, "some of them must have been noticed");
    drop(peer);
    served.join().unwrap();
}

#[test]
fn who_does_not_greet_or_is_of_another_version_is_told_so() {
    let huge = Geometry { slots: 65_536, tx_bytes: 16 << 20, rx_bytes: 16 << 20, ..GEOMETRY };
    for (version, geometry, why) in [
        (VERSION + 1, GEOMETRY, "version"),
        (VERSION, huge, "size"),
        (VERSION, Geometry { cores: 2, ..GEOMETRY }, "size"),
        (VERSION, Geometry { slots: 17, ..GEOMETRY }, "size"),
    ] {
        let (a, b) = streams();
        let served = std::thread::spawn(move || serve(b, &far_config()).to_string());
        let mut peer = Peer::new(a);
        peer.say(&Record::Greeting { version, geometry });
        let told = peer.hear(|record| answer(&record, 0));
        assert!(matches!(&told, FromCard::Broken { why: told } if told.contains(why)), "{told:?}");
        assert!(served.join().unwrap().contains(why));
    }
    let (a, b) = streams();
    let served = std::thread::spawn(move || serve(b, &far_config()).to_string());
    let mut peer = Peer::new(a);
    peer.say(&Record::Beat);
    assert!(served.join().unwrap().contains("greet"));
}

/// A service's side whose far side is a peer, with a client.
struct Victim {
    near: Near,
    region: Arc<towpath_ring::Region>,
    bells: Vec<std::os::fd::OwnedFd>,
}

fn victim() -> (Victim, Peer) {
    let (a, b) = streams();
    let mut peer = Peer::new(b);
    let starting = std::thread::spawn(move || Near::start(a, GEOMETRY, Box::new(Open)).unwrap());
    peer.hear(|record| matches!(record, Record::Greeting { .. }).then_some(()));
    peer.tell(0, &FromCard::Hello { version: VERSION, release: "1".into() });
    let near = starting.join().unwrap();
    let ground = near.ground(GEOMETRY).unwrap();
    let region = Arc::new(ground.region);
    let bells = ground.doorbells.iter().map(|bell| bell.try_clone().unwrap()).collect();
    let (uid, pid, name) = (0, 0, "victim".to_owned());
    let setup = ClientSetup { region: Arc::clone(&region), doorbells: ground.doorbells, uid, pid, name, far: None };
    std::thread::scope(|scope| {
        let added = scope.spawn(|| near.add_client(setup).unwrap());
        let asked = |record: Record| {
            let Record::Part { bytes, .. } = record else { return None };
            let (number, order) = message::receive::<ToCard>(&mut bytes.as_slice()).ok()?;
            matches!(order, ToCard::Add { .. }).then_some(number)
        };
        let number = peer.hear(asked);
        peer.tell(number, &FromCard::Done);
        added.join().unwrap();
    });
    (Victim { near, region, bells }, peer)
}

#[test]
fn a_far_side_that_stops_in_the_middle_is_dead_after_a_while() {
    let (victim, mut peer) = victim();
    let mut shown = [0; 11];
    let since = std::time::Instant::now();
    // A connection and a listener: no other far side will come, so both end.
    for (slot, state) in [(3, state::ESTABLISHED), (4, state::LISTENING)] {
        (shown[7], shown[8]) = (1, state);
        assert!(peer.say(&Record::Stack { place: 0, slot, shown }));
    }
    while victim.near.ground(GEOMETRY).is_ok() || in_use(&victim.region) {
        assert!(since.elapsed() < 30 * super::wire::PATIENCE, "it is not noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(since.elapsed() >= super::wire::PATIENCE - Duration::from_secs(1));
    for slot in [3, 4].map(|raw| victim.region.slot(raw).unwrap()) {
        let line = victim.region.stack(slot);
        assert_eq!(line.error.load(Ordering::Relaxed), libc::ECONNRESET as u32);
        assert_eq!(line.state.load(Ordering::Relaxed), state::CLOSED);
    }
}

/// One deed against a near side.
fn against_near(peer: &mut Peer, (kind, what, seed, bytes): &Deed) -> bool {
    let (place, slot) = (u32::from(seed[0] % 16 / 15), u32::from(seed[1]) % 16);
    let number = u32::from(*what);
    match kind % 12 {
        0..=4 => {
            let mut shown = words(seed, bytes);
            shown[8] %= 5;
            peer.say(&Record::Stack { place, slot, shown })
        }
        5..=6 => peer.say(&Record::Info { place, slot, told: Box::new(words(seed, bytes)) }),
        7 => peer.tell(number, &FromCard::Freed { place, slot, seq: number }),
        8 => {
            let remote = std::net::SocketAddr::from(([127, 0, 0, 1], number as u16));
            peer.tell(number, &FromCard::Ask(Question::Connect { place, remote }))
        }
        9 => peer.tell(number, &[FromCard::Done, FromCard::Left { place: place + 1 }][usize::from(seed[2] % 2)]),
        10 => peer.link.write(0, key(0), u64::from(seed[1]) * 250, bytes).and_then(|()| peer.link.flush()).is_ok(),
        _ if what % 8 == 0 => peer.say(&Record::Stack { place, slot: slot + number, shown: words(seed, bytes) }),
        _ => peer.say(&Record::Beat),
    }
}

#[test]
fn fuzz_a_service_with_an_ill_meaning_far_side() {
    let hits = Mutex::new(0u32);
    bolero::check!().with_type::<Vec<Deed>>().with_iterations(100).for_each(|deeds| {
        let (victim, mut peer) = victim();
        let region = &victim.region;
        // What is not the stack's stays as it is.
        let (tx, slot) = (region.tx(region.slot(3).unwrap()), region.slot(3).unwrap());
        tx.write(0, &[0x5a; 4096]);
        region.app(slot).flags.store(0, Ordering::Relaxed);
        for (n, deed) in deeds.iter().take(40).enumerate() {
            towpath_ring::wake::ring(std::os::fd::AsFd::as_fd(&victim.bells[n % 2]));
            if !against_near(&mut peer, deed) {
                break;
            }
        }
        let mut sent = [0; 4096];
        tx.read(0, &mut sent);
        assert_eq!(sent, [0x5a; 4096]);
        drop(peer);
        // Its far side is gone: sockets are reset, and no client comes any more.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while victim.near.ground(GEOMETRY).is_ok() || in_use(region) {
            assert!(std::time::Instant::now() < until, "it is not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        for slot in (0..16).filter_map(|raw| region.slot(raw)) {
            let line = region.stack(slot);
            if line.state.load(Ordering::Relaxed) == state::CLOSED && line.error.load(Ordering::Relaxed) == 104 {
                *hits.lock().unwrap() += 1;
            }
        }
        drop(victim.near);
    });
    assert!(*hits.lock().unwrap() > 0, "no deed has shown a socket");
}

fn in_use(region: &towpath_ring::Region) -> bool {
    let mut slots = (0..16).filter_map(|raw| region.slot(raw));
    slots.any(|slot| {
        let state = region.stack(slot).state.load(Ordering::Acquire);
        matches!(state, state::CONNECTING | state::ESTABLISHED | state::LISTENING)
    })
}
