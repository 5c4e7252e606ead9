//! A service without a free descriptor answers, rests, and goes on when there are some again. The limit is the
//! process's, so this test has one for itself.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Service;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Read;
use std::os::unix::net::UnixStream;
use towpath_ring::control::{Reply, recv_reply};
use towpath_service::acceptor::{Accepted, Acceptor};
use towpath_service::{api, paths};

#[test]
fn without_descriptors_clients_are_refused_with_an_answer_and_nothing_spins() {
    let service = Service::start("exhausted");
    let path = service.scratch.socket();
    let new = |kind| rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (registration, control) = (new(SocketType::SEQPACKET), new(SocketType::STREAM));
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum: hard }).unwrap();
    let fill = || std::iter::from_fn(|| rustix::io::dup(&registration).ok()).collect::<Vec<OwnedFd>>();
    let all = fill();
    assert_eq!(rustix::io::dup(&registration).unwrap_err(), Errno::MFILE);
    rustix::net::connect(&registration, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    // Nothing is closed here: the room would be the service's.
    let (answer, _) = recv_reply(registration.as_fd()).unwrap();
    assert_eq!(answer, Reply::Refused { errno: Errno::NFILE.raw_os_error() });
    rustix::net::connect(&control, &SocketAddrUnix::new(paths::control_socket(&path)).unwrap()).unwrap();
    let mut answer = String::new();
    let mut control = UnixStream::from(control);
    control.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("no free descriptor"), "{answer}");
    // An acceptor that has lost its spare descriptor rests. Any listener will do.
    let more = fill();
    let mut acceptor = Acceptor::default();
    assert!(matches!(acceptor.accept(&all[0], SocketFlags::CLOEXEC), Accepted::Nothing));
    assert!(acceptor.rests().is_some());
    drop((all, more));
    service.client().context().unwrap();
    let _: api::Hello = api::ask(&path, api::Command::Hello { hold: false }).unwrap();
}
