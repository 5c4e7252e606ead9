//! Kernel sockets count to the users of their clients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{kernel, port};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use towpath_contract_tests::LOCAL;
use towpath_contract_tests::app::{App, Few, eventually, small};
use towpath_runtime::{SharedFile, Stack};

#[test]
fn who_has_his_share_of_descriptors_connects_no_more_until_he_closes() {
    let stack = kernel(1);
    let (lease, few) = Few::lease(2);
    let app = App::leased(&stack, small(1), lease);
    let peer = std::net::TcpListener::bind((LOCAL, 0)).unwrap();
    let port = peer.local_addr().unwrap().port();
    let (first, second) = (app.connect(LOCAL, port).unwrap(), app.connect(LOCAL, port).unwrap());
    assert_eq!(few.left(), 0);
    assert_eq!(app.begin(LOCAL, port).err(), Some(-libc::ENFILE));
    assert_eq!(app.listen(LOCAL, common::port(), 4).err(), Some(-libc::ENFILE));
    first.close();
    eventually("its descriptor is free", || few.left() == 1);
    let third = app.connect(LOCAL, port).unwrap();
    second.close();
    third.close();
    eventually("all descriptors are free", || few.left() == 2);
}

#[test]
fn what_finds_no_descriptor_waits_in_the_kernel() {
    let stack = kernel(1);
    let (lease, few) = Few::lease(2);
    let app = App::leased(&stack, small(1), lease);
    let at = SocketAddr::new(LOCAL, port());
    let mut listener = app.listen(LOCAL, at.port(), 4).unwrap();
    let mut peers = [(); 2].map(|()| TcpStream::connect(at).unwrap());
    let mut first = listener.accept();
    first.write_all(b"1").unwrap();
    assert_eq!(few.left(), 0);
    assert!(listener.try_accept().is_none());
    first.close();
    let mut second = listener.accept();
    second.write_all(b"2").unwrap();
    let mut got = [0; 2];
    for (peer, got) in peers.iter_mut().zip(&mut got) {
        peer.read_exact(std::slice::from_mut(got)).unwrap();
    }
    assert_eq!(&got, b"12");
    stack.remove_client(app.id);
    eventually("all descriptors are free", || few.left() == 2);
}

#[test]
fn files_that_are_shown_count_until_they_are_withdrawn() {
    let stack = kernel(1);
    let (lease, few) = Few::lease(2);
    let app = App::leased(&stack, small(1), lease);
    let show = |replaces| {
        let file = std::fs::File::open("/proc/self/exe").unwrap().into();
        stack.add_file(app.id, SharedFile { process: 1, replaces, file })
    };
    let first = show(0).unwrap();
    show(0).unwrap();
    assert_eq!(show(0).unwrap_err().raw_os_error(), Some(libc::ENFILE));
    show(first).unwrap();
    assert_eq!(few.left(), 0);
    stack.departed(app.id, 1);
    eventually("all descriptors are free", || few.left() == 2);
}
