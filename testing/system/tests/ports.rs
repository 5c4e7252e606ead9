//! Nobody gets a port from the service that the kernel would not give him.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, RawClient, Service, bin, until};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

fn listen(addr: IpAddr, port: u16) -> Command {
    Command { op: op::LISTEN, local_addr: mapped(addr), local_port: port.into(), backlog: 8, ..Command::default() }
}

fn connect_from(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Command {
    let (local_addr, local_port) = (mapped(local.0), local.1.into());
    let (remote_addr, remote_port) = (mapped(remote.0), remote.1.into());
    Command { op: op::CONNECT, local_addr, local_port, remote_addr, remote_port, ..Command::default() }
}

/// A bound socket with `SO_REUSEADDR`, and its port.
fn bound(addr: IpAddr, port: u16) -> (OwnedFd, u16) {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("option");
    rustix::net::bind(&socket, &SocketAddr::new(addr, port)).expect("bind");
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket).expect("name")).expect("address");
    (socket, local.port())
}

/// A listening socket with `SO_REUSEADDR`, and its port.
fn listening(addr: IpAddr, port: u16) -> (OwnedFd, u16) {
    let (socket, port) = bound(addr, port);
    rustix::net::listen(&socket, 8).expect("listen");
    (socket, port)
}

/// Makes something in the namespace that the laboratory's service serves.
fn on_server<T: Send>(lab: &Lab, make: impl FnOnce() -> T + Send) -> T {
    let namespace = std::fs::File::open(format!("/run/netns/{}", lab.server)).expect("namespace");
    let enter = || {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).expect("setns");
        make()
    };
    std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
}

#[test]
fn a_command_without_the_port_is_refused() {
    let service = Service::start(|program| program);
    let mut raw = RawClient::new(&service);
    let (socket, port) = listening(HERE, 0);
    let (only_bound, bound_port) = bound(HERE, 0);
    // Nothing is shown.
    assert_eq!(raw.command(0, &listen(HERE, port)), -libc::EACCES);
    assert_eq!(raw.command(0, &connect_from((HERE, bound_port), (HERE, 9))), -libc::EACCES);
    // Another port, another address, or less than the command needs.
    for (listens, socket, command) in [
        (true, &socket, listen(HERE, port ^ 1)),
        (true, &socket, listen(EVERYWHERE, port)),
        (true, &socket, listen(Ipv6Addr::UNSPECIFIED.into(), port)),
        (true, &socket, connect_from((HERE, port), (HERE, 9))),
        (true, &socket, listen(HERE, 0)),
        (false, &only_bound, listen(HERE, bound_port)),
        (false, &only_bound, connect_from((HERE, bound_port ^ 1), (HERE, 9))),
    ] {
        raw.show(0, raw.next_seq(0), listens, socket);
        assert_eq!(raw.command(0, &command), -libc::EACCES, "{command:?}");
    }
    raw.show(0, raw.next_seq(0), true, &only_bound);
    assert_eq!(raw.command(0, &listen(HERE, bound_port)), -libc::EINVAL, "it does not listen");
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(HERE, port)), 0);
    // Shown again for the same command, it takes nothing away.
    raw.show(0, raw.next_seq(0) - 1, true, &socket);
    assert_eq!(
        raw.command(2, &connect_from(([9, 9, 9, 9].into(), 0), (HERE, port))),
        NOT_OURS + not_ours::ELSEWHERE as i32
    );
    assert_eq!(listeners(&service), 1);
}

/// How many listeners the service has.
fn listeners(service: &Service) -> usize {
    let sockets = service.sockets();
    sockets["sockets"].as_array().expect("a list").iter().filter(|socket| socket["state"] == "LISTEN").count()
}

#[test]
fn one_socket_is_one_listener() {
    let service = Service::start(|program| program);
    let (mut raw, mut other) = (RawClient::new(&service), RawClient::new(&service));
    let (socket, port) = listening(HERE, 0);
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(HERE, port)), 0);
    let kernels = NOT_OURS + not_ours::ELSEWHERE as i32;
    for client in [&mut raw, &mut other] {
        client.show(2, client.next_seq(2), true, &socket);
        assert_eq!(client.command(2, &listen(HERE, port)), kernels);
    }
    drop(socket);
    until("the listener has ended", 20, || listeners(&service) == 0);
}

#[test]
fn a_twin_that_was_bound_before_cannot_listen() {
    let service = Service::start(|program| program);
    let mut raw = RawClient::new(&service);
    let (socket, port) = bound(HERE, 0);
    let (twin, _) = bound(HERE, port);
    rustix::net::listen(&socket, 8).expect("listen");
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(HERE, port)), 0);
    assert_eq!(rustix::net::listen(&twin, 8), Err(rustix::io::Errno::ADDRINUSE), "by the kernel's word");
    raw.show(2, raw.next_seq(2), true, &twin);
    assert_eq!(raw.command(2, &listen(HERE, port)), -libc::EINVAL);
}

/// The ways in which a socket stops listening.
fn stop_listening(socket: OwnedFd, how: &str) -> Option<OwnedFd> {
    match how {
        "close" => return None,
        "shutdown" => rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).expect("shutdown"),
        "unspec" => rustix::net::connect_unspec(&socket).expect("connect"),
        _ => panic!("{how}"),
    }
    Some(socket)
}

#[test]
fn who_stops_listening_gets_no_connection_more() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut raw = RawClient::new(&service);
    let script = "import socket,sys\nc=socket.create_connection((sys.argv[1],int(sys.argv[2])),timeout=60)\n\
                  c.settimeout(60)\nprint(c.recv(9).decode())";
    for (number, how) in ["close", "shutdown", "unspec"].into_iter().enumerate() {
        let (socket, port) = on_server(&lab, || listening(EVERYWHERE, 0));
        // A slot for each: the library's part of ending a slot is missing here.
        let slot = number as u32;
        raw.show(slot, raw.next_seq(slot), true, &socket);
        assert_eq!(raw.command(slot, &listen(EVERYWHERE, port)), 0, "{how}");
        let left = stop_listening(socket, how);
        // Another user's, in the same moment: the service has not asked for the first one yet.
        let theirs = TcpListener::from(on_server(&lab, || listening(EVERYWHERE, port)).0);
        let serve = std::thread::spawn(move || {
            for _ in 0..3 {
                std::io::Write::write_all(&mut theirs.accept().unwrap().0, b"theirs").unwrap();
            }
        });
        let port = port.to_string();
        let client = |program: Program, at: &str| {
            let got = program.arg(at).arg(&port).run(40).ok();
            assert_eq!(got.trim(), "theirs", "{how} {at}");
        };
        let plain = || Program::new(&["python3", "-c", script]);
        client(lab.on_client(plain()), SERVER);
        client(lab.on_server(service.accelerated("python3 -c").arg(script)), SERVER);
        client(lab.on_server(service.accelerated("python3 -c").arg(script)), "127.0.0.1");
        serve.join().unwrap();
        until("the listener has ended", 20, || listeners(&service) == 0);
        drop(left);
    }
}

#[test]
fn a_listener_that_moves_to_another_port_is_the_kernels_there() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut raw = RawClient::new(&service);
    let (socket, port) = on_server(&lab, || listening(EVERYWHERE, 0));
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(EVERYWHERE, port)), 0);
    let cookie = sockopt::socket_cookie(&socket).expect("cookie");
    rustix::net::connect_unspec(&socket).expect("connect");
    // A rule may forbid the port; nobody has asked it.
    rustix::net::bind(&socket, &SocketAddr::new(EVERYWHERE, 7604)).expect("bind");
    rustix::net::listen(&socket, 8).expect("listen");
    assert_eq!(sockopt::socket_cookie(&socket), Ok(cookie));
    let script = format!("import socket;socket.create_connection(('{SERVER}',7604),timeout=60);print('in')");
    assert_eq!(lab.on_client(Program::new(&["python3", "-c", &script])).run(40).ok().trim(), "in");
    rustix::net::accept(&socket).expect("the kernel has it");
    until("the listener has ended", 20, || listeners(&service) == 0);
}

#[test]
fn a_listener_that_a_rule_leaves_to_the_kernel_gets_its_port_at_once() {
    let service = Service::start(|program| program);
    let rule = "add kernel listen port 7603";
    let words: Vec<&str> = rule.split(' ').collect();
    let policy = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
    words.iter().fold(policy, |policy, word| policy.arg(word)).run(20).ok();
    let script = "import socket\nfor i in range(300):\n s=socket.socket();s.bind(('127.0.0.1',7603));s.listen(5);s.close()\n\
                  print('done')";
    assert_eq!(service.accelerated("python3 -c").arg(script).run(60).ok().trim(), "done");
}

#[test]
fn a_socket_of_another_namespace_is_the_kernels() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut raw = RawClient::new(&service);
    // The test is in neither of the two namespaces.
    let (socket, port) = listening(EVERYWHERE, 0);
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(EVERYWHERE, port)), NOT_OURS + not_ours::NAMESPACE as i32);
}

#[test]
fn a_connection_of_the_kernel_keeps_its_tuple() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let listening = "import socket\nl=socket.create_server(('',7601));print('ready',flush=True)\n\
                     while 1:\n c,_=l.accept();c.sendall(c.recv(9));globals().setdefault('all',[]).append(c)";
    let mut peer = lab.on_client(Program::new(&["python3", "-c", listening])).start(service.scratch.path("peer"));
    peer.wait_for("ready", 20);
    let go = service.scratch.path("go");
    let connect = format!(
        "import socket,sys,time,os\ns=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n\
         s.bind(('{SERVER}',7602))\n\
         try: s.connect(('{CLIENT}',7601))\n\
         except OSError as error: print(error.errno); sys.exit()\n\
         print('connected',flush=True)\n\
         while not os.path.exists('{}'): time.sleep(.02)\n\
         s.sendall(b'alive'); print(s.recv(9).decode())",
        go.display()
    );
    let plain = lab.on_server(Program::new(&["python3", "-c", &connect]));
    let mut plain = plain.start(service.scratch.path("plain"));
    plain.wait_for("connected", 20);
    let program = service.accelerated("python3 -c").arg(&connect);
    let out = lab.on_server(program).run(30).ok();
    assert_eq!(out.trim(), libc::EADDRNOTAVAIL.to_string(), "as between two sockets of the kernel");
    std::fs::write(&go, "").expect("file");
    plain.wait_for("alive", 20);
}

#[test]
fn the_ports_of_outgoing_connections_are_held_while_the_service_runs() {
    let lab = Lab::new();
    let bind = |port: u16| {
        let script = format!("import socket;s=socket.socket();s.bind(('',{port}));print('bound')");
        lab.on_server(Program::new(&["python3", "-c", &script])).run(20).code == 0
    };
    assert!(bind(60_999));
    let service = Service::on_interface(&lab);
    // The socket is there before the stack, whose answer this is.
    service.status();
    assert!(!bind(60_999), "by number, too");
    drop(service);
    assert!(bind(60_999));
}

/// Memory whose first use waits until it is given up (userfaultfd(2)).
struct Withheld {
    place: usize,
    fault: OwnedFd,
}

const PAGE: usize = 4096;

impl Withheld {
    fn new() -> Self {
        let (private, both) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: new memory, which nothing else uses.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, both, private, -1, 0) } as usize;
        // SAFETY: the call takes no memory, and its descriptor is new.
        let fault = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32) };
        let withheld = Self { place, fault };
        // UFFDIO_API, and UFFDIO_REGISTER for missing pages.
        withheld.call(0xc018_aa3f, [0xaa, 0, 0, 0]);
        withheld.call(0xc020_aa00, [place as u64, PAGE as u64, 1, 0]);
        withheld
    }

    fn call(&self, request: libc::c_ulong, mut words: [u64; 4]) {
        // SAFETY: the kernel reads and writes no more than these words.
        let result = unsafe { libc::ioctl(self.fault.as_raw_fd(), request, words.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits until somebody uses it.
    fn is_used(&self) {
        assert_eq!(rustix::io::read(&self.fault, &mut [0; 32]), Ok(32));
    }

    /// UFFDIO_ZEROPAGE.
    fn give_up(&self) {
        self.call(0xc020_aa04, [self.place as u64, PAGE as u64, 0, 0]);
    }
}

/// A bound socket with a filter of one instruction.
fn filtered() -> OwnedFd {
    let (socket, _) = bound(HERE, 0);
    let all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: u32::MAX };
    let filter = libc::sock_fprog { len: 1, filter: (&raw const all).cast_mut() };
    let (option, length) = (libc::SO_ATTACH_FILTER, size_of_val(&filter) as libc::socklen_t);
    // SAFETY: the kernel reads the filter, which is as long as it says.
    let attached =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const filter).cast(), length) };
    assert_eq!(attached, 0);
    socket
}

#[test]
fn a_client_that_holds_its_sockets_lock_delays_nobody_else() {
    let service = Service::start(|program| program);
    let (hostile, mut raw) = (RawClient::new(&service), RawClient::new(&service));
    let mut connects = || {
        let (socket, port) = bound(HERE, 0);
        raw.show(0, raw.next_seq(0), false, &socket);
        raw.command(0, &connect_from((HERE, port), (HERE, 9)))
    };
    let answer = connects();
    assert_ne!(answer, -libc::EACCES, "the port is its own");
    // It wins the race against the proof in many of these.
    for _ in 0..32 {
        let (held, withheld) = (filtered(), Withheld::new());
        sockopt::set_socket_linger(&held, Some(Duration::from_secs(1))).unwrap();
        std::thread::scope(|scope| {
            // The kernel copies the filter with the socket's lock. The service has received the socket when it no longer
            // lingers.
            let hold = || {
                while sockopt::socket_linger(&held).unwrap().is_some() {}
                let (place, mut length) = (withheld.place as *mut libc::c_void, 1);
                let (level, option) = (libc::SOL_SOCKET, libc::SO_GET_FILTER);
                // SAFETY: there is room for one instruction.
                unsafe { libc::getsockopt(held.as_raw_fd(), level, option, place, &raw mut length) }
            };
            let holds = scope.spawn(hold);
            hostile.show(0, hostile.next_seq(0), false, &held);
            withheld.is_used();
            let meanwhile = connects();
            withheld.give_up();
            assert_eq!(holds.join().unwrap(), 0);
            assert_eq!(meanwhile, answer, "the other has its port meanwhile");
        });
    }
}
