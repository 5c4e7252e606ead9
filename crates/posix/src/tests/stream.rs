//! Connecting, sending, receiving, ending.

use super::os::*;
use crate::fd::table;
use crate::handler::Posix;
use crate::io::receive;
use libc::{iovec, msghdr, timeval};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use towpath_hook::Handler;
use towpath_ring::lines::state;

#[test]
fn keys_for_what_is_received_are_refused_as_by_a_kernel_without_them() {
    const TLS: (i32, i32) = (282, 2);
    let (ours, _theirs) = pair();
    // OpenSSL accepts that answer and decrypts itself.
    assert_eq!(set_option(ours, TLS.0, TLS.1, [0u8; 40]), Err(libc::ENOPROTOOPT));
    assert_eq!(send(ours, b"plain", 0), Ok(5), "nothing has changed");
}

#[test]
fn bytes_arrive_in_order_through_small_rings() {
    let (ours, theirs) = pair();
    let sent: Vec<u8> = (0..300_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let copy = sent.clone();
    let sender = std::thread::spawn(move || {
        assert_eq!(send(ours, &copy, 0), Ok(copy.len()), "a blocking send takes all");
        shutdown(ours, libc::SHUT_WR).expect("shutdown");
        assert_eq!(send(ours, b"x", 0), Err(libc::EPIPE));
        assert_eq!(recv(ours, 10, 0), Ok(Vec::new()));
        close(ours)
    });
    let mut got = Vec::new();
    loop {
        let bytes = recv(theirs, 5_000, 0).expect("recv");
        if bytes.is_empty() {
            break;
        }
        got.extend(bytes);
    }
    assert!(got == sent);
    close(theirs).expect("close");
    assert_eq!(sender.join().expect("sender"), Ok(0));
}

/// A call looks for the end, then for data. Data and end both arrive before it decides.
#[test]
fn an_end_that_comes_after_the_look_at_the_data_is_not_the_end() {
    let (ours, theirs) = pair();
    let socket = table::socket(theirs).expect("accelerated");
    let before = socket.view().end();
    send(ours, b"last", 0).expect("send");
    shutdown(ours, libc::SHUT_WR).expect("shutdown");
    eventually(|| socket.view().end().fin);
    assert_eq!(receive::without_data(&socket, before, 0, false), None, "looks again");
    assert_eq!(receive::without_data(&socket, before, 0, true), Some(Err(libc::EAGAIN)));
    assert_eq!(recv(theirs, 10, libc::MSG_WAITALL), Ok(b"last".to_vec()));
    assert_eq!(receive::without_data(&socket, socket.view().end(), 0, false), Some(Ok(0)));
    close_both(ours, theirs);
    // The same for a reset.
    let (ours, theirs) = pair();
    let socket = table::socket(theirs).expect("accelerated");
    let before = socket.view().end();
    set_option(ours, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 }).expect("linger");
    close(ours).expect("close");
    eventually(|| socket.view().end().failed);
    assert_eq!(receive::without_data(&socket, before, 0, false), None);
    assert_eq!(receive::without_data(&socket, socket.view().end(), 0, false), Some(Err(libc::ECONNRESET)));
    close(theirs).expect("close");
}

#[test]
fn flags_peek_wait_and_truncate() {
    let (ours, theirs) = pair();
    send(ours, b"abcdef", 0).expect("send");
    eventually(|| recv(theirs, 6, libc::MSG_PEEK | libc::MSG_DONTWAIT) == Ok(b"abcdef".to_vec()));
    assert_eq!(recv(theirs, 2, 0), Ok(b"ab".to_vec()), "peeking took nothing");
    // MSG_TRUNC discards instead of copying.
    let skipped = recv(theirs, 2, libc::MSG_TRUNC).expect("recv");
    assert_eq!(skipped, [0, 0]);
    let rest = later(30, move || send(ours, b"gh", 0));
    assert_eq!(recv(theirs, 4, libc::MSG_WAITALL), Ok(b"efgh".to_vec()));
    rest.join().expect("thread").expect("send");
    assert_eq!(recv(theirs, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    assert_eq!(recv(theirs, 0, libc::MSG_DONTWAIT), Err(libc::EAGAIN), "a read of length 0 waits too");
    close_both(ours, theirs);
}

#[test]
fn vectors_of_all_kinds() {
    let (ours, theirs) = pair();
    let (mut a, mut b) = (*b"one", *b"two");
    let iov = [(a.as_mut_ptr(), 3), (core::ptr::null_mut(), 0), (b.as_mut_ptr(), 3)]
        .map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
    // SAFETY: the vectors are arrays of this function.
    unsafe {
        assert_eq!(Posix::writev(ours, iov.as_ptr(), 3), Some(Ok(6)));
        assert_eq!(Posix::writev(ours, iov.as_ptr(), -1), Some(Err(libc::EINVAL)));
        assert_eq!(Posix::writev(ours, iov.as_ptr(), 1025), Some(Err(libc::EINVAL)));
        assert_eq!(Posix::writev(ours, iov.as_ptr(), 0), Some(Ok(0)));
        (a, b) = ([0; 3], [0; 3]);
        let mut msg: msghdr = core::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen, msg.msg_namelen, msg.msg_controllen) = (iov.as_ptr().cast_mut(), 3, 16, 99);
        assert_eq!(Posix::recvmsg(theirs, &raw mut msg, libc::MSG_WAITALL), Some(Ok(6)));
        assert_eq!((msg.msg_namelen, msg.msg_controllen, msg.msg_flags), (0, 0, 0));
    }
    assert_eq!((&a, &b), (b"one", b"two"));
    close_both(ours, theirs);
}

#[test]
fn a_full_ring_stops_a_nonblocking_sender_and_room_lets_it_go_on() {
    let (ours, theirs) = pair();
    nonblocking(ours);
    let mut sent = 0;
    eventually(|| match send(ours, &[7; 4_000], 0) {
        Ok(n) => {
            sent += n;
            false
        }
        Err(errno) => {
            assert_eq!(errno, libc::EAGAIN);
            // Both rings are full, not only the first.
            sent == (GEOMETRY.tx_bytes + GEOMETRY.rx_bytes) as usize
        }
    });
    assert_eq!(poll(&[(ours, libc::POLLOUT)], 20), Ok(vec![0]));
    let reader = later(20, move || {
        let mut got = 0;
        while got < sent {
            got += recv(theirs, 3_000, 0).expect("recv").len();
        }
        close(theirs)
    });
    assert_eq!(poll(&[(ours, libc::POLLOUT)], 60_000), Ok(vec![libc::POLLOUT]));
    reader.join().expect("reader").expect("close");
    close(ours).expect("close");
}

#[test]
fn timeouts_end_blocking_calls() {
    let (ours, theirs) = pair();
    let limit = timeval { tv_sec: 0, tv_usec: 60_000 };
    set_option(ours, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).expect("option");
    set_option(ours, libc::SOL_SOCKET, libc::SO_SNDTIMEO, limit).expect("option");
    let start = Instant::now();
    assert_eq!(recv(ours, 1, 0), Err(libc::EAGAIN));
    assert!(start.elapsed() >= Duration::from_millis(59) && start.elapsed() < Duration::from_secs(60));
    let mut sent = send(ours, &vec![1; 100_000], 0).expect("a part");
    // The stack moves bytes to the other end in its own time. Then both rings are full.
    while sent < (GEOMETRY.tx_bytes + GEOMETRY.rx_bytes) as usize {
        sent += send(ours, &vec![1; 100_000], 0).unwrap_or(0);
    }
    assert_eq!(send(ours, b"x", 0), Err(libc::EAGAIN));
    close_both(ours, theirs);
}

/// How long the other end trickles bytes if the call does not end.
const FOR_EVER: Duration = Duration::from_secs(30);

/// Runs `call` while another thread does `trickle` every few milliseconds. Returns the answer of a call that has ended
/// before that thread gave up.
fn meanwhile<R>(trickle: impl Fn() + Sync, call: impl FnOnce() -> R) -> R {
    let (begun, working) = (Instant::now(), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while working.load(Relaxed) && begun.elapsed() < FOR_EVER {
                trickle();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let answer = call();
        working.store(false, Relaxed);
        assert!(begun.elapsed() < FOR_EVER, "each byte has begun the time anew");
        answer
    })
}

/// socket(7): the limit is one for the whole call, however often it is woken by a few bytes.
#[test]
fn a_time_limit_is_one_over_the_call_while_bytes_trickle() {
    let (ours, theirs) = pair();
    let limit = timeval { tv_sec: 0, tv_usec: 200_000 };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        set_option(ours, libc::SOL_SOCKET, name, limit).expect("option");
    }
    const ALL: usize = 50_000_000;
    let got = meanwhile(|| _ = send(theirs, b"x", 0), || recv(ours, ALL, libc::MSG_WAITALL));
    assert!(got.is_ok_and(|bytes| bytes.len() < ALL));
    nonblocking(theirs);
    let bytes = vec![1; ALL];
    let sent = meanwhile(|| _ = recv(theirs, 20_000, 0), || send(ours, &bytes, 0));
    assert!(sent.is_ok_and(|count| count < ALL));
    close_both(ours, theirs);
}

/// RFC 9293 MUST-12.
#[test]
fn an_abort_is_reported_once_and_then_it_is_over() {
    let (ours, theirs) = pair();
    set_option(ours, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 }).expect("option");
    close(ours).expect("close");
    eventually(|| table::socket(theirs).expect("ours").state() == state::CLOSED);
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;
    assert_eq!(poll(&[(theirs, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP)], 0), Ok(vec![all]));
    assert_eq!(recv(theirs, 1, 0), Err(libc::ECONNRESET));
    assert_eq!(recv(theirs, 1, 0), Ok(Vec::new()));
    assert_eq!(send(theirs, b"x", 0), Err(libc::EPIPE));
    assert_eq!(option(theirs, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    close(theirs).expect("close");
}

#[test]
fn connecting_to_nobody() {
    start();
    // The stack itself refuses port 1.
    let fd = socket(0);
    assert_eq!(connect(fd, 1), Err(libc::ECONNREFUSED));
    assert_eq!(connect(fd, 1), Err(libc::ECONNREFUSED), "a socket may try again");
    close(fd).expect("close");
    let fd = socket(libc::SOCK_NONBLOCK);
    assert_eq!(connect(fd, 1), Err(libc::EINPROGRESS));
    let found = poll(&[(fd, libc::POLLOUT)], 60_000).expect("poll")[0];
    assert_eq!(found & (libc::POLLOUT | libc::POLLERR), libc::POLLOUT | libc::POLLERR);
    assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
    assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    close(fd).expect("close");
    // A connect that the stack does not carry goes to the kernel, which refuses it too.
    let (fd, (_client, port)) = (socket(0), unused_port());
    assert_eq!(connect(fd, port), Err(libc::ECONNREFUSED));
    assert!(table::socket(fd).is_none());
    close(fd).expect("close");
}

#[test]
fn kernel_servers_stay_reachable() {
    start();
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = server.local_addr().expect("address").port();
    let fd = socket(0);
    connect(fd, port).expect("connect");
    assert!(table::socket(fd).is_none());
    let (mut peer, _) = server.accept().expect("accept");
    peer.write_all(b"hello").expect("write");
    assert_eq!(recv(fd, 5, libc::MSG_WAITALL), Ok(b"hello".to_vec()));
    send(fd, b"bye", 0).expect("send");
    close(fd).expect("close");
    let mut all = String::new();
    peer.read_to_string(&mut all).expect("read");
    assert_eq!(all, "bye");
}

#[test]
fn a_nonblocking_connect_says_so_then_zero_then_eisconn() {
    let (listening, port) = listener(0);
    let fd = socket(libc::SOCK_NONBLOCK);
    assert_eq!(connect(fd, port), Err(libc::EINPROGRESS));
    assert_eq!(poll(&[(fd, libc::POLLOUT)], 60_000), Ok(vec![libc::POLLOUT]));
    assert_eq!(connect(fd, port), Ok(0));
    assert_eq!(connect(fd, port), Err(libc::EISCONN));
    assert_eq!(recv(fd, 1, 0), Err(libc::EAGAIN), "O_NONBLOCK was carried over");
    close_both(fd, listening);
}

#[test]
fn what_a_policy_refuses_has_its_error() {
    let fd = unconnected();
    assert_eq!(connect(fd, 2), Err(libc::EACCES));
    let backlog = crate::fake::FORBIDDEN as core::ffi::c_int;
    // SAFETY: integers only.
    assert_eq!(unsafe { Posix::listen(fd, backlog) }, Some(Err(libc::EACCES)));
    listen(fd).expect("a listener that the policy allows is still possible");
    close(fd).expect("close");
}

#[test]
fn a_port_that_bind_chose_gives_way_to_one_that_the_stack_can_use() {
    let chosen = unconnected();
    assert_eq!(connect(chosen, crate::fake::IN_TIME_WAIT), Err(libc::ECONNREFUSED), "from another port");
    let fd = socket(0);
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let bound = (31_313..31_413).map(address).find_map(|address| {
        // SAFETY: `address` is a local of `len` bytes.
        unsafe { Posix::bind(fd, (&raw const address).cast(), len) }.filter(Result::is_ok)
    });
    assert_eq!(bound, Some(Ok(0)), "another program may have some of these ports");
    assert_eq!(connect(fd, crate::fake::IN_TIME_WAIT), Err(libc::EADDRNOTAVAIL), "the program named the port");
    close(chosen).expect("close");
    close(fd).expect("close");
}

#[test]
fn the_stack_learns_of_a_second_listen() {
    let (listening, port) = listener(0);
    listen(listening).expect("as on Linux");
    let backlog = crate::fake::FORBIDDEN as core::ffi::c_int;
    // SAFETY: integers only.
    assert_eq!(unsafe { Posix::listen(listening, backlog) }, Some(Err(libc::EACCES)), "the stack's answer");
    let fd = socket(0);
    assert_eq!(connect(fd, port), Ok(0), "it listens as before");
    // SAFETY: integers only.
    assert_eq!(unsafe { Posix::listen(fd, 1) }, Some(Err(libc::EINVAL)));
    close_both(fd, listening);
}

#[test]
fn options_are_carried_over_kept_and_refused() {
    let (listening, port) = listener(0);
    set_option(listening, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("option");
    let fd = socket(0);
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1).expect("option");
    connect(fd, port).expect("connect");
    assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE), Ok(1));
    assert_eq!(option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(0));
    let theirs = accept(listening, 0).expect("accept");
    assert_eq!(option(theirs, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1), "inherited from the listener");
    assert_eq!(option(listening, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(1));
    assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
    assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET));
    assert_eq!(option(fd, libc::SOL_SOCKET, 9_999), Err(libc::ENOPROTOOPT));
    assert_eq!(set_option(fd, libc::SOL_SOCKET, 9_999, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1u8), Err(libc::EINVAL));
    for fd in [fd, theirs, listening] {
        close(fd).expect("close");
    }
}

#[test]
fn a_copy_keeps_the_connection_open() {
    let (ours, theirs) = pair();
    // SAFETY: integers only.
    let copy = unsafe { Posix::dup(ours) }.expect("ours").expect("dup");
    close(ours).expect("close");
    send(copy, b"still here", 0).expect("send");
    assert_eq!(recv(theirs, 10, libc::MSG_WAITALL), Ok(b"still here".to_vec()));
    assert_eq!(recv(theirs, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    close(copy).expect("close");
    // The stack sees the pair hang up.
    assert_eq!(recv(theirs, 1, 0), Ok(Vec::new()));
    close(theirs).expect("close");
}

#[test]
fn the_programs_close_does_not_reach_our_descriptors() {
    start();
    let (ours, theirs) = pair();
    let internal: Vec<_> = crate::fd::table::within(900, 2_000)
        .filter(|(_, kind)| *kind == crate::fd::table::Descriptor::Internal)
        .map(|(fd, _)| fd)
        .collect();
    assert!(internal.len() >= 3, "control, doorbells: {internal:?}");
    for fd in &internal {
        assert_eq!(close(*fd), Err(libc::EBADF));
    }
    send(ours, b"x", 0).expect("send");
    assert_eq!(recv(theirs, 1, 0), Ok(b"x".to_vec()));
    close_both(ours, theirs);
}

#[test]
fn a_file_is_sent_from_where_it_is_told() {
    let (ours, theirs) = pair();
    let path = std::env::temp_dir().join(format!("towpath-sockets-file-{}", std::process::id()));
    let content: Vec<u8> = (0..50_000u32).map(|i| (i / 3) as u8).collect();
    std::fs::write(&path, &content).expect("write");
    let file = std::fs::File::open(&path).expect("open");
    std::fs::remove_file(&path).expect("remove");
    let reader = std::thread::spawn(move || {
        let got = recv(theirs, 49_900 + 50_000, libc::MSG_WAITALL);
        close(theirs).expect("close");
        got
    });
    use std::os::fd::AsRawFd;
    let mut offset = 100;
    // SAFETY: `offset` is a local or null.
    unsafe {
        let sent = Posix::sendfile(ours, file.as_raw_fd(), &raw mut offset, 1 << 20);
        assert_eq!((sent, offset), (Some(Ok(49_900)), 50_000));
        let sent = Posix::sendfile(ours, file.as_raw_fd(), &raw mut offset, 10);
        assert_eq!((sent, offset), (Some(Ok(0)), 50_000), "end of file");
        let sent = Posix::sendfile(ours, file.as_raw_fd(), core::ptr::null_mut(), 50_000);
        assert_eq!(sent, Some(Ok(50_000)), "from the file's own position");
    }
    let got = reader.join().expect("reader").expect("recv");
    assert!(got[..49_900] == content[100..] && got[49_900..] == content[..]);
    close(ours).expect("close");
}

#[test]
fn slots_are_used_again() {
    let (listening, port) = listener(0);
    // More connections than either side has slots.
    for i in 0..300u32 {
        let ours = socket(0);
        connect(ours, port).expect("connect");
        let theirs = accept(listening, 0).expect("accept");
        send(ours, &i.to_ne_bytes(), 0).expect("send");
        assert_eq!(recv(theirs, 4, libc::MSG_WAITALL), Ok(i.to_ne_bytes().to_vec()));
        close(ours).expect("close");
        assert_eq!(recv(theirs, 4, 0), Ok(Vec::new()));
        close(theirs).expect("close");
    }
    close(listening).expect("close");
}

#[test]
fn shutdown_for_reading_wakes_a_reader_of_the_same_program() {
    // The liveness check comes after a second. A busy machine may be as slow once, but not 20 times.
    let soon = (0..20).any(|_| {
        let (ours, theirs) = pair();
        let reader = std::thread::spawn(move || recv(ours, 1, 0));
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        shutdown(ours, libc::SHUT_RD).expect("shutdown");
        assert_eq!(reader.join().expect("reader"), Ok(Vec::new()));
        let soon = start.elapsed() < Duration::from_millis(500);
        close_both(ours, theirs);
        soon
    });
    assert!(soon, "the liveness check wakes it");
}

/// `IP_RECVERR`: the error is reported once, by the first call that can, and the connection goes on.
#[test]
fn an_error_that_ends_nothing_is_reported_once() {
    let (ours, theirs) = pair();
    let word = &table::socket(ours).expect("a slot").stack().soft_error;
    let poll_error = || poll(&[(ours, 0)], 0).map_or(0, |events| events[0] & libc::POLLERR);
    assert_eq!(poll_error(), 0);
    let (read, asked) = (1 << 16 | 110, 2 << 16 | 110);
    word.store(read, std::sync::atomic::Ordering::Release);
    assert_eq!(poll_error(), libc::POLLERR);
    assert_eq!(recv(ours, 10, 0).err(), Some(libc::ETIMEDOUT));
    assert_eq!(recv(ours, 10, libc::MSG_DONTWAIT).err(), Some(libc::EAGAIN));
    assert_eq!(poll_error(), 0);
    word.store(asked, std::sync::atomic::Ordering::Release);
    assert_eq!(
        option(ours, libc::SOL_SOCKET, libc::SO_ERROR),
        Ok(libc::ETIMEDOUT),
        "the same error is reported again if it comes again"
    );
    assert_eq!(option(ours, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    send(theirs, b"on", 0).expect("send");
    assert_eq!(recv(ours, 2, 0).as_deref(), Ok(&b"on"[..]));
    close_both(ours, theirs);
}

#[test]
fn a_socket_ends_with_its_process_only_until_its_pair_is_handed_over() {
    // The fake stack accepts no command for a slot without a holder.
    let (client, server) = pair();
    let socket = table::socket(client).expect("a socket of ours");
    assert_eq!(socket.session.region.command(socket.slot).holder.load(core::sync::atomic::Ordering::SeqCst), 0);
    close_both(client, server);
}

/// As by a signal handler that has interrupted its own thread in the middle of a push.
#[test]
fn a_push_within_a_push_is_seen_at_once() {
    let (ours, theirs) = pair();
    let queues = &table::socket(ours).expect("a socket of ours").session.header().queues;
    let pushing: Vec<_> = queues.iter().map(|queue| queue.lock.lock().expect("not ours")).collect();
    close(theirs).expect("close");
    assert_eq!(recv(ours, 1, 0).as_deref(), Ok(&b""[..]), "the stack has closed it");
    assert!(queues.iter().any(|queue| queue.nested.load(Relaxed) != 0), "the interrupted push is told");
    drop(pushing);
    close(ours).expect("close");
}
