//! The registration socket, with honest and with dishonest peers.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use towpath_ring::control::{
    MESSAGE_BYTES, Reply, Request, features, recv_reply, recv_request, send_reply, send_request,
};
use towpath_ring::layout::VERSION;
use towpath_ring::{Geometry, PairGeometry};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A descriptor to pass. Its other end tells when every copy is closed.
fn passed() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// True once all copies of the pipe's write end are closed.
fn all_closed(read_end: &OwnedFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(read_end, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&rustix::event::Timespec::default())).unwrap();
    poll[0].revents().contains(rustix::event::PollFlags::HUP)
}

/// Sends any bytes and descriptors.
fn send_raw(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn requests_arrive_with_their_descriptors() {
    let (app, service) = pair();
    let (read_end, write_end) = passed();
    let requests = [
        Request::Hello { version: VERSION, join: 0x0123_4567_89ab_cdef, features: u32::MAX },
        Request::Attach { slot: 7, generation: 9, end: 11 },
        Request::Reattach { slot: 7, generation: 9, end: 11 },
        Request::Reserve { slot: 8, seq: 5, listens: true },
        Request::Join { slot: 8, seq: 5, remote_addr: "fd00::1:2".parse().unwrap(), remote_port: 443 },
        Request::Context,
        Request::DropContext { context: 63 },
        Request::Pair { place: 5, pair: 6 },
        Request::Doorbell { place: 5, pair: 6, context: 7 },
        Request::Name { slot: 8, generation: 9 },
        Request::Adopt,
        Request::Stack { stack: 14 },
        Request::StackOf { namespace: 1 << 40 },
        Request::NameAt { stack: 3 },
        Request::File { replaces: 11 },
        Request::Stats,
        Request::Region,
    ];
    for request in requests {
        let fds = vec![write_end.as_fd(); request.descriptors()];
        send_request(app.as_fd(), &request, &fds).unwrap();
        let (got, got_fds) = recv_request(service.as_fd()).unwrap().unwrap();
        assert_eq!(got, request);
        assert_eq!(got_fds.len(), fds.len());
        for fd in &got_fds {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
    drop(write_end);
    assert!(all_closed(&read_end), "a received descriptor was not closed");
    drop(app);
    assert!(recv_request(service.as_fd()).unwrap().is_none());
}

#[test]
fn replies_arrive_with_their_descriptors() {
    let (app, service) = pair();
    let (_read_end, write_end) = passed();
    let geometry = Geometry { flow_groups: Geometry::MAX_FLOW_GROUPS, ..Geometry::DEFAULT };
    let replies = [
        Reply::Welcome {
            geometry,
            token: u64::MAX - 1,
            process: 3,
            offset: 1 << 40,
            features: 5,
            namespace: u64::MAX - 7,
            idle_ms: 10_000,
        },
        Reply::Make { geometry },
        Reply::Context { context: 5 },
        Reply::Pair { pair: 6, geometry: PairGeometry { slots: 64, ring_bytes: 4096 } },
        Reply::Doorbell { context: 7 },
        Reply::Adopted { token: 0x0102_0304_0506_0708, slot: 9, generation: 10 },
        Reply::AdoptedAt { stack: 3 },
        Reply::Stack { stack: 14 },
        Reply::File { file: 12 },
        Reply::Stats,
        Reply::Refused { errno: 23 },
    ];
    for reply in replies {
        let fds = vec![write_end.as_fd(); reply.descriptors()];
        send_reply(service.as_fd(), &reply, &fds).unwrap();
        let (got, got_fds) = recv_reply(app.as_fd()).unwrap();
        assert_eq!((got, got_fds.len()), (reply, fds.len()));
    }
    drop(service);
    assert_eq!(recv_reply(app.as_fd()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_wrong_number_of_descriptors_is_not_sent() {
    let (app, service) = pair();
    let error = send_request(app.as_fd(), &Request::Attach { slot: 0, generation: 1, end: 1 }, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = send_reply(service.as_fd(), &Reply::Refused { errno: 1 }, &[app.as_fd()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_dead_peer_is_an_error_and_no_signal() {
    // Rust's runtime ignores the signal; the programs that the library is loaded into need not.
    // SAFETY: restores the default action, and no other thread of this test writes to a broken pipe.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let (app, service) = pair();
    drop(service);
    assert_eq!(send_request(app.as_fd(), &Request::Context, &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn bad_packets_are_refused_and_their_descriptors_closed() {
    let attach = Request::Attach { slot: 1, generation: 1, end: 1 }.encode();
    let hello = Request::Hello { version: VERSION, join: 0, features: u32::MAX }.encode();
    let mut other_version = attach;
    other_version[0] ^= 0xff;
    let geometry = Geometry::DEFAULT;
    let welcome =
        Reply::Welcome { geometry, token: 1, process: 1, offset: 0, features: 0, namespace: 0, idle_ms: 0 }.encode();
    let long = [attach.as_slice(), &[0]].concat();
    let cases: [(&str, &[u8], usize); 9] = [
        ("cut short", &attach[..MESSAGE_BYTES - 1], 1),
        ("one byte", &[1], 1),
        ("too long", &long, 1),
        ("no descriptor", &attach, 0),
        ("two descriptors", &attach, 2),
        ("more descriptors than any message has", &attach, 60),
        ("descriptors where none belong", &hello, 1),
        ("another version", &other_version, 1),
        ("a reply instead", &welcome, 3),
    ];
    let (app, service) = pair();
    for (what, bytes, descriptors) in cases {
        let (read_end, write_end) = passed();
        send_raw(&app, bytes, &vec![write_end.as_fd(); descriptors]);
        assert_eq!(recv_request(service.as_fd()).unwrap_err().kind(), ErrorKind::InvalidData, "{what}");
        drop(write_end);
        assert!(all_closed(&read_end), "{what}: a descriptor was kept");
    }
    // The socket is still good.
    send_request(app.as_fd(), &Request::Context, &[]).unwrap();
    assert_eq!(recv_request(service.as_fd()).unwrap().unwrap().0, Request::Context);
}

#[test]
fn bad_replies_are_refused() {
    let context = Reply::Context { context: 1 }.encode();
    let request = Request::Context.encode();
    let mut other_version = context;
    other_version[0] ^= 0xff;
    let (app, service) = pair();
    for (what, bytes, descriptors) in [
        ("no descriptor", context, 0),
        ("two descriptors", context, 2),
        ("another version", other_version, 1),
        ("a request instead", request, 0),
    ] {
        send_raw(&service, &bytes, &vec![service.as_fd(); descriptors]);
        assert_eq!(recv_reply(app.as_fd()).unwrap_err().kind(), ErrorKind::InvalidData, "{what}");
    }
    let mut hello = Request::Hello { version: VERSION, join: 1, features: 2 }.encode();
    hello[0] ^= 0xff;
    assert!(matches!(Request::decode(&hello), Ok(Request::Hello { join: 1, features: 2, .. })), "it is answered");
}

#[test]
fn a_tcp_socket_of_a_wrong_message_does_not_linger() {
    use rustix::net::{socket, sockopt};
    let attach = Request::Attach { slot: 1, generation: 1, end: 1 }.encode();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for (bytes, copies) in [(&attach[..MESSAGE_BYTES - 1], 1), (&attach, 2), (&[], 1), (&[0; MESSAGE_BYTES], 1)] {
            let (app, service) = pair();
            let tcp = socket(family, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_linger(&tcp, Some(std::time::Duration::from_secs(60))).unwrap();
            send_raw(&app, bytes, &vec![tcp.as_fd(); copies]);
            assert!(recv_request(service.as_fd()).is_err() || bytes.is_empty());
            assert_eq!(sockopt::socket_linger(&tcp).unwrap(), None, "{} bytes", bytes.len());
        }
    }
}

#[test]
fn a_library_fits_a_service_of_its_version_whose_features_it_knows() {
    assert_eq!(features::ALL, 15);
    for (known, needed) in [(0, 0), (3, 0), (3, 1), (3, 3), (u32::MAX, 2)] {
        assert_eq!(features::mismatch((VERSION, known), (VERSION, needed)), None);
    }
    let why = |library, service| features::mismatch(library, service).unwrap();
    assert_eq!(why((VERSION, 1), (VERSION, 3)), "the library does not know features 0x2 of the service");
    let versions = "the library speaks version 7 of the contract and the service version 8";
    assert_eq!(why((7, 3), (8, 3)), versions);
    assert_eq!(why((7, 0), (8, 3)), versions, "of another version nothing else is said");
}

#[test]
fn other_versions_are_told_apart() {
    let (app, service) = pair();
    let stranger = Request::Hello { version: VERSION + 1, join: 0, features: u32::MAX };
    send_request(app.as_fd(), &stranger, &[]).unwrap();
    assert_eq!(recv_request(service.as_fd()).unwrap().unwrap().0, stranger);
    let mut refusal = Reply::Refused { errno: 71 }.encode();
    refusal[0] ^= 0xff;
    assert_eq!(Reply::decode(&refusal).unwrap(), Reply::Refused { errno: 71 });
}

proptest! {
    /// Any bytes are read or refused. A message that is read encodes to the same fields again.
    #[test]
    fn any_packet_is_read_or_refused(bytes in prop::array::uniform32(any::<u16>()), kind in 0u32..110, known: bool) {
        let mut packet = [0; MESSAGE_BYTES];
        for (two, value) in packet.chunks_mut(2).zip(bytes) {
            two.copy_from_slice(&value.to_ne_bytes());
        }
        if known {
            packet[..4].copy_from_slice(&VERSION.to_ne_bytes());
            packet[4..8].copy_from_slice(&kind.to_ne_bytes());
        }
        if let Ok(request) = Request::decode(&packet) {
            prop_assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
        if let Ok(reply) = Reply::decode(&packet) {
            prop_assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
            reply.descriptors();
        }
    }
}
