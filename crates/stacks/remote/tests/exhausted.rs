//! A server without a free descriptor goes on when there are some again. The limit is the process's, so this test has
//! one for itself.
#![allow(clippy::unwrap_used, missing_docs)]

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use towpath_remote::address::Address;
use towpath_remote::listener::Listener;
use towpath_remote::security::Security;

#[test]
fn a_listener_without_descriptors_rests_and_goes_on() {
    let path = std::env::temp_dir().join(format!("towpath-remote-exhausted-{}", std::process::id()));
    let listener = Listener::new(&Address::Unix(path.clone()), &Security::Unset).unwrap();
    let host = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: hard }).unwrap();
    let all: Vec<OwnedFd> = std::iter::from_fn(|| rustix::io::dup(&host).ok()).collect();
    rustix::net::connect(&host, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| std::iter::repeat_with(|| listener.accept()).flatten().next());
        // Time for a server that gives up to do so.
        std::thread::sleep(Duration::from_millis(200));
        drop(all);
        assert!(accepted.join().unwrap().unwrap().known());
    });
}
