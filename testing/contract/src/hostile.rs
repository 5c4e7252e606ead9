//! Clients that violate the contract, against any stack.

use crate::app::{App, Sock, TIMEOUT, eventually, small};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use towpath_ring::lines::app_flags;
use towpath_rng::Rng;
use towpath_runtime::Stack;

/// The stack under test.
pub struct Target<'a> {
    /// The stack.
    pub stack: &'a dyn Stack,
    /// Its flow groups.
    pub flow_groups: usize,
    /// An address at which its clients reach each other.
    pub address: IpAddr,
    /// Returns an unused port.
    pub port: fn() -> u16,
}

/// How long an attack lasts: 2 s, or `FUZZ_SECONDS`.
fn attack_time() -> Duration {
    Duration::from_secs(std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2))
}

impl Target<'_> {
    fn client(&self, name: &str) -> Arc<App> {
        App::named(self.stack, small(self.flow_groups), name)
    }
}

/// Bytes that an honest client must have echoed before it ends, however slow the machine. A client that is held up
/// fails by itself.
const ENOUGH: u64 = 100_000;

/// Echoes between two honest clients while `on` is set. Returns the number of bytes that came back right.
fn honest(target: &Target, on: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let port = (target.port)();
    let (server, client) = (target.client("honest"), target.client("honest"));
    let mut listener = server.listen(target.address, port, 4).unwrap();
    let (mut a, mut b) = client.pair(&mut listener, port);
    let serve = std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        loop {
            match b.read(&mut buffer).unwrap() {
                0 => break b.close(),
                n => b.write_all(&buffer[..n]).unwrap(),
            }
        }
    });
    std::thread::spawn(move || {
        let (mut noise, mut total) = (Rng::new(u64::from(port)), 0);
        let (mut sent, mut got) = (vec![0; 7000], vec![0; 7000]);
        while on.load(Relaxed) || total <= ENOUGH {
            noise.fill(&mut sent);
            a.write_all(&sent).unwrap();
            a.read_exact(&mut got).unwrap();
            assert!(sent == got, "an honest client's bytes were changed after {total}");
            total += sent.len() as u64;
        }
        a.close();
        serve.join().unwrap();
        listener.close();
        eventually("the honest clients' slots are free", || server.busy_slots() + client.busy_slots() == 0);
        total
    })
}

/// Every word of the region.
fn words(app: &App) -> &[AtomicU32] {
    let layout = app.region.layout();
    let base = app.region.private().0.wrapping_sub(layout.private());
    // SAFETY: the region is mapped from its base for `total_bytes`, which is a multiple of 4, as long as `app` lives.
    // All of it is shared memory that other threads access only by atomic loads and stores or raw copies.
    unsafe { std::slice::from_raw_parts(base.cast(), layout.total_bytes() / 4) }
}

/// Opens sockets as an honest client would: a listener, both ends of a connection, and one left in the accept queue.
fn open_some(target: &Target, app: &Arc<App>) -> Vec<Sock> {
    // The previous client's port may still be in use.
    let (mut port, mut listener) = (0, None);
    while listener.is_none() {
        port = (target.port)();
        listener = app.listen(target.address, port, 4).ok();
    }
    let mut listener = listener.unwrap();
    let (a, b) = app.pair(&mut listener, port);
    let waiting = app.connect(target.address, port).unwrap();
    vec![listener, a, b, waiting]
}

/// At least `least` violations per client must be found.
fn attack(target: &Target, seed: u64, least: u64, mut act: impl FnMut(&Arc<App>, &mut Rng)) {
    let on = Arc::new(AtomicBool::new(true));
    let transfer = honest(target, Arc::clone(&on));
    let (start, mut noise, mut rounds, mut violations) = (Instant::now(), Rng::new(seed), 0u64, 0);
    while start.elapsed() < attack_time() {
        let evil = target.client("evil");
        let socks = open_some(target, &evil);
        let burst = Instant::now();
        while burst.elapsed() < Duration::from_millis(40) {
            act(&evil, &mut noise);
            evil.ring_all();
        }
        violations += target
            .stack
            .status()
            .clients
            .iter()
            .filter(|c| c.id == evil.id)
            .map(|c| c.contract_violations)
            .sum::<u64>();
        target.stack.remove_client(evil.id);
        drop(socks);
        rounds += 1;
    }
    on.store(false, Relaxed);
    let total = transfer.join().unwrap();
    eprintln!("{rounds} evil clients, {violations} violations found; {total} honest bytes");
    assert!(violations >= least * rounds, "too few violations: {violations} violations of {rounds} clients");
    assert!(total > 100_000, "the honest clients got only {total} bytes through");
    eventually("the evil clients are forgotten", || target.stack.status().clients.iter().all(|c| c.name == "honest"));
    assert!(target.stack.status().clients.iter().all(|c| c.contract_violations == 0), "an honest client is accused");
    assert_eq!(target.stack.status().panics, 0, "a thread of the stack panicked");
    eventually("no flow group has a flow", || target.stack.status().flow_groups.iter().all(|c| c.flows == 0));
}

pub fn fuzz_noise_over_the_whole_region(target: &Target) {
    // Queue positions out of range are skipped and not counted, so the number of violations is unknown.
    attack(target, 1, 0, |evil, noise| {
        let words = words(evil);
        for _ in 0..2000 {
            let (at, value) = (noise.next_u64() as usize % words.len(), noise.next_u64() as u32);
            words[at].store(value, Relaxed);
        }
    });
}

pub fn fuzz_noise_in_the_lines_and_queues(target: &Target) {
    attack(target, 2, 1, |evil, noise| {
        // Everything before the private area except byte rings, with small values that pass the first checks.
        let words = words(evil);
        let lines = (evil.region.layout().private() / 4).min(words.len());
        for _ in 0..2000 {
            let at = noise.next_u64() as usize % lines;
            words[at].store(noise.next_u64() as u32 % 70, Relaxed);
        }
    });
}

pub fn fuzz_plausible_violations(target: &Target) {
    attack(target, 3, 2, |evil, noise| {
        let region = &evil.region;
        for _ in 0..100 {
            let slot = region.slot(noise.next_u64() as u32 % region.geometry().slots).unwrap();
            let (app, stack) = (region.app(slot), region.stack(slot));
            app.generation.store(stack.generation.load(Relaxed), Relaxed);
            let step = noise.next_u64() as u32 % 40_000;
            match noise.next_u64() % 6 {
                0 => app.tx_tail.store(app.tx_tail.load(Relaxed).wrapping_add(step), Relaxed),
                1 => app.rx_head.store(app.rx_head.load(Relaxed).wrapping_add(step), Relaxed),
                2 => app.tx_tail.store(step.wrapping_neg(), Relaxed),
                3 => app.flags.store(noise.next_u64() as u32 & !app_flags::CLOSED, Relaxed),
                4 => app.flags.store(noise.next_u64() as u32, Relaxed),
                _ => stack.tx_head.store(step, Relaxed),
            }
            // Queued in any queue, as often as it likes.
            evil.push_anything(slot, noise.next_u64() as usize % 2);
        }
    });
}

pub fn a_violation_costs_the_connection_only(target: &Target) {
    let app = target.client("violator");
    let port = (target.port)();
    let mut listener = app.listen(target.address, port, 4).unwrap();
    let (a, mut b) = app.pair(&mut listener, port);
    let (mut c, mut d) = app.pair(&mut listener, port);
    a.line().tx_tail.store(1_000_000, Relaxed);
    a.queue_data();
    assert_eq!(b.read(&mut [0; 8]), Err(libc::ECONNRESET));
    a.wait("the error", || a.error() != 0);
    c.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    d.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
    assert_eq!(target.stack.status().clients[0].contract_violations, 1);
    // A listener that claims to have accepted a connection that never was.
    listener.line().rx_head.store(160, Relaxed);
    listener.queue_data();
    listener.wait("the error", || listener.error() != 0);
    assert_eq!(target.stack.status().clients[0].contract_violations, 2);
    [a, b, c, d, listener].into_iter().for_each(Sock::close);
    eventually("the slots are free", || app.busy_slots() == 0);
}

pub fn a_stopped_client_stops_nobody_else(target: &Target) {
    let port = (target.port)();
    let (stopped, sender) = (target.client("stopped"), target.client("honest"));
    let mut listener = stopped.listen(target.address, port, 2).unwrap();
    let (mut a, mut b) = sender.pair(&mut listener, port);
    // Fills the rings, and the accept queue beyond its backlog, while the client takes nothing out.
    let (mut noise, mut sent) = (Rng::new(5), Vec::new());
    let mut quiet = Instant::now();
    let begun = Instant::now();
    while quiet.elapsed() < Duration::from_millis(300) || (sent.len() < 2 * 16384 && begun.elapsed() < TIMEOUT) {
        let mut chunk = vec![0; 1000];
        noise.fill(&mut chunk);
        let n = a.try_write(&chunk);
        sent.extend_from_slice(&chunk[..n]);
        if n > 0 {
            quiet = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert!(sent.len() >= 2 * 16384, "both rings are full: {}", sent.len());
    let waiting: Vec<Sock> = (0..6).map(|_| sender.begin(target.address, port).unwrap()).collect();
    let on = Arc::new(AtomicBool::new(true));
    let transfer = honest(target, Arc::clone(&on));
    std::thread::sleep(Duration::from_secs(1));
    on.store(false, Relaxed);
    assert!(transfer.join().unwrap() > 100_000, "others are slowed down by a stopped client");
    // The client goes on, and nothing is lost.
    let mut got = vec![0; sent.len()];
    b.read_exact(&mut got).unwrap();
    assert!(got == sent, "the bytes of a stopped client arrive unchanged");
    waiting.into_iter().chain([a, b, listener]).for_each(Sock::close);
    eventually("the slots are free", || stopped.busy_slots() + sender.busy_slots() == 0);
}
