//! Connections leave the kernel and come back, with bytes in flight in both directions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::sockopt;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_kernel::record::ConnectionRecord;
use towpath_kernel::repair::{self, CannotMove};

/// One test at a time. A child process that is being started holds copies of all descriptors, and a connection leaves
/// only with the last one.
static ALONE: Mutex<()> = Mutex::new(());

/// Enters a network namespace of this thread's own, where no other packets are.
fn own_network() -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: only the network namespace of this thread changes, and no Rust code depends on it.
    let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    made.expect("needs root: run the tests with `sudo -E`");
    run("ip", "iproute2", "link set lo up");
    run("nft", "nftables", "add table inet repair; add chain inet repair in { type filter hook input priority 0; }");
    alone
}

fn run(program: &str, package: &str, arguments: &str) {
    let run = Command::new(program).args(arguments.split(' ')).status();
    assert!(
        run.unwrap_or_else(|error| panic!("{program}: {error}: apt-get install {package}")).success(),
        "{program} {arguments}"
    );
}

fn connected(at: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for stream in [&ours, &theirs] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    (ours, theirs)
}

/// Bytes that depend on their position.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i.wrapping_mul(31) ^ (i >> 8)) as u8).collect()
}

/// Writes until there is no room. Returns how many bytes.
fn stuff(stream: &mut TcpStream, from: usize) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut count = 0;
    loop {
        match stream.write(&pattern(from + count, 64 << 10)) {
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    count
}

fn moved(stream: TcpStream) -> (TcpStream, ConnectionRecord) {
    // A packet that arrives while no kernel has the connection would be answered by a reset, a window probe of the
    // peer for example.
    let port = stream.local_addr().unwrap().port();
    run("nft", "nftables", &format!("add rule inet repair in tcp dport {port} drop"));
    let record = repair::take(stream.as_fd()).expect("taken out");
    drop(stream);
    let bytes = record.encode();
    let again = ConnectionRecord::decode(&bytes).expect("a record");
    let stream = TcpStream::from(repair::put(&again).expect("put in"));
    run("nft", "nftables", "flush chain inet repair in");
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (stream, record)
}

fn expect(stream: &mut TcpStream, from: usize, len: usize) {
    let mut got = vec![0; len];
    stream.read_exact(&mut got).expect("all of it");
    assert!(got == pattern(from, len), "bytes are as they were sent");
}

/// The largest segment that the kernel sends now.
fn send_mss(stream: &TcpStream) -> u32 {
    let (mut mss, mut len) = (0_u32, size_of::<u32>() as libc::socklen_t);
    let value = (&raw mut mss).cast();
    // SAFETY: `value` and `len` are places for the option's value and its length.
    let got = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, value, &mut len) };
    assert_eq!(got, 0);
    mss
}

fn to_and_fro(at: &str) {
    let _alone = own_network();
    let (mut ours, mut theirs) = connected(at);
    let mss = send_mss(&ours);
    assert!(mss > 10_000, "loopback has a large MTU: {mss}");
    ours.set_nodelay(true).unwrap();
    // Small, so that little fits.
    sockopt::set_socket_send_buffer_size(&ours, 128 << 10).unwrap();
    sockopt::set_socket_recv_buffer_size(&theirs, 64 << 10).unwrap();
    let (mut there, mut here) = (0, 0);
    for round in 0..8 {
        let sent = stuff(&mut ours, there);
        let come = 1000 * (round + 1);
        theirs.write_all(&pattern(here, come)).unwrap();
        let before = ours.local_addr().unwrap();
        let record;
        (ours, record) = moved(ours);
        assert_eq!(record.receive.bytes.len(), come, "unread bytes move along");
        assert!(record.send.bytes.len() > 50_000, "and unacknowledged ones");
        assert!(record.settings.buffers.is_some());
        assert!(record.settings.no_delay && ours.nodelay().unwrap());
        assert_eq!(ours.local_addr().unwrap(), before);
        let now = send_mss(&ours);
        assert!(now >= mss.min(32_000), "segments stay as large as they were: {now}");
        expect(&mut ours, here, come);
        expect(&mut theirs, there, sent);
        (there, here) = (there + sent, here + come);
    }
    ours.write_all(b"!").unwrap();
    drop(ours);
    let mut last = Vec::new();
    theirs.read_to_end(&mut last).expect("an end, no reset");
    assert_eq!(last, b"!");
}

#[test]
fn a_connection_goes_to_and_fro_over_ipv4() {
    to_and_fro("127.0.0.1:0");
}

#[test]
fn a_connection_goes_to_and_fro_over_ipv6() {
    to_and_fro("[::1]:0");
}

#[test]
fn the_other_end_may_move_too() {
    let _alone = own_network();
    let (ours, theirs) = connected("127.0.0.1:0");
    let (mut theirs, _) = moved(theirs);
    let (mut ours, _) = moved(ours);
    for round in 0..4 {
        ours.write_all(&pattern(round, 5000)).unwrap();
        (theirs, _) = moved(theirs);
        expect(&mut theirs, round, 5000);
        (ours, _) = moved(ours);
    }
}

#[test]
fn what_cannot_move_goes_on() {
    let _alone = own_network();
    let (mut ours, mut theirs) = connected("127.0.0.1:0");
    rustix::net::send(&theirs, b"u", rustix::net::SendFlags::OOB).unwrap();
    while repair::take(ours.as_fd()) != Err(CannotMove::Urgent) {
        repair::resume(ours.as_fd());
        std::thread::sleep(Duration::from_millis(1));
    }
    theirs.write_all(b"after").unwrap();
    let mut got = [0; 5];
    ours.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"after");
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(ours.read(&mut got).unwrap(), 0);
    let state = repair::take(ours.as_fd()).expect_err("CLOSE-WAIT stays");
    assert_eq!(state, CannotMove::State(8));
    ours.write_all(b"bye").unwrap();
    theirs.read_exact(&mut got[..3]).unwrap();
    assert_eq!(&got[..3], b"bye");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(repair::take(listener.as_fd()), Err(CannotMove::State(10)));
}

#[test]
fn a_record_of_another_hosts_address_is_refused() {
    let _alone = own_network();
    let (ours, _theirs) = connected("127.0.0.1:0");
    let mut record = repair::take(ours.as_fd()).unwrap();
    record.local = SocketAddr::from(([192, 0, 2, 1], 4000));
    let error = repair::put(&record).expect_err("not an address of this host");
    assert!(matches!(error, CannotMove::Call("bind", _)), "{error}");
    assert!(repair::put(&ConnectionRecord { mss: 0, ..record }).is_err());
}
