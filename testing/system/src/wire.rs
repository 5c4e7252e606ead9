//! Two hosts and a wire between them that `towpath-impair` delays, limits or spoils.

use crate::program::Running;
use crate::{Program, Scratch, bin, require_program, require_root};
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces A (10.77.1.1) and B (10.77.1.2), and one between them with the relay's ends of both veths.
pub struct Wire {
    names: [String; 3],
    /// Its directory, which has the logs.
    pub scratch: Scratch,
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

impl Wire {
    /// Makes the namespaces, the veth pairs and the addresses, with cubic as congestion control.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        require_root();
        require_program("ip", "iproute2");
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b", "r"].map(|side| format!("tpw{side}-{id}"));
        let wire = Self { names, scratch: Scratch::new("wire") };
        let [a, b, r] = &wire.names;
        for name in &wire.names {
            run(&format!("ip netns add {name}"));
        }
        for (side, name, n) in [("wire-a", a, 1), ("wire-b", b, 2)] {
            run(&format!("ip link add eth1 netns {name} type veth peer name {side} netns {r}"));
            run(&format!("ip -n {r} link set {side} up"));
            run(&format!("ip -n {name} addr add 10.77.1.{n}/24 dev eth1"));
            run(&format!("ip -n {name} link set eth1 up"));
            run(&format!("ip -n {name} route replace 10.77.1.0/24 dev eth1 src 10.77.1.{n} congctl cubic"));
        }
        wire
    }

    /// The program in namespace A (0), B (1) or between them (2).
    pub fn under(&self, side: usize, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.names[side]])
    }

    /// The command line in one of the namespaces.
    pub fn on(&self, side: usize, line: &str) -> Program {
        self.under(side, Program::line(line))
    }

    /// Starts the relay with these flags.
    pub fn relay(&self, flags: &str) -> Running {
        let line = format!("{} --a wire-a --b wire-b --json {flags}", bin("towpath-impair").display());
        let mut relay = self.on(2, &line).start(self.scratch.path("relay.log"));
        relay.wait_for("ready", 10);
        relay
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Program::line(&format!("ip netns del {name}")).run(10);
        }
    }
}

fn run(line: &str) {
    Program::line(line).run(10).ok();
}
