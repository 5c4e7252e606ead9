//! Applications that break the contract of the shared region, while two others work undisturbed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use towpath_ring::{Region, wake};
use towpath_rng::Rng;
use towpath_system_tests::program::Running;
use towpath_system_tests::{RawClient, Service, require_program, until};

fn redis(service: &Service, port: u16) -> Running {
    require_program("redis-server", "redis-server");
    let mut server = service
        .accelerated(&format!("redis-server --port {port} --save --appendonly no"))
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    server
}

/// A client that can write any word of its region.
struct Client {
    socket: OwnedFd,
    memfd: OwnedFd,
    doorbells: Vec<OwnedFd>,
    region: Region,
    words: *mut AtomicU32,
    bytes: usize,
}

impl Client {
    fn new(service: &Service) -> Self {
        let RawClient { socket, memfd, region, doorbells, .. } = RawClient::new(service);
        let bytes = rustix::fs::fstat(&memfd).expect("fstat").st_size as usize;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing. It is only used as atomic
        // words.
        let words = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, &memfd, 0) }.expect("mmap");
        Self { socket, memfd, doorbells, region, words: words.cast(), bytes }
    }
    fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping has `bytes` bytes, begins at a page, and stays until `unmap`, which takes `self`.
        unsafe { std::slice::from_raw_parts(self.words, self.bytes / 4) }
    }
    fn ring_all(&self) {
        self.doorbells.iter().for_each(|doorbell| wake::notify(doorbell.as_fd()));
    }
    /// Unmaps the region and closes the memfd, but keeps the connection.
    fn unmap(self) -> OwnedFd {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { rustix::mm::munmap(self.words.cast(), self.bytes) }.expect("munmap");
        drop((self.region, self.memfd, self.doorbells));
        self.socket
    }
}

/// Random numbers that may do harm: any, small ones, those near a slot number, and those near the present value.
fn nasty(rng: &mut Rng, old: u32, slots: u32) -> u32 {
    let value = rng.next_u64() as u32;
    match value >> 29 {
        0 | 1 => value,
        2 => value & 7,
        3 => value % (slots + 2),
        4 => old.wrapping_add(value & 0xff),
        5 => old ^ 1 << (value & 31),
        6 => u32::MAX - (value & 3),
        _ => 0,
    }
}

/// The least number of words that a scribbler writes.
const WORDS: u64 = 1_000_000;

/// Writes over every word of the region again and again, most often over the lines and queues, and notifies the stack.
fn scribble(client: &Client, seed: u64, end: Instant) {
    let (words, geometry) = (client.words(), client.region.geometry());
    // The data rings come last. The stack does not interpret their bytes.
    let rings = geometry.slots as usize * (geometry.tx_space() + geometry.rx_space()) as usize / 4;
    let control = words.len().saturating_sub(rings);
    assert!(control > 1000, "{control} words before the rings of {}", words.len());
    let (mut rng, mut written) = (Rng::new(seed), 0);
    for word in &words[..control] {
        word.store(nasty(&mut rng, 0, geometry.slots), Ordering::Relaxed);
        written += 1;
    }
    // A busy machine may not leave it the time.
    while written < WORDS || Instant::now() < end {
        for _ in 0..20_000 {
            // Half of the writes go to the lines of the first slots, which are in use.
            let words_of = if rng.below(2) == 0 { 64 * 64 } else { control };
            let at = rng.below(words_of as u64) as usize;
            let old = words[at].load(Ordering::Relaxed);
            words[at].store(nasty(&mut rng, old, geometry.slots), Ordering::Relaxed);
            written += 1;
        }
        client.ring_all();
    }
}

#[test]
fn a_scribbled_region_harms_nobody_else() {
    let service = Service::embedded();
    let mut server = redis(&service, 7401);
    let load = "redis-benchmark -p 7401 -t get,set -n 100000000 -c 10 -q";
    let mut load = service.accelerated(load).start(service.scratch.path("load.log"));
    let quiet_clients = 2;
    let end = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        let scribblers: Vec<_> = (1..=3u64)
            .map(|seed| {
                let service = &service;
                scope.spawn(move || scribble(&Client::new(service), seed * 0x9e37_79b9, end))
            })
            .collect();
        // The others get right results meanwhile.
        let checker = scope.spawn(|| {
            let mut rounds = 0;
            while rounds == 0 || Instant::now() < end {
                let value = format!("value-{rounds}-{}", "z".repeat(rounds % 5000));
                let set = service.accelerated("redis-cli -p 7401 set key").arg(&value).run(20).ok();
                let get = service.accelerated("redis-cli -p 7401 get key").run(20).ok();
                assert_eq!((set.trim(), get.trim()), ("OK", value.as_str()));
                rounds += 1;
            }
        });
        scribblers.into_iter().for_each(|scribbler| scribbler.join().expect("scribbler"));
        checker.join().expect("checker");
    });
    assert!(load.alive() && server.alive());
    until("the scribblers are forgotten", 30, || {
        service.status()["clients"].as_array().expect("clients").len() == quiet_clients
    });
    let log = service.running.output();
    assert!(!log.contains("panicked"), "{log}");
    load.stop();
    let out = service.accelerated("redis-benchmark -p 7401 -t get,set -n 5000 -c 10 -q").run(60).ok();
    assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    until("all flows are gone", 30, || {
        service.status()["flow_groups"].as_array().expect("flow groups").iter().all(|c| c["flows"] == 0)
    });
}

#[test]
fn a_region_cannot_be_resized_and_need_not_be_kept() {
    let service = Service::embedded();
    let _server = redis(&service, 7402);
    let client = Client::new(&service);
    for size in [0, 4096, client.bytes as u64 - 4096, client.bytes as u64 + 4096] {
        assert_eq!(rustix::fs::ftruncate(&client.memfd, size), Err(rustix::io::Errno::PERM), "{size}");
    }
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    // Holes read as zeros, which is harmless, so the call may succeed or fail.
    let _ = rustix::fs::fallocate(&client.memfd, punch, 0, client.bytes as u64);
    client.ring_all();
    let ping = || service.accelerated("redis-cli -p 7402 ping").run(20).ok();
    assert_eq!(ping().trim(), "PONG");
    let connection = client.unmap();
    assert_eq!(ping().trim(), "PONG");
    let clients = |number| service.status()["clients"].as_array().expect("clients").len() == number;
    until("the second ping's is forgotten, and this one not", 20, || clients(2));
    drop(connection);
    until("the client is forgotten", 20, || clients(1));
    assert_eq!(ping().trim(), "PONG");
}
