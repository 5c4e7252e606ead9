//! The kernel stack in a guest of QEMU, whose PCI device holds the rings. It stands in for a network card with its own
//! processors. An emulated processor boots slowly, so all but one of these tests run only under `make test-slow`.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_guest::machine::MachineKind;
use towpath_system_tests::guest::{
    CONVERSATION, Outside, boots_if_there_is_none, ends_with_its_service, exec, group, inside, kernel_of,
    nearer_than_a_message, resets_in_time, speak_with_others,
};
use towpath_system_tests::{Program, Service, bin, bin_dir, require_guest, require_program, until};

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_program_has_its_sockets_in_a_guest_that_needs_no_privileges() {
    let root = rustix::process::geteuid().is_root();
    let unprivileged = |program: Program| if root { program.user(65_534) } else { program };
    let service = Service::qemu(unprivileged);
    let out = unprivileged(service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION)).run(120).ok();
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
    let service = Service::qemu(|program| outside.wire(program));
    speak_with_others(&outside, &service, 256, 1000);
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guest_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    resets_in_time(|| Service::qemu(|program| program));
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guest_does_not_outlive_its_service() {
    ends_with_its_service(Service::qemu(|program| program));
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn a_guests_shared_memory_is_nearer_than_a_message_and_a_socketpair_is_its_wire() {
    require_guest();
    nearer_than_a_message(MachineKind::Qemu);
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn sockets_in_a_guest_behave_as_the_kernels_do() {
    require_program("gcc", "gcc");
    let service = Service::qemu(|program| program);
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/compare");
    let command = Program::new(&[compare]).arg("--bin").arg(bin_dir()).arg("--uml").arg(&service.socket);
    let compared = command.run(900);
    println!("{}", compared.out);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    assert!(service.stage("accepts") > 100, "the guest has carried the cases");
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn run_boots_a_guest_if_there_is_none() {
    require_guest();
    boots_if_there_is_none("kernel=qemu");
}

/// Gives a guest a software RDMA device on its network interface.
fn with_verbs(guest: &Service) {
    let release = inside(guest, "uname -r");
    let modules = |root: &&str| Path::new(root).join("lib/modules").join(release.trim()).is_dir();
    let root = ["/", "/usr/lib/towpath/kernel"].into_iter().find(modules).expect("the guest's modules");
    inside(guest, &format!("modprobe -d {root} -a crc32_generic rdma_rxe"));
    inside(guest, "rdma link add rxe0 type rxe netdev eth0");
}

/// A transport over RDMA verbs relies on this order: bytes are in memory before the immediate that follows them. Here
/// it is checked with the kernel's own verbs.
#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn guests_write_into_each_others_rings_by_rdma_and_tell_by_immediates() {
    const SCRIPT: &str = include_str!("../rdma/immediate.py");
    require_program("rdma", "iproute2");
    let verbs = Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir();
    assert!(
        verbs,
        "Python's verbs are missing: apt-get install -y python3-pyverbs ibverbs-providers (or run scripts/setup guest)"
    );
    let outside = Outside::new("rxe");
    outside.run("ip tuntap add dev tap1 mode tap");
    outside.run("ip link add br0 type bridge");
    for device in ["tap0", "tap1"] {
        outside.run(&format!("ip link set {device} master br0 up"));
    }
    outside.run("ip link set br0 up");
    let listens = Service::qemu(|program| outside.attach(program, "tap0", "10.97.7.2/24"));
    let connects = Service::qemu(|program| outside.attach(program, "tap1", "10.97.7.3/24"));
    let read = |guest: &Service, file: &str| exec(guest).arg("cat").arg(file).run(30).out;
    for (guest, what) in [(&listens, "listen"), (&connects, "connect")] {
        with_verbs(guest);
        // A command that runs in the guest has only seconds, so this program goes on in the background.
        let line = format!("/usr/bin/python3 -u -c \"$0\" {what} 10.97.7.2 > /tmp/said 2>&1 &");
        exec(guest).arg("sh").arg("-c").arg(line).arg(SCRIPT).run(30).ok();
        if what == "listen" {
            until("the one that listens", 60, || read(guest, "/proc/net/tcp").contains(":1DDB "));
        }
    }
    for guest in [&listens, &connects] {
        until("the output of both ends", 200, || !read(guest, "/tmp/said").trim().is_empty());
        assert_eq!(read(guest, "/tmp/said").trim(), "whole 393216");
    }
}

#[test]
fn without_qemu_a_guest_says_what_to_install() {
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--qemu").env("PATH", "/nowhere");
    let ended = program.arg("--name").arg(format!("none-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("apt-get install qemu-system-x86"), "{}", ended.err);
}
