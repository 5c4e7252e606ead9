//! What clients that break the contract do, to any stack.

use super::Noise;
use super::app::{App, PATIENCE, Sock, eventually, small};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use towpath_ring::lines::app_flags;
use towpath_stack::Stack;

/// A stack that is put to the test.
pub struct Field<'a> {
    /// It.
    pub stack: &'a dyn Stack,
    /// Its cores.
    pub cores: usize,
    /// An address that its clients reach each other at.
    pub address: IpAddr,
    /// A port that nobody has.
    pub port: fn() -> u16,
}

/// How long a storm lasts: 2 s, or `FUZZ_SECONDS`.
fn storm_time() -> Duration {
    Duration::from_secs(std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2))
}

impl Field<'_> {
    fn client(&self, name: &str) -> Arc<App> {
        App::named(self.stack, small(self.cores), name)
    }
}

/// What an honest client has sent and got back before it ends, however slow the machine; who is held up for long fails by itself.
const ENOUGH: u64 = 100_000;

/// Echoes between two honest clients, for as long as `on`; returns the number of bytes that came back right.
fn honest(field: &Field, on: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let port = (field.port)();
    let (server, client) = (field.client("honest"), field.client("honest"));
    let mut listener = server.listen(field.address, port, 4).unwrap();
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
        let (mut noise, mut total) = (Noise(u64::from(port)), 0);
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
    // SAFETY: the region is mapped from its base for `total_bytes`, which is a multiple of 4, as long as `app` lives; all
    // of it is shared memory that other threads touch by atomic loads and stores or raw copies only.
    unsafe { std::slice::from_raw_parts(base.cast(), layout.total_bytes() / 4) }
}

/// Opens some sockets like an honest client would: listener, both ends of a connection, one left in the accept queue.
fn open_some(field: &Field, app: &Arc<App>) -> Vec<Sock> {
    // The port of the one before may still be on its way out.
    let (mut port, mut listener) = (0, None);
    while listener.is_none() {
        port = (field.port)();
        listener = app.listen(field.address, port, 4).ok();
    }
    let mut listener = listener.unwrap();
    let (a, b) = app.pair(&mut listener, port);
    let waiting = app.connect(field.address, port).unwrap();
    vec![listener, a, b, waiting]
}

/// `least` lies per client must be found, or the storm was none.
fn storm(field: &Field, seed: u64, least: u64, mut blow: impl FnMut(&Arc<App>, &mut Noise)) {
    let on = Arc::new(AtomicBool::new(true));
    let transfer = honest(field, Arc::clone(&on));
    let (start, mut noise, mut rounds, mut lies) = (Instant::now(), Noise(seed), 0u64, 0);
    while start.elapsed() < storm_time() {
        let evil = field.client("evil");
        let socks = open_some(field, &evil);
        let gust = Instant::now();
        while gust.elapsed() < Duration::from_millis(40) {
            blow(&evil, &mut noise);
            evil.ring_all();
        }
        lies += field.stack.status().clients.iter().filter(|c| c.id == evil.id).map(|c| c.lies).sum::<u64>();
        field.stack.remove_client(evil.id);
        drop(socks);
        rounds += 1;
    }
    on.store(false, Relaxed);
    let total = transfer.join().unwrap();
    eprintln!("{rounds} evil clients, {lies} lies found; {total} honest bytes");
    assert!(lies >= least * rounds, "the storm was a breeze: {lies} lies of {rounds} clients");
    assert!(total > 100_000, "the honest clients got only {total} bytes through");
    eventually("the evil clients are forgotten", || field.stack.status().clients.iter().all(|c| c.name == "honest"));
    assert!(field.stack.status().clients.iter().all(|c| c.lies == 0), "nobody honest is called a liar");
    assert_eq!(field.stack.status().panics, 0, "a thread of the stack panicked");
    eventually("no core has a flow", || field.stack.status().cores.iter().all(|c| c.flows == 0));
}

pub fn fuzz_noise_over_the_whole_region(field: &Field) {
    // Queue positions out of range are skipped, not counted, so nothing can be said of the number of lies.
    storm(field, 1, 0, |evil, noise| {
        let words = words(evil);
        for _ in 0..2000 {
            let (at, value) = (noise.next() as usize % words.len(), noise.next() as u32);
            words[at].store(value, Relaxed);
        }
    });
}

pub fn fuzz_noise_in_the_lines_and_queues(field: &Field) {
    storm(field, 2, 1, |evil, noise| {
        // Everything in front of the private area that is not a byte ring, with small values that pass first checks.
        let words = words(evil);
        let lines = (evil.region.layout().private() / 4).min(words.len());
        for _ in 0..2000 {
            let at = noise.next() as usize % lines;
            words[at].store(noise.next() as u32 % 70, Relaxed);
        }
    });
}

pub fn fuzz_plausible_lies(field: &Field) {
    storm(field, 3, 2, |evil, noise| {
        let region = &evil.region;
        for _ in 0..100 {
            let slot = region.slot(noise.next() as u32 % region.geometry().slots).unwrap();
            let (app, stack) = (region.app(slot), region.stack(slot));
            app.generation.store(stack.generation.load(Relaxed), Relaxed);
            let step = noise.next() as u32 % 40_000;
            match noise.next() % 6 {
                0 => app.tx_tail.store(app.tx_tail.load(Relaxed).wrapping_add(step), Relaxed),
                1 => app.rx_head.store(app.rx_head.load(Relaxed).wrapping_add(step), Relaxed),
                2 => app.tx_tail.store(step.wrapping_neg(), Relaxed),
                3 => app.flags.store(noise.next() as u32 & !app_flags::CLOSED, Relaxed),
                4 => app.flags.store(noise.next() as u32, Relaxed),
                _ => stack.tx_head.store(step, Relaxed),
            }
            // Queue it where and as often as it pleases.
            evil.push_anything(slot, noise.next() as usize % 2);
        }
    });
}

pub fn a_lie_costs_the_connection_only(field: &Field) {
    let app = field.client("liar");
    let port = (field.port)();
    let mut listener = app.listen(field.address, port, 4).unwrap();
    let (a, mut b) = app.pair(&mut listener, port);
    let (mut c, mut d) = app.pair(&mut listener, port);
    a.line().tx_tail.store(1_000_000, Relaxed);
    a.door();
    assert_eq!(b.read(&mut [0; 8]), Err(libc::ECONNRESET));
    a.wait("the error", || a.error() != 0);
    c.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    d.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
    assert_eq!(field.stack.status().clients[0].lies, 1);
    // A listener that claims to have accepted what was never there.
    listener.line().rx_head.store(160, Relaxed);
    listener.door();
    listener.wait("the error", || listener.error() != 0);
    assert_eq!(field.stack.status().clients[0].lies, 2);
    [a, b, c, d, listener].into_iter().for_each(Sock::close);
    eventually("the slots are free", || app.busy_slots() == 0);
}

pub fn a_stopped_client_stops_nobody_else(field: &Field) {
    let port = (field.port)();
    let (stopped, sender) = (field.client("stopped"), field.client("honest"));
    let mut listener = stopped.listen(field.address, port, 2).unwrap();
    let (mut a, mut b) = sender.pair(&mut listener, port);
    // Fill the pipe, and the accept queue beyond its backlog, while nobody takes anything out.
    let (mut noise, mut sent) = (Noise(5), Vec::new());
    let mut quiet = Instant::now();
    let begun = Instant::now();
    while quiet.elapsed() < Duration::from_millis(300) || (sent.len() < 2 * 16384 && begun.elapsed() < PATIENCE) {
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
    let waiting: Vec<Sock> = (0..6).map(|_| sender.begin(field.address, port).unwrap()).collect();
    let on = Arc::new(AtomicBool::new(true));
    let transfer = honest(field, Arc::clone(&on));
    std::thread::sleep(Duration::from_secs(1));
    on.store(false, Relaxed);
    assert!(transfer.join().unwrap() > 100_000, "others are slowed down by a stopped client");
    // It goes on: nothing is lost.
    let mut got = vec![0; sent.len()];
    b.read_exact(&mut got).unwrap();
    assert!(got == sent, "the bytes of a stopped client arrive unchanged");
    waiting.into_iter().chain([a, b, listener]).for_each(Sock::close);
    eventually("the slots are free", || stopped.busy_slots() + sender.busy_slots() == 0);
}
