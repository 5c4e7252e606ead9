//! Library and service that know different features of the contract.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use towpath_ring::control::features::CLIENT_MEMORY;
use towpath_system_tests::{Program, Scratch, Service, bin};

/// A connection to itself, with bytes.
const ECHO: &str = "import socket
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1)
c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b'bytes'); print(s.recv(9))";

/// `towpath run` of a program whose library does not know these features.
fn masked(service: &Service, features: u32, require: &[&str]) -> Program {
    let run = require.iter().fold(Program::new(&[bin("towpath")]).arg("run"), Program::arg);
    let run = run.arg("--socket").arg(&service.socket).arg("--");
    run.arg("env").arg(format!("TOWPATH_MASK_FEATURES={features}")).arg("python3").arg("-c").arg(ECHO)
}

#[test]
fn a_library_that_lacks_a_feature_of_the_service_is_told_and_its_program_is_the_kernels() {
    let mut service = Service::embedded();
    assert_eq!(masked(&service, u32::MAX, &[]).run(60).ok(), "b'bytes'\n");
    assert_eq!(service.segments(), 0, "the stack has carried something");
    service.running.wait_for("the library does not know features 0xb of the service; install one version of both", 20);
    let required = masked(&service, u32::MAX, &["--require"]).run(60);
    assert!(required.code != 0 && required.err.contains("install one version of both"), "{}", required.err);
    // The service goes on with others.
    assert_eq!(service.accelerated("python3 -c").arg(ECHO).run(60).ok(), "b'bytes'\n");
    assert!(service.segments() > 0);
}

#[test]
fn features_that_the_service_does_not_have_are_needed_by_nobody() {
    let mut service = Service::kernel();
    assert_eq!(masked(&service, !CLIENT_MEMORY, &["--require"]).run(60).ok(), "b'bytes'\n");
    assert!(service.stage("sends") > 0, "the stack has carried nothing");
    assert_ne!(masked(&service, CLIENT_MEMORY, &["--require"]).run(60).code, 0);
    service.running.wait_for("the library does not know features 0x8 of the service; install one version of both", 20);
}

#[test]
fn a_service_of_another_version_is_named_in_one_sentence() {
    let scratch = Scratch::new("version");
    let socket = scratch.path("towpath.sock");
    let listener = UnixListener::bind(scratch.path("control.sock")).unwrap();
    let service = std::thread::spawn(move || {
        for asker in listener.incoming().take(2) {
            let mut asker = asker.unwrap();
            BufReader::new(asker.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            asker.write_all(b"{\"version\":\"9.9.9\",\"pid\":1,\"contract\":99,\"features\":0}\n").unwrap();
        }
    });
    let run = |flags: &[&str]| {
        let run = flags.iter().fold(Program::new(&[bin("towpath")]).arg("run"), Program::arg);
        run.arg("--socket").arg(&socket).arg("--").arg("echo").arg("ran").run(30)
    };
    let says = "of the contract and the service version 99 at ";
    let required = run(&["--require"]);
    assert_eq!((required.code, required.out.as_str()), (125, ""), "{}", required.err);
    assert!(required.err.contains(says) && required.err.contains("install one version of both"), "{}", required.err);
    assert_eq!(required.err.lines().count(), 1, "{}", required.err);
    let other = run(&[]);
    assert_eq!((other.code, other.out.as_str()), (0, "ran\n"), "{}", other.err);
    assert!(other.err.contains(says) && other.err.contains("it runs on the kernel's TCP"), "{}", other.err);
    service.join().unwrap();
}
