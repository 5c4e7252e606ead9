//! Two network namespaces joined by a veth pair, deleted on drop; and a raw sender.

pub mod rules;

use std::fs::File;
use std::io::{self, Error};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_ports::Port;
use towpath_wire::{Header, Options, Segment, checksum_ok, flags, parse};

/// The interface on the kernel's side.
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The interface with the steering program. It has two addresses.
pub const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
pub const OURS_TOO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));
pub const PEER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
pub const OURS6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
pub const OURS6_TOO: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3));
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
pub const PEER_IF: &str = "wrva";
pub const OUR_IF: &str = "wrvb";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Network {
    pub peer: String,
    pub ours: String,
    _turn: MutexGuard<'static, ()>,
}

impl Network {
    pub fn new() -> Self {
        // SAFETY: the call takes no arguments and cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        assert!(
            root,
            "this test makes network namespaces and needs root: sudo -E env PATH=\"$PATH\" cargo test -p towpath-ports"
        );
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("wr-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let network = Self { peer: format!("{name}a"), ours: format!("{name}b"), _turn: turn };
        let (a, b) = (&network.peer, &network.ours);
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!(
            "-n {a} link add {PEER_IF} address 02:00:00:00:00:0a type veth peer name {OUR_IF} address 02:00:00:00:00:0b netns {b}"
        ));
        for (namespace, interface, addresses) in
            [(a, PEER_IF, &[PEER, PEER6][..]), (b, OUR_IF, &[OURS, OURS_TOO, OURS6, OURS6_TOO])]
        {
            for address in addresses {
                let (length, nodad) = if address.is_ipv4() { ("/24", "") } else { ("/64", " nodad") };
                ip(&format!("-n {namespace} address add {address}{length} dev {interface}{nodad}"));
            }
            ip(&format!("-n {namespace} link set lo up"));
            ip(&format!("-n {namespace} link set {interface} up"));
        }
        // The operational state follows a moment later (the kernel's linkwatch).
        for (namespace, interface) in [(a, PEER_IF), (b, OUR_IF)] {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !ip(&format!("-n {namespace} link show {interface}")).contains("state UP") {
                assert!(Instant::now() < deadline, "{interface} does not come up");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        network
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.peer, &self.ours] {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("the command `ip` runs (apt-get install iproute2)");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into()
}

/// Runs `f` in a new thread that has entered the namespace.
pub fn within<T: Send>(namespace: &str, f: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{namespace}");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(&path);
            f()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Like [`within`], but does not wait for `f`.
pub fn start_within<T: Send + 'static>(
    namespace: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let path = format!("/run/netns/{namespace}");
    std::thread::spawn(move || {
        enter(&path);
        f()
    })
}

pub fn enter(path: &str) {
    let file = File::open(path).expect("the namespace exists");
    // SAFETY: the descriptor is valid, and only this thread changes its namespace.
    let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "setns: {}", Error::last_os_error());
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// A raw Ethernet socket on an interface of the thread's namespace, non-blocking; receives `ethertype` only (0 =
/// nothing).
pub struct Raw(OwnedFd);

impl Raw {
    pub fn open(interface: &str, ethertype: u16) -> Self {
        let protocol = ethertype.to_be();
        // SAFETY: the arguments are integers, and nothing else owns the new descriptor.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
            OwnedFd::from_raw_fd(check(fd.into()).expect("AF_PACKET socket") as i32)
        };
        let size: libc::c_int = 64 << 20;
        let name = std::ffi::CString::new(interface).expect("a name");
        // SAFETY: the structures are complete, and the kernel only reads them.
        unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let length = size_of::<libc::sockaddr_ll>() as u32;
            let fd = socket.as_raw_fd();
            check(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const size).cast(), 4).into())
                .expect("receive buffer");
            check(libc::bind(fd, (&raw const address).cast(), length).into()).expect("bind");
        }
        Self(socket)
    }

    pub fn send(&self, frame: &[u8]) {
        loop {
            // SAFETY: `frame` is valid for reads of its length.
            let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            match check(sent as i64) {
                // The other end has not run for as long as its queue takes to fill, or this socket's.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                    std::thread::yield_now();
                }
                sent => return assert_eq!(sent.expect("send"), frame.len() as i64),
            }
        }
    }

    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        // SAFETY: `bytes` is valid for writes of its length.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        bytes.truncate(check(got as i64).ok()? as usize);
        Some(bytes)
    }
}

/// Sends an ICMP echo from the thread's namespace. Has an answer come within half a minute?
pub fn ping(to: IpAddr) -> bool {
    // SAFETY: the arguments are integers, and nothing else owns the new descriptor.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_ICMP);
        std::net::UdpSocket::from_raw_fd(check(fd.into()).expect("ICMP socket") as i32)
    };
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    let mut request = [8, 0, 0, 0, 0x77, 0x72, 0, 1];
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::add(0, &request));
    request[2..4].copy_from_slice(&sum);
    socket.send_to(&request, SocketAddr::new(to, 0)).expect("send");
    let mut answer = [0; 100];
    while let Ok((len, from)) = socket.recv_from(&mut answer) {
        // The answer includes the IPv4 header.
        if from.ip() == to && answer[..len].get(20) == Some(&0) {
            return true;
        }
    }
    false
}

/// Connects from this port of the thread's namespace. The port is free again at once.
pub fn connect_from(port: u16, to: SocketAddr, time: Duration) -> io::Result<TcpStream> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = rustix::net::socket(
        if to.is_ipv4() { rustix::net::AddressFamily::INET } else { rustix::net::AddressFamily::INET6 },
        rustix::net::SocketType::STREAM,
        None,
    )?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(any, port))?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Err(rustix::io::Errno::INPROGRESS) => {}
        result => result?,
    }
    let mut ready = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::OUT)];
    let time = rustix::time::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    if rustix::event::poll(&mut ready, Some(&time))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    rustix::net::sockopt::socket_error(&socket)??;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// Has this interface of the thread's namespace TCP segmentation offload switched on?
pub fn tso(interface: &str) -> bool {
    const ETHTOOL_GTSO: u32 = 0x1e;
    let mut value = [ETHTOOL_GTSO, 0];
    let socket = std::net::UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)).expect("a socket");
    // SAFETY: a zeroed ifreq is valid; the kernel writes 8 bytes to `value` (struct ethtool_value).
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(interface.as_bytes()) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request).into()).expect("ETHTOOL_GTSO");
    }
    value[1] != 0
}

/// Waits with poll, as a worker does.
pub fn wait(port: &mut dyn Port, time: Duration) -> bool {
    if port.pending() {
        return true;
    }
    let fd = port.wait_fd().unwrap().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one complete pollfd that outlives the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, time.as_millis() as i32) };
    ready > 0 && port.pending()
}

/// The next segment, with its payload, after checking its checksum.
pub fn receive(port: &mut dyn Port, time: Duration) -> Option<(Segment, Vec<u8>)> {
    wait(port, time).then(|| {
        let mut frames = Vec::new();
        port.receive(&mut frames, 1);
        let bytes = port.bytes(&frames[0]).to_vec();
        port.release(&frames);
        let segment = parse(&bytes).unwrap();
        assert!(checksum_ok(&bytes, &segment, frames[0].checksum));
        (segment, bytes[segment.payload_offset as usize..][..segment.payload_len as usize].to_vec())
    })
}

/// The header of a segment from the peer, which acknowledges nothing new.
pub fn peer_header(from: u16, to: SocketAddr, seq: u32) -> Header {
    Header {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        vlan: None,
        source: PEER,
        destination: to.ip(),
        source_port: from,
        destination_port: to.port(),
        seq,
        ack: 1,
        flags: flags::ACK,
        window: 60_000,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options::default(),
    }
}
