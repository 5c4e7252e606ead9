//! The kernel stack in a guest of QEMU, whose PCI device is the rings: the stand-in for a network card with processors on it. An imitated
//! processor boots slowly, so all but one of these are run by `make test-slow`.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_card::machine::Kind;
use towpath_system_tests::card::{
    CONVERSATION, Outside, ends_with_its_service, group, kernel_of, nearer_than_a_message, resets_in_time,
    speak_with_others,
};
use towpath_system_tests::{Program, Service, bin, bin_dir, require_guest, require_program, until};

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_program_has_its_sockets_in_a_guest_that_needs_no_privileges() {
    let root = rustix::process::geteuid().is_root();
    // It admits root, whose this program is.
    let service = Service::guest(|program| if root { program.user(65_534) } else { program });
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(120).ok();
    assert_eq!(out.trim(), "whole 0", "this kernel has sockets of that port");
    assert_eq!(service.status()["stack"], "qemu");
    assert!(service.stage("sent_bytes") >= 2_000_000 && service.stage("accepts") == 1, "{}", service.status());
    let kernel = kernel_of(&service);
    drop(service);
    until("the guest is gone", 20, || group(kernel).is_empty());
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn programs_speak_with_others_through_a_guests_tcp() {
    for (program, package) in [("curl", "curl"), ("redis-server", "redis-server"), ("ss", "iproute2")] {
        require_program(program, package);
    }
    let outside = Outside::new("qemu");
    let service = Service::guest(|program| outside.wire(program));
    speak_with_others(&outside, &service, 256, 1000);
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guest_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    resets_in_time(|| Service::guest(|program| program));
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guest_does_not_outlive_its_service() {
    ends_with_its_service(Service::guest(|program| program));
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guests_shared_memory_is_nearer_than_a_message_and_a_socketpair_is_its_wire() {
    require_guest();
    nearer_than_a_message(Kind::Qemu);
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn sockets_in_a_guest_behave_as_the_kernels_do() {
    require_program("gcc", "gcc");
    let service = Service::guest(|program| program);
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/compare");
    let command = Program::new(&[compare]).arg("--bin").arg(bin_dir()).arg("--uml").arg(&service.socket);
    let compared = command.run(900);
    println!("{}", compared.out);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    assert!(service.stage("accepts") > 100, "the guest has carried what was compared");
}

#[test]
fn without_qemu_a_guest_says_what_to_install() {
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--qemu").env("PATH", "/nowhere");
    let ended = program.arg("--name").arg(format!("none-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("apt-get install qemu-system-x86"), "{}", ended.err);
}
