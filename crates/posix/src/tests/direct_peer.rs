//! A hostile peer of a direct connection writes any word of the pair region. Here it is the other end of a connection
//! of this process with itself.

use super::os::*;
use crate::fake::DIRECT;
use crate::fd::table;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use libc::{c_int, timeval};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_client::direct::Direct;
use towpath_client::socket::Socket;
use towpath_ring::pair::PairLines;
use towpath_rng::Rng;

/// All direct connections of this process share one pair region, and these tests write over it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A direct connection: the victim's end and the hostile one.
fn joined() -> (c_int, c_int) {
    let (ours, theirs) = pair_for(DIRECT);
    assert!(end_of(ours).is_some() && end_of(theirs).is_some(), "not direct");
    (ours, theirs)
}

fn end_of(fd: c_int) -> Option<Direct> {
    socket_of(fd).direct()
}

fn socket_of(fd: c_int) -> Socket {
    table::socket(fd).expect("accelerated")
}

/// All words of the pair region, as a hostile peer has them mapped.
fn words() -> &'static [AtomicU32] {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let spans = maps.lines().filter(|line| line.contains("towpath-pair")).map(|line| {
        let (begin, end) = line.split(' ').next().and_then(|span| span.split_once('-')).expect("a span");
        let number = |text| usize::from_str_radix(text, 16).expect("a number");
        (number(begin), number(end) - number(begin))
    });
    // The stack maps it without the rings.
    let (begin, bytes) = spans.max_by_key(|(_, bytes)| *bytes).expect("a pair region");
    // SAFETY: the library never unmaps it, and all its words are used as atomics or copied.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(begin), bytes / 4) }
}

struct Random(Rng);

impl Random {
    fn new(seed: u32) -> Self {
        Self(Rng::new(seed.into()))
    }

    fn next(&mut self) -> u32 {
        self.0.next_u64() as u32
    }

    fn below(&mut self, most: usize) -> usize {
        self.next() as usize % most
    }

    /// A value that is likely to be wrong in an interesting way.
    fn value(&mut self) -> u32 {
        let any = self.next();
        match self.next() % 6 {
            0 => any,
            1 => any & 15,
            2 => !(any & 7),
            3 => 1 << (any % 32),
            4 => 32_768 + any % 5,
            _ => 0,
        }
    }
}

type Attack = (&'static str, fn(&PairLines));

const RECEIVES: [Attack; 4] = [
    ("a tail a byte beyond the ring", |own| own.line.tx_tail.store(8 + 32_768 + 1, SeqCst)),
    ("a tail behind what has been read", |own| own.line.tx_tail.store(7, SeqCst)),
    ("held bytes beyond the ring", |own| {
        own.line.held_tail.store(8 + 32_768 + 1, SeqCst);
        own.line.held_ms.store(1, SeqCst);
    }),
    ("a tail half the numbers away", |own| own.line.tx_tail.store(8 + (1 << 31), SeqCst)),
];

const SENDS: [Attack; 4] = [
    ("a head before what was sent", |own| own.line.rx_head.store(8u32.wrapping_sub(32_768 + 1), SeqCst)),
    ("a head beyond what was sent", |own| own.line.rx_head.store(9, SeqCst)),
    ("more withheld than a receiver's half", |own| own.receive_withheld.store(16_384 + 1, SeqCst)),
    ("withheld so much that the sum wraps", |own| {
        own.line.rx_head.store(1 << 31, SeqCst);
        own.receive_withheld.store(1 << 31, SeqCst);
    }),
];

/// A connection over which eight bytes have gone each way.
fn used() -> (c_int, c_int) {
    let (ours, theirs) = joined();
    for (from, to) in [(ours, theirs), (theirs, ours)] {
        assert_eq!(send(from, b"12345678", 0), Ok(8));
        assert_eq!(recv(to, 100, 0), Ok(b"12345678".to_vec()));
    }
    (ours, theirs)
}

#[test]
fn an_impossible_word_of_a_direct_peer_ends_the_connection_with_an_error() {
    let _alone = alone();
    for (number, (name, attack)) in RECEIVES.into_iter().chain(SENDS).enumerate() {
        let (ours, theirs) = used();
        attack(end_of(theirs).expect("direct").own());
        let victim = std::thread::spawn(move || match number < RECEIVES.len() {
            true => recv(ours, 100, 0).map(|bytes| bytes.len()),
            // It does not fit at once, so the room is looked at.
            false => send(ours, &[0; 40_000], 0),
        });
        assert_eq!(victim.join().expect("thread"), Err(libc::ECONNABORTED), "{name}");
        assert_eq!(recv(theirs, 100, 0), Err(libc::ECONNRESET), "{name}");
        close_both(ours, theirs);
    }
}

#[test]
fn poll_and_epoll_tell_of_the_end_of_a_connection_whose_peer_broke_the_contract() {
    let _alone = alone();
    let ended = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
    for (name, attack) in RECEIVES {
        let (ours, theirs) = used();
        let waiting = epoll();
        control(waiting, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN | libc::EPOLLRDHUP, 7).expect("epoll_ctl");
        assert_eq!(wait(waiting, 0), [], "{name}");
        let own = end_of(theirs).expect("direct");
        attack(own.own());
        // The peer need not say anything: a look is enough.
        assert_eq!(poll(&[(ours, 0)], 10_000), Ok(vec![(libc::POLLHUP | libc::POLLERR)]), "{name}");
        assert_eq!(wait(waiting, 10_000), [(7, ended)], "{name}");
        assert_eq!(option(ours, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNABORTED));
        close(waiting).expect("close");
        close_both(ours, theirs);
    }
}

/// The words of a connection whose sender holds bytes back are no violation at any moment.
#[test]
fn held_bytes_that_were_read_before_their_tail_are_no_violation() {
    let _alone = alone();
    let (ours, theirs) = used();
    let line = &end_of(theirs).expect("direct").own().line;
    line.held_tail.store(8 + 5, SeqCst);
    line.held_ms.store(1, SeqCst);
    assert_eq!(recv(ours, 100, 0).map(|bytes| bytes.len()), Ok(5), "due long ago");
    nonblocking(ours);
    // Five bytes have been read that the tail does not cover.
    assert_eq!(recv(ours, 100, 0), Err(libc::EAGAIN));
    line.tx_tail.store(8 + 6, SeqCst);
    line.held_ms.store(0, SeqCst);
    assert_eq!(recv(ours, 100, 0).map(|bytes| bytes.len()), Ok(1));
    close_both(ours, theirs);
}

/// Calls of a victim, none of which may take for ever or touch memory outside its buffer.
fn use_victim(fd: c_int, waiting: c_int, which: u32) {
    const GUARD: usize = 64;
    let received = |flags: c_int, len: usize| {
        let mut bytes = vec![0xa5u8; len + GUARD];
        let buf: *mut libc::c_void = bytes.as_mut_ptr().cast();
        // SAFETY: the buffer is longer than `len`.
        let answer = unsafe { <crate::Posix as towpath_hook::Handler>::recv(fd, buf, len, flags) };
        if let Some(Ok(count)) = answer {
            assert!(flags & libc::MSG_TRUNC != 0 || count as usize <= len, "{count} of {len}");
        }
        assert!(bytes[len..].iter().all(|byte| *byte == 0xa5), "bytes behind the buffer");
    };
    match which % 12 {
        0 => received(0, 100),
        1 => received(libc::MSG_PEEK, 5_000),
        2 => received(libc::MSG_WAITALL, 70_000),
        3 => received(libc::MSG_OOB, 1),
        4 => received(libc::MSG_TRUNC, 40_000),
        5 => _ = send(fd, &[1; 300], 0),
        6 => _ = send(fd, &[2; 70_000], 0),
        7 => _ = send(fd, b"!", libc::MSG_OOB),
        8 => _ = poll(&[(fd, libc::POLLIN | libc::POLLOUT | libc::POLLPRI)], 1),
        9 => _ = wait(waiting, 1),
        10 => _ = get_option::<[u8; 232]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO),
        _ => {
            let queues = [libc::FIONREAD, libc::TIOCOUTQ, 0x8905];
            let mut value: c_int = 0;
            for request in queues {
                let at = (&raw mut value).expose_provenance() as libc::c_long;
                // SAFETY: `at` is a local.
                let answer = unsafe { <crate::Posix as towpath_hook::Handler>::ioctl(fd, request, at) };
                if let Some(Ok(_)) = answer {
                    assert!((0..=65_536).contains(&value), "{value} bytes in a ring");
                }
            }
        }
    }
}

fn short_waits(fd: c_int) {
    let short = timeval { tv_sec: 0, tv_usec: 1_000 };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        set_option(fd, libc::SOL_SOCKET, name, short).expect("option");
    }
}

/// A connection that shares nothing with the attacker still carries what is sent.
fn check_bystander((ours, theirs): (c_int, c_int)) {
    assert_eq!(send(ours, b"still here", 0), Ok(10));
    assert_eq!(recv(theirs, 10, libc::MSG_WAITALL), Ok(b"still here".to_vec()));
}

#[test]
fn fuzz_garbage_in_every_word_of_a_pair_harms_nobody() {
    let _alone = alone();
    let bystander = pair();
    let mut random = Random::new(0x1234_5678);
    for round in 0..60 {
        let (ours, theirs) = joined();
        let (waiting, words) = (epoll(), words());
        short_waits(ours);
        control(waiting, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN | libc::EPOLLOUT, 7).expect("epoll_ctl");
        if round % 4 != 0 {
            nonblocking(ours);
        }
        let word = end_of(theirs).expect("direct").own().line.tx_tail.as_ptr().addr() - words.as_ptr().addr();
        // The lines of both sides, 256 bytes each.
        let lines = word / 4 / 128 * 128;
        for _ in 0..30 {
            let at = match random.next() % 8 {
                0 => random.below(words.len()),
                1 => random.below(1024),
                _ => lines + random.below(128),
            };
            match round {
                // A few connections see one value everywhere.
                0..5 => {
                    words[lines..lines + 128].iter().for_each(|word| word.store([0, 1, 8, !0, 1 << 31][round], SeqCst))
                }
                _ => words[at].store(random.value(), SeqCst),
            }
            use_victim(ours, waiting, random.next());
        }
        close(waiting).expect("close");
        close_both(ours, theirs);
    }
    check_bystander(bystander);
    close_both(bystander.0, bystander.1);
}

#[test]
fn garbage_in_a_pair_while_it_is_used_harms_nobody() {
    let _alone = alone();
    let bystander = pair();
    let mut random = Random::new(0x9e37_79b9);
    for _ in 0..20 {
        let (ours, theirs) = joined();
        let (waiting, words) = (epoll(), words());
        short_waits(ours);
        control(waiting, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN | libc::EPOLLOUT, 7).expect("epoll_ctl");
        let word = end_of(theirs).expect("direct").own().line.tx_tail.as_ptr().addr() - words.as_ptr().addr();
        let lines = word / 4 / 128 * 128;
        let (working, seed) = (AtomicBool::new(true), random.next());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed);
                while working.load(Relaxed) {
                    words[lines + random.below(128)].store(random.value(), Relaxed);
                }
            });
            for _ in 0..100 {
                use_victim(ours, waiting, random.next());
            }
            working.store(false, Relaxed);
        });
        close(waiting).expect("close");
        close_both(ours, theirs);
    }
    check_bystander(bystander);
    close_both(bystander.0, bystander.1);
}

/// Events without news, raised without end, keep nobody in `epoll_wait` beyond its time, and hide no descriptor of the
/// kernel.
#[test]
fn events_without_end_from_a_direct_peer_do_not_hold_epoll_wait() {
    let _alone = alone();
    let (ours, theirs) = joined();
    let (waiting, (reader, writer)) = (epoll(), std::io::pipe().expect("pipe"));
    control(waiting, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN, 7).expect("epoll_ctl");
    let reader_fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
    control(waiting, libc::EPOLL_CTL_ADD, reader_fd, libc::EPOLLIN, 8).expect("epoll_ctl");
    let (socket, peer) = (socket_of(theirs), end_of(theirs).expect("direct"));
    let (begun, working) = (Instant::now(), AtomicBool::new(true));
    const FOR_EVER: Duration = Duration::from_secs(30);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while working.load(Relaxed) && begun.elapsed() < FOR_EVER {
                    peer.notify(socket.session);
                }
            });
        }
        assert_eq!(wait(waiting, 50), []);
        std::io::Write::write_all(&mut &writer, b"x").expect("write");
        assert_eq!(wait(waiting, -1), [(8, libc::EPOLLIN)]);
        assert!(begun.elapsed() < FOR_EVER, "it came back only when the peer was silent");
        working.store(false, Relaxed);
    });
    close(waiting).expect("close");
    close_both(ours, theirs);
}
