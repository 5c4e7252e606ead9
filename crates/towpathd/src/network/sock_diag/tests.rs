#![allow(clippy::unwrap_used)]
use super::*;
use rustix::fd::AsFd;
use rustix::net::ipproto;
use std::net::{TcpListener, TcpStream};

fn cookie_of(socket: impl AsFd) -> u64 {
    sockopt::socket_cookie(socket).unwrap()
}

fn tuple(local: net::SocketAddr, remote: net::SocketAddr) -> FourTuple {
    FourTuple { local: local.ip(), local_port: local.port(), remote: remote.ip(), remote_port: remote.port() }
}

#[test]
fn the_kernels_connections_are_found_and_no_others() {
    let mut diag = SockDiag::connect().unwrap();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tuple = tuple(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        assert!(diag.has(&tuple, 0).unwrap() && diag.has(&tuple.reversed(), 0).unwrap());
        let other = FourTuple { remote_port: 1, ..tuple };
        assert!(!diag.has(&other, 0).unwrap());
        assert!(!diag.has(&FourTuple { local_port: 9, ..tuple.reversed() }, 0).unwrap());
        let to_listener = FourTuple { remote_port: 9, ..tuple.reversed() };
        assert!(!diag.has(&to_listener, 0).unwrap(), "a listener is no connection");
    }
}

#[test]
fn the_kernel_names_the_listener_of_a_connection_to_be() {
    let mut diag = SockDiag::connect().unwrap();
    for (address, client) in [("127.0.0.1:0", "127.0.0.1:9"), ("[::1]:0", "[::1]:9"), ("[::]:0", "127.0.0.1:9")] {
        let listener = TcpListener::bind(address).unwrap();
        let client: net::SocketAddr = client.parse().unwrap();
        let server = net::SocketAddr::new(client.ip(), listener.local_addr().unwrap().port());
        let asked = tuple(client, server);
        assert_eq!(diag.listener_of(&asked).unwrap(), KernelListener::Cookie(cookie_of(&listener)));
        let stream = TcpStream::connect(server).unwrap();
        let taken = tuple(stream.local_addr().unwrap(), server);
        assert_eq!(diag.listener_of(&taken).unwrap(), KernelListener::Taken);
        drop(listener);
        assert_eq!(diag.listener_of(&asked).unwrap(), KernelListener::None);
    }
}

/// Listening sockets that share one port.
fn group(address: &str, members: usize) -> Vec<TcpListener> {
    let mut address: net::SocketAddr = address.parse().unwrap();
    let mut group = Vec::new();
    for _ in 0..members {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        let listener = TcpListener::from(socket);
        address = listener.local_addr().unwrap();
        group.push(listener);
    }
    group
}

#[test]
fn each_listener_of_a_group_is_found_until_it_stops() {
    let mut diag = SockDiag::connect().unwrap();
    for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
        let mut listeners = group(address, 5);
        let local = listeners[0].local_addr().unwrap();
        let listens = |diag: &mut SockDiag, cookie| diag.is_listening(cookie, local.ip(), local.port()).unwrap();
        let cookies: Vec<u64> = listeners.iter().map(cookie_of).collect();
        assert!(cookies.iter().all(|cookie| listens(&mut diag, *cookie)), "{address}");
        assert!(!listens(&mut diag, cookies[4] + 1), "nobody's cookie");
        // The kernel would choose one of them for that address, if they are at every one.
        let another = IpAddr::from([127, 0, 0, 9]);
        let elsewhere = |cookie: &u64| diag.is_listening(*cookie, another, local.port()).unwrap();
        assert!(!cookies.iter().any(elsewhere), "another address");
        assert!(!diag.is_listening(cookies[0], local.ip(), local.port() ^ 1).unwrap(), "another port");
        rustix::net::shutdown(&listeners[1], rustix::net::Shutdown::Both).unwrap();
        drop(listeners.remove(3));
        std::thread::sleep(LISTED_FOR);
        let left: Vec<bool> = cookies.iter().map(|cookie| listens(&mut diag, *cookie)).collect();
        assert_eq!(left, [true, false, true, false, true], "{address}");
    }
}

#[test]
fn a_listener_on_one_device_is_found() {
    let mut diag = SockDiag::connect().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = b"lo\0";
    // SAFETY: `name` outlives the call and has the length given.
    let result = unsafe {
        use std::os::fd::AsRawFd;
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr().cast(), 3)
    };
    assert_eq!(result, 0);
    let local = listener.local_addr().unwrap();
    assert!(diag.is_listening(cookie_of(&listener), local.ip(), local.port()).unwrap());
    let asked = tuple("127.0.0.1:9".parse().unwrap(), local);
    assert_eq!(diag.listener_of(&asked).unwrap(), KernelListener::Cookie(cookie_of(&listener)));
}

#[test]
fn a_long_list_is_read_to_its_end() {
    let mut diag = SockDiag::connect().unwrap();
    let listeners = group("127.0.0.1:0", 600);
    let local = listeners[0].local_addr().unwrap();
    let found = diag.listeners(local.port()).unwrap();
    assert_eq!(found.len(), listeners.len());
    assert!(listeners.iter().all(|listener| found.contains(&(cookie_of(listener), local.ip()))));
    // The next question gets its own answer.
    assert!(diag.is_listening(cookie_of(&listeners[7]), local.ip(), local.port()).unwrap());
}

#[test]
fn short_answers_are_none() {
    for length in 0..HEADER + 4 {
        assert!(read(&vec![0; length], 0).is_none_or(|result| result.is_err() || length > STATE), "{length}");
    }
    for length in 0..COOKIE + 8 {
        assert_eq!(listed(&vec![LISTEN; length]), None, "{length}");
    }
    let mut found = HashSet::new();
    assert!(read_part(&[0; HEADER], 0, &mut found).is_err(), "a message of no length");
    assert!(read_part(&[9; HEADER - 1], 0, &mut found).is_err());
    assert!(found.is_empty());
}
