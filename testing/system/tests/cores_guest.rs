//! `towpath cores` in a guest of QEMU. Its network card has a queue table that can be written (RSS) and an interrupt
//! for each queue. It also has control groups of version 2, which no namespace has. An emulated processor boots slowly,
//! so `make test-slow` runs it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::{Program, Scratch, bin, require_guest, require_program, require_root};

/// 64 flows to the guest, which end with the program.
const FLOWS: &str = "import socket, time
flows = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(64)]
for number, flow in enumerate(flows): flow.bind(('198.18.1.1', 20000 + number))
while True:
    for flow in flows:
        try: flow.sendto(b'x' * 64, ('198.18.1.2', 9))
        except OSError: pass
    time.sleep(0.1)";

/// A namespace with a TAP device of four queues.
struct Outside(String);

impl Outside {
    fn new() -> Self {
        let outside = Self(format!("tpg-{}", std::process::id()));
        Program::line(&format!("ip netns add {}", outside.0)).run(20).ok();
        let inside = |line: &str| outside.inside(Program::line(line)).run(20).ok();
        inside("ip tuntap add dev tap0 mode tap multi_queue");
        inside("ip link set tap0 up");
        inside("ip addr add 198.18.1.1/24 dev tap0");
        outside
    }
    fn inside(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.0])
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = Program::line(&format!("ip netns del {}", self.0)).run(20);
    }
}

#[test]
#[ignore = "boots a guest: scripts/setup guest; make test-slow"]
fn a_devices_own_table_and_interrupts_are_moved_and_put_back_in_a_guest() {
    require_root();
    require_guest();
    require_program("ethtool", "ethtool");
    let (outside, scratch) = (Outside::new(), Scratch::new("cores-guest"));
    let mut flows = outside.inside(Program::new(&["/usr/bin/python3", "-c", FLOWS])).start(scratch.path("flows.log"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let boot = Program::new(&[folder.join("boot")]).arg("tap0").arg(folder.join("cores.sh")).arg(bin("towpath"));
    let said = outside.inside(boot).run(1500);
    flows.stop();
    let whole = format!("{}{}", said.out, said.err);
    let line = |what: &str| {
        let prefix = format!("guest: {what} ");
        let line = said.out.lines().find_map(|line| line.trim_end().strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("{what} is missing:\n{whole}")).trim().to_owned()
    };
    assert_eq!(line("before"), "32 32 32 32", "{whole}");
    let plan: serde_json::Value = serde_json::from_str(&line("plan")).expect("JSON");
    assert_eq!((plan["way"].as_str(), plan["reserved"].as_str()), (Some("rss"), Some("1-2")), "{plan}");
    // Queues 0 and 1 have all entries of the table, CPUs 1 and 2 have the interrupts, and the application has the other
    // CPUs.
    let set = "64 64 0 0 | in0=1 out0=1 in1=2 out1=2 in2=1 out2=1 in3=2 out3=2";
    assert_eq!(line("two"), format!("{set} | 0,3"), "{whole}");
    let packets: Vec<u64> = line("packets").split(' ').map(|count| count.parse().expect("a number")).collect();
    assert!(packets[0] > 0 && packets[1] > 0 && packets[2] == 0 && packets[3] == 0, "{packets:?}\n{whole}");
    assert!(line("effective").starts_with("0=1 1=2 "), "seen after packets came: {whole}");
    assert_eq!(line("again"), set, "set again after ethtool -L: {whole}");
    assert!(whole.contains("has changed: everything is set again"), "{whole}");
    assert_eq!(line("after"), "same", "{whole}");
    assert_eq!(line("killed"), "128 0 0 0", "nobody was left to put it back: {whole}");
    assert_eq!(line("restored"), "same", "{whole}");
    partitions(&line, &whole);
    assert_eq!(line("rc"), "0", "{whole}");
}

/// CPUs 1 and 2 as a partition: no other group has them, named or not. Afterwards all groups have them again.
fn partitions(line: &dyn Fn(&str) -> String, whole: &str) {
    for kind in ["root", "isolated"] {
        assert_eq!(line(&format!("partition-{kind}")), format!("1-2 {kind} others 0,3 0,3 0,3"), "{whole}");
        assert!(line(&format!("effective-{kind}")).starts_with("0=1 1=2 "), "interrupts come there: {whole}");
        assert_eq!(line(&format!("ended-{kind}")), "same", "{whole}");
    }
    assert!(line("spoilt").starts_with("root invalid"), "{whole}");
    assert_eq!(line("mended"), "1-2 root others 0,3 0,3 0,3", "{whole}");
    assert_eq!(line("left"), "1-2 isolated others 0,3 0,3 0,3", "nobody was left to put it back: {whole}");
    let refused = line("refused");
    assert!(refused.starts_with("1 root invalid") && refused.ends_with("everything is as it was"), "{whole}");
    assert_eq!(line("untouched"), "same", "{whole}");
    // Newer kernels keep the list of a partition.
    let forgets = said_release(&line("release")) < (6, 2);
    assert_eq!(line("pinned"), if forgets { "1" } else { "0" }, "{whole}");
}

/// The first two numbers of a kernel's version.
fn said_release(release: &str) -> (u32, u32) {
    let mut numbers = release.split('.').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("major"), numbers.next().expect("minor"))
}
