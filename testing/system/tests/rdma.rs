//! RDMA by `libibverbs`: two guests of QEMU with a software adapter each. One has the kernel stack, the other the
//! programs. They share no memory. Only RoCE passes between them, and the TCP connection that brings them together.
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
        // Ending it ends the guest, too.
        self.inside(boot.arg(role).arg(bin("towpath")).under(&["timeout", "600"]))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Program::line(&format!("ip netns del {}", self.0)).run(20);
    }
}

/// The value that a guest prints under this name.
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
    let mut server = wire.boot("tap0", "server").start(scratch.path("server.log"));
    let client = wire.boot("tap1", "client").run(580);
    server.stop();
    let (client, server) = (format!("{}{}", client.out, client.err), server.output());
    let whole = format!("client:\n{client}\nfar:\n{server}");
    assert!(said(&server, "without").contains("no RDMA adapter with RoCE has the address 198.18.7.2"), "{whole}");
    // Only the server's guest has the address of that web server, and the whole answer has come.
    assert_ne!(said(&client, "direct"), "0", "{whole}");
    assert_eq!(said(&client, "body"), said(&server, "body"), "{whole}");
    let status: serde_json::Value = serde_json::from_str(said(&client, "status")).expect(&whole);
    assert_eq!(status["stack"], "remote", "{whole}");
    // The end of a process is noticed on the TCP connection, the end of a machine by writes without an answer.
    assert_eq!(said(&client, "kill reset"), libc::ECONNRESET.to_string(), "{whole}");
    assert!(said(&client, "kill log").contains("the other side has ended"), "{whole}");
    assert_eq!(said(&client, "vanish reset"), libc::ECONNRESET.to_string(), "{whole}");
    assert!(said(&client, "vanish log").contains("transport retry counter exceeded"), "{whole}");
    assert!(server.contains("a service could not be served"), "a connection without a word is logged: {whole}");
}
