//! RDMA by `libibverbs`: two guests of QEMU with an adapter in software each, in one the kernel stack, in the other programs. No memory is shared, and
//! between them goes nothing but RoCE and the TCP connection by which they have found each other.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::{Program, Scratch, bin, require_guest, require_program, require_root};

/// A network namespace with a wire between two guests: a bridge of two TAP devices.
struct Wire(String);

impl Wire {
    fn new() -> Self {
        let wire = Self(format!("rdma-{}", std::process::id()));
        Program::line(&format!("ip netns add {}", wire.0)).run(20).ok();
        wire.inside(Program::line("ip link add br0 type bridge")).run(20).ok();
        wire.inside(Program::line("ip link set br0 up")).run(20).ok();
        for tap in ["tap0", "tap1"] {
            wire.inside(Program::line(&format!("ip tuntap add dev {tap} mode tap multi_queue"))).run(20).ok();
            wire.inside(Program::line(&format!("ip link set {tap} master br0 up"))).run(20).ok();
        }
        wire
    }
    fn inside(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.0])
    }
    fn boot(&self, tap: &str, role: &str) -> Program {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let boot = Program::new(&[folder.join("guest/boot")]).arg(tap).arg(folder.join("rdma/machine.sh"));
        // Ended, it ends the guest, too.
        self.inside(boot.arg(role).arg(bin("towpath")).under(&["timeout", "600"]))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Program::line(&format!("ip netns del {}", self.0)).run(20);
    }
}

/// What a guest says of something.
fn said<'a>(all: &'a str, what: &str) -> &'a str {
    let prefix = format!("guest: {what}");
    let line = all.lines().find_map(|line| line.trim_end().strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("{what} is missing:\n{all}")).trim()
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn programs_have_their_sockets_behind_an_rdma_adapter_whose_end_resets_them() {
    require_root();
    require_guest();
    require_program("rdma", "iproute2");
    require_program("curl", "curl");
    let (wire, scratch) = (Wire::new(), Scratch::new("rdma"));
    let mut far = wire.boot("tap0", "far").start(scratch.path("far.log"));
    let near = wire.boot("tap1", "near").run(580);
    far.stop();
    let (near, far) = (format!("{}{}", near.out, near.err), far.output());
    let whole = format!("near:\n{near}\nfar:\n{far}");
    assert!(said(&far, "without").contains("no RDMA adapter with RoCE has the address 198.18.7.2"), "{whole}");
    // Only the far guest has that server's address, and all of the answer came here.
    assert_ne!(said(&near, "direct"), "0", "{whole}");
    assert_eq!(said(&near, "body"), said(&far, "body"), "{whole}");
    let status: serde_json::Value = serde_json::from_str(said(&near, "status")).expect(&whole);
    assert_eq!(status["stack"], "far", "{whole}");
    // A process's end is seen on the TCP connection, a machine's by writes that nobody answers.
    assert_eq!(said(&near, "kill reset"), libc::ECONNRESET.to_string(), "{whole}");
    assert!(said(&near, "kill log").contains("the other side has ended"), "{whole}");
    assert_eq!(said(&near, "vanish reset"), libc::ECONNRESET.to_string(), "{whole}");
    assert!(said(&near, "vanish log").contains("transport retry counter exceeded"), "{whole}");
    assert!(far.contains("a service could not come"), "somebody came and went: {whole}");
}
