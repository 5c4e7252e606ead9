//! Nobody gets a port from the service that the kernel would not give him.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, RawClient, Service, bin};

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
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("option");
    rustix::net::bind(&socket, &SocketAddr::new(addr, port)).expect("bind");
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket).expect("name")).expect("address");
    (socket, local.port())
}

#[test]
fn a_command_without_the_port_is_refused() {
    let service = Service::start(|program| program);
    let mut raw = RawClient::new(&service);
    let (socket, port) = bound(HERE, 0);
    // Nothing is shown.
    assert_eq!(raw.command(0, &listen(HERE, port)), -libc::EACCES);
    assert_eq!(raw.command(0, &connect_from((HERE, port), (HERE, 9))), -libc::EACCES);
    // Another port, another address, or less than a listener needs.
    for (listens, command) in [
        (true, listen(HERE, port ^ 1)),
        (true, listen(EVERYWHERE, port)),
        (true, listen(Ipv6Addr::UNSPECIFIED.into(), port)),
        (false, listen(HERE, port)),
        (false, connect_from((HERE, port ^ 1), (HERE, 9))),
    ] {
        raw.show(0, raw.next_seq(0), listens, &socket);
        assert_eq!(raw.command(0, &command), -libc::EACCES, "{command:?}");
    }
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(HERE, port)), 0);
    // Shown again for the same command, it takes nothing away.
    raw.show(0, raw.next_seq(0) - 1, true, &socket);
    assert_eq!(
        raw.command(2, &connect_from(([9, 9, 9, 9].into(), 0), (HERE, port))),
        NOT_OURS + not_ours::ELSEWHERE as i32
    );
    drop(socket);
    let taken = std::net::TcpListener::bind((HERE, port)).map(drop).map_err(|error| error.kind());
    assert_eq!(taken, Err(std::io::ErrorKind::AddrInUse));
    // The kernel gives nobody a socket beside it that could be shown.
    for addr in [HERE, EVERYWHERE] {
        let twin = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
        sockopt::set_socket_reuseaddr(&twin, true).expect("option");
        assert_eq!(rustix::net::bind(&twin, &SocketAddr::new(addr, port)), Err(rustix::io::Errno::ADDRINUSE));
    }
}

#[test]
fn a_listener_of_the_kernel_keeps_its_port() {
    let service = Service::start(|program| program);
    let mut raw = RawClient::new(&service);
    let (theirs, port) = bound(EVERYWHERE, 0);
    let (beside, _) = bound(HERE, port);
    rustix::net::listen(&theirs, 8).expect("listen");
    raw.show(0, raw.next_seq(0), true, &beside);
    assert_eq!(raw.command(0, &listen(HERE, port)), -libc::EADDRINUSE);
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
    let (socket, port) = bound(EVERYWHERE, 0);
    raw.show(0, raw.next_seq(0), true, &socket);
    assert_eq!(raw.command(0, &listen(EVERYWHERE, port)), NOT_OURS + not_ours::ELSEWHERE as i32);
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
