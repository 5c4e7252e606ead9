//! Both sides against a peer that speaks the protocol and is hostile: random updates at any time, unexpected messages,
//! bytes in the wrong place. Nothing panics, and the honest side goes on.
#![allow(clippy::unwrap_used)]

use crate::client::Remote;
use crate::layout::key;
use crate::link::stream::Stream;
use crate::server::{ServerConfig, serve};
use crate::update::Update;
use crate::{Link, link::inbox};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_forward::message::{self, Question, ToHost, ToStack};
use towpath_kernel::KernelConfig;
use towpath_ring::Geometry;
use towpath_ring::codec::app_word;
use towpath_ring::layout::VERSION;
use towpath_ring::lines::state;
use towpath_ring::span::Span;
use towpath_runtime::policy::AllowAll;
use towpath_runtime::{ClientSetup, OrphanLimits, Stack, Verdict};

const GEOMETRY: Geometry =
    Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 2, ..Geometry::DEFAULT };

/// An action of the peer, made of random numbers.
type Deed = (u8, u8, [u8; 4], Vec<u8>);

fn streams() -> (Arc<dyn Link>, Arc<dyn Link>) {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (Arc::new(Stream::new(a).unwrap()), Arc::new(Stream::new(b).unwrap()))
}

/// A peer that sends what the test wants, and records what it hears.
struct Peer {
    link: Arc<dyn Link>,
    outbox: inbox::Outbox,
    heard: Receiver<Update>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    fn new(link: Arc<dyn Link>) -> Self {
        let (outbox, mut inbox) = inbox::open(&link).unwrap();
        let (tell, heard) = channel();
        let waits = Arc::clone(&link);
        let thread = std::thread::spawn(move || {
            let mut arrivals = Vec::new();
            while waits.wait(&mut arrivals, Duration::from_secs(1)).is_ok() {
                for arrival in arrivals.drain(..) {
                    let each = |_, record: &[u8]| {
                        let _ = tell.send(Update::decode(record).unwrap());
                        Ok(())
                    };
                    inbox.arrived(arrival, each).unwrap();
                }
            }
        });
        for index in 0..2 {
            link.register(key(index), Span::fresh(16 * 4096).unwrap()).unwrap();
        }
        Self { link, outbox, heard, thread: Some(thread) }
    }
    /// False if the link has ended.
    fn say(&mut self, record: &Update) -> bool {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let sent = self.outbox.send(0, &bytes).is_ok();
        sent && self.outbox.acknowledge().and_then(|()| self.link.flush()).is_ok()
    }
    fn message(&mut self, number: u32, put: impl FnOnce(&mut Vec<u8>, u32)) -> bool {
        let mut bytes = Vec::new();
        put(&mut bytes, number);
        self.say(&Update::Part { last: true, bytes })
    }
    fn request(&mut self, number: u32, request: &ToStack) -> bool {
        self.message(number, |bytes, number| message::send(bytes, number, request).unwrap())
    }
    fn tell(&mut self, number: u32, told: &ToHost) -> bool {
        self.message(number, |bytes, number| message::send(bytes, number, told).unwrap())
    }
    /// Allows a question to the policy. False if the update is none.
    fn allow(&mut self, record: &Update) -> bool {
        let Update::Part { bytes, .. } = record else { return false };
        match message::receive(&mut bytes.as_slice()) {
            Ok((number, ToHost::Ask(Question::Limit { .. }))) => self.request(number, &ToStack::Limit(None)),
            Ok((number, ToHost::Ask(_))) => self.request(number, &ToStack::Verdict(Verdict::Allow(0))),
            _ => false,
        }
    }
    /// Allows every question that has come.
    fn allow_all(&mut self) {
        while let Ok(record) = self.heard.try_recv() {
            self.allow(&record);
        }
    }
    /// The next update that `wanted` accepts.
    fn hear<T>(&mut self, mut wanted: impl FnMut(Update) -> Option<T>) -> T {
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

/// A message of a hostile host. Some are what an honest one sends.
fn hostile_request(what: u8, seed: [u8; 4]) -> ToStack {
    let [index, slot, seq, generation] = seed.map(|byte| u32::from(byte % 20));
    match what % 8 {
        0 => ToStack::Reserve { index, slot, seq },
        1 => ToStack::Hangup { index, slot, generation },
        2 => ToStack::Departed { index, process: seq },
        3 => ToStack::Add { index, uid: seq, pid: -1, name: "x".into() },
        4 => ToStack::Remove { index: index + 1 },
        5 => ToStack::Context { index, context: slot * 8, open: seq % 2 == 0 },
        6 => ToStack::Connections,
        _ => ToStack::Policy,
    }
}

/// One action against a server. False if the server has ended the link.
fn against_far(peer: &mut Peer, (kind, what, seed, bytes): &Deed) -> bool {
    peer.allow_all();
    let (index, slot) = (u32::from(seed[0] % 16 / 15), u32::from(seed[1]) % 17);
    match kind % 16 {
        0..=4 => {
            let mut app = words(seed, bytes);
            app[app_word::GENERATION] = u32::from(seed[3] % 4);
            peer.say(&Update::App { index, slot: slot % 16, app })
        }
        5..=9 => {
            let mut command = words(seed, bytes);
            // Commands of both kinds, to addresses of this host.
            (command[1], command[14]) = (u32::from(what % 4), u32::from(seed[2]) + 1);
            for (at, part) in [0, 0, 0xffff_0000, 0x0100_007f].into_iter().enumerate() {
                (command[2 + at], command[7 + at]) = (part, part);
            }
            (command[6], command[11]) = (u32::from(seed[2]), 0);
            let app = words(seed, &bytes[bytes.len() / 2..]);
            peer.say(&Update::Command { index, slot: slot % 16, app, options: words(seed, bytes), command })
        }
        10..=11 => peer.request(u32::from(*what), &hostile_request(*what, *seed)),
        12 => peer.link.write(0, key(0), u64::from(seed[1]) * 250, bytes).and_then(|()| peer.link.flush()).is_ok(),
        13 => peer.say(&Update::Part { last: what % 2 == 0, bytes: bytes.clone() }),
        14 => peer.say(&Update::App { index, slot: u32::from(*what), app: words(seed, bytes) }),
        _ => peer.say(&Update::Stack { index, slot, shown: words(seed, bytes) }),
    }
}

fn far_config() -> ServerConfig {
    ServerConfig {
        kernel: KernelConfig { cores: 1, spin_us: 0, cpus: Vec::new(), orphans: OrphanLimits::default() },
        may_run: false,
    }
}

/// A server, and a peer that has greeted and has a client.
fn greeted() -> (Peer, JoinHandle<()>) {
    let (a, b) = streams();
    let served = std::thread::spawn(move || drop(serve(b, &far_config())));
    let mut peer = Peer::new(a);
    assert!(peer.say(&Update::Greeting { version: VERSION, geometry: GEOMETRY }));
    assert!(peer.request(1, &ToStack::Add { index: 0, uid: 1000, pid: 1, name: "ill".into() }));
    peer.hear(|record| matches!(answer(&record, 1), Some(ToHost::Done)).then_some(()));
    (peer, served)
}

/// The answer to the request of a number.
fn answer(record: &Update, to: u32) -> Option<ToHost> {
    let Update::Part { bytes, .. } = record else { return None };
    let (number, answer) = message::receive(&mut bytes.as_slice()).ok()?;
    (number == to).then_some(answer)
}

#[test]
fn fuzz_a_server_with_a_hostile_host() {
    bolero::check!().with_type::<Vec<Deed>>().with_iterations(100).for_each(|deeds| {
        let (mut peer, served) = greeted();
        // The server has ended the link or still answers, and nothing has panicked.
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
    // Another thread may serve what was said before only after this.
    let noticed = (77..1077).any(|number| {
        assert!(peer.request(number, &ToStack::Status));
        let status = peer.hear(|record| answer(&record, number));
        let ToHost::Status(status) = status else { panic!("{status:?}") };
        assert_eq!(status.panics, 0);
        std::thread::sleep(Duration::from_millis(10));
        status.clients[0].contract_violations > 0
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
        (VERSION, Geometry { flow_groups: 2, ..GEOMETRY }, "size"),
        (VERSION, Geometry { slots: 17, ..GEOMETRY }, "size"),
    ] {
        let (a, b) = streams();
        let served = std::thread::spawn(move || serve(b, &far_config()).to_string());
        let mut peer = Peer::new(a);
        peer.say(&Update::Greeting { version, geometry });
        let told = peer.hear(|record| answer(&record, 0));
        assert!(matches!(&told, ToHost::Broken { why: told } if told.contains(why)), "{told:?}");
        assert!(served.join().unwrap().contains(why));
    }
    let (a, b) = streams();
    let served = std::thread::spawn(move || serve(b, &far_config()).to_string());
    let mut peer = Peer::new(a);
    peer.say(&Update::Beat);
    assert!(served.join().unwrap().contains("greet"));
}

/// A host whose server is the peer, with a client.
struct Victim {
    stack: Remote,
    region: Arc<towpath_ring::Region>,
    doorbells: Vec<std::os::fd::OwnedFd>,
}

fn victim() -> (Victim, Peer) {
    let (a, b) = streams();
    let mut peer = Peer::new(b);
    let starting = std::thread::spawn(move || Remote::start(a, GEOMETRY, Box::new(AllowAll)).unwrap());
    peer.hear(|record| matches!(record, Update::Greeting { .. }).then_some(()));
    peer.tell(0, &ToHost::Hello { version: VERSION, release: "1".into() });
    let stack = starting.join().unwrap();
    let memory = stack.client_memory(GEOMETRY).unwrap();
    let region = Arc::new(memory.region);
    let doorbells = memory.doorbells.iter().map(|doorbell| doorbell.try_clone().unwrap()).collect();
    let (uid, pid, name) = (0, 0, "victim".to_owned());
    let setup = ClientSetup {
        region: Arc::clone(&region),
        doorbells: memory.doorbells,
        uid,
        pid,
        name,
        remote_waker: None,
        namespace: Default::default(),
        lease: None,
    };
    std::thread::scope(|scope| {
        let added = scope.spawn(|| stack.add_client(setup).unwrap());
        let asked = |record: Update| {
            let Update::Part { bytes, .. } = record else { return None };
            let (number, request) = message::receive::<ToStack>(&mut bytes.as_slice()).ok()?;
            matches!(request, ToStack::Add { .. }).then_some(number)
        };
        let number = peer.hear(asked);
        peer.tell(number, &ToHost::Done);
        added.join().unwrap();
    });
    (Victim { stack, region, doorbells }, peer)
}

#[test]
fn a_far_side_that_stops_in_the_middle_is_dead_after_a_while() {
    let (victim, mut peer) = victim();
    let mut shown = [0; 11];
    let since = std::time::Instant::now();
    // A connection and a listener. No other server will come, so both end.
    for (slot, state) in [(3, state::ESTABLISHED), (4, state::LISTENING)] {
        (shown[7], shown[8]) = (1, state);
        assert!(peer.say(&Update::Stack { index: 0, slot, shown }));
    }
    while victim.stack.client_memory(GEOMETRY).is_ok() || in_use(&victim.region) {
        assert!(since.elapsed() < 30 * crate::transfer::SILENCE_LIMIT, "it is not noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(since.elapsed() >= crate::transfer::SILENCE_LIMIT - Duration::from_secs(1));
    for slot in [3, 4].map(|raw| victim.region.slot(raw).unwrap()) {
        let line = victim.region.stack(slot);
        assert_eq!(line.error.load(Ordering::Relaxed), libc::ECONNRESET as u32);
        assert_eq!(line.state.load(Ordering::Relaxed), state::CLOSED);
    }
}

/// One action against a host.
fn against_near(peer: &mut Peer, (kind, what, seed, bytes): &Deed) -> bool {
    let (index, slot) = (u32::from(seed[0] % 16 / 15), u32::from(seed[1]) % 16);
    let number = u32::from(*what);
    match kind % 12 {
        0..=4 => {
            let mut shown = words(seed, bytes);
            shown[8] %= 5;
            peer.say(&Update::Stack { index, slot, shown })
        }
        5..=6 => {
            let (info, counts) = (Box::new(words(seed, bytes)), Box::new(words(seed, bytes)));
            peer.say(&Update::Info { index, slot, info, counts })
        }
        7 => peer.tell(number, &ToHost::Freed { index, slot, seq: number }),
        8 => {
            let remote = std::net::SocketAddr::from(([127, 0, 0, 1], number as u16));
            peer.tell(number, &ToHost::Ask(Question::Connect { index, remote }))
        }
        9 => peer.tell(number, &[ToHost::Done, ToHost::Left { index: index + 1 }][usize::from(seed[2] % 2)]),
        10 => peer.link.write(0, key(0), u64::from(seed[1]) * 250, bytes).and_then(|()| peer.link.flush()).is_ok(),
        _ if what % 8 == 0 => peer.say(&Update::Stack { index, slot: slot + number, shown: words(seed, bytes) }),
        _ => peer.say(&Update::Beat),
    }
}

#[test]
fn fuzz_a_host_with_a_hostile_server() {
    let hits = Mutex::new(0u32);
    bolero::check!().with_type::<Vec<Deed>>().with_iterations(100).for_each(|deeds| {
        let (victim, mut peer) = victim();
        let region = &victim.region;
        // Words that are not the stack's stay unchanged.
        let (tx, slot) = (region.tx(region.slot(3).unwrap()), region.slot(3).unwrap());
        tx.write(0, &[0x5a; 4096]);
        region.app(slot).flags.store(0, Ordering::Relaxed);
        for (n, deed) in deeds.iter().take(40).enumerate() {
            towpath_ring::wake::notify(std::os::fd::AsFd::as_fd(&victim.doorbells[n % 2]));
            if !against_near(&mut peer, deed) {
                break;
            }
        }
        let mut sent = [0; 4096];
        tx.read(0, &mut sent);
        assert_eq!(sent, [0x5a; 4096]);
        drop(peer);
        // The server is gone: sockets are reset, and no client can be added.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while victim.stack.client_memory(GEOMETRY).is_ok() || in_use(region) {
            assert!(std::time::Instant::now() < until, "it is not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        for slot in (0..16).filter_map(|raw| region.slot(raw)) {
            let line = region.stack(slot);
            if line.state.load(Ordering::Relaxed) == state::CLOSED && line.error.load(Ordering::Relaxed) == 104 {
                *hits.lock().unwrap() += 1;
            }
        }
        drop(victim.stack);
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
