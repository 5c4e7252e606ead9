//! Wireshark's expert analysis of our connections. The capture is taken on the wire before losses, so that it has all
//! sent frames. Each scene lists the remarks that must appear, and those that may.

mod common;
use common::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use towpath_sim::{
    Endpoint, Faults, Faulty, Link, LinkConfig, Node, NodeConfig, Program, SmoltcpHost, SocketId, TransferEnd,
    TransferPlan, Transfers, World,
};
use towpath_tcp::flow::SocketOptions;
use towpath_tcp::time::Micros;

/// Expert remarks and their counts. Those of level "chat" ("connection established") are left out.
type Remarks = BTreeMap<String, u32>;

/// Runs tshark over a capture.
fn remarks(capture: &[u8], name: &str) -> Remarks {
    let file = std::env::temp_dir().join(format!("towpath-tshark-{}-{name}.pcap", std::process::id()));
    std::fs::write(&file, capture).expect("capture");
    let sums = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "--disable-protocol", "http"];
    let run = Command::new("tshark").args(sums).args(["-q", "-z", "expert,note", "-r"]).arg(&file).output();
    std::fs::remove_file(&file).expect("capture");
    let run = run.expect("tshark is missing: apt-get install -y --no-install-recommends tshark (or run scripts/setup)");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
    let mut remarks = Remarks::new();
    for (summary, count) in text.lines().filter_map(remark) {
        *remarks.entry(summary).or_default() += count;
    }
    remarks
}

/// A line of the table: frequency, group, protocol, summary.
fn remark(line: &str) -> Option<(String, u32)> {
    let mut words = line.split_whitespace();
    let count = words.next()?.parse().ok()?;
    let summary = words.skip(2).collect::<Vec<_>>().join(" ");
    // The remark's variant does not matter, and every connection closes.
    let summary = summary.split(" (#").next()?.to_owned();
    (!summary.ends_with("the connection closing")).then_some((summary, count))
}

/// Checks that every remark begins with one of `must` or `may`, and that each of `must` appears.
fn judge(link: &Link, name: &str, must: &[&str], may: &[&str]) {
    let said = remarks(&link.recording(), name);
    for summary in said.keys() {
        let known = must.iter().chain(may).any(|known| summary.contains(known));
        assert!(known, "{name}: {summary:?} in {said:#?}");
    }
    for known in must {
        assert!(said.keys().any(|summary| summary.contains(known)), "{name}: no {known:?} in {said:#?}");
    }
}

const RETRANSMISSION: &str = "retransmission";
const DUPLICATE: &str = "Duplicate ACK";
const OUT_OF_ORDER: &str = "out-of-order";
const ZERO_WINDOW: &str = "Zero Window segment";
const PROBE: &str = "Zero Window Probe";
const KEEPALIVE: &str = "keep-alive";
const FULL: &str = "completely full";
/// Remarks about a duplicate segment, after an acknowledgement or a probe was lost.
const TWICE: &str = "D-SACK";
const RESET: &str = "Connection reset";

struct Nobody;
impl Program for Nobody {
    fn step(&mut self, _: &mut World) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}

/// Hosts 1 and 2, over IPv4 or IPv6.
fn hosts(v6: bool) -> [NodeConfig; 2] {
    [1, 2].map(|n: u8| {
        let config = NodeConfig { rings: (256 << 10, 256 << 10), ..NodeConfig::numbered(n, u64::from(n)) };
        let six = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)).into();
        NodeConfig { address: if v6 { six } else { config.address }, ..config }
    })
}

/// Two of our hosts with a capture. Faults apply only on receiving, after the capture.
fn world(configs: [NodeConfig; 2], wire: LinkConfig, faults: Faults) -> (World, Link) {
    let (link, a, b) = Link::new(wire);
    link.record();
    let [first, second] = configs;
    let at = [(first.address, first.mac), (second.address, second.mac)];
    let bad = |port, seed| Box::new(Faulty::new(port, seed, faults, Faults::default()));
    let (mut left, mut right) = (Node::new(first, bad(a, 5)), Node::new(second, bad(b, 6)));
    left.add_route(at[1].0, at[1].1, 1500);
    right.add_route(at[0].0, at[0].1, 1500);
    (World { nodes: vec![left, right], ..World::default() }, link)
}

fn plan(bytes: u64) -> TransferPlan {
    TransferPlan { seed: 3, bytes, chunk: 16 << 10, pause_ppm: 0, pause_us: 1 }
}

/// Complete transfers in both directions at the same time.
fn transfer(world: &mut World, bytes: [u64; 2]) {
    let to = world.nodes[1].address();
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let client = world.nodes[0].connect(to, 80).expect("connects");
    let transfers = vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(bytes[0])),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(bytes[1])),
    ];
    run_to_the_end(world, &mut Transfers(transfers)).expect("ends well");
}

fn run(world: &mut World, us: u64) {
    let until = world.now.after(us);
    world.run(until, &mut Nobody);
    world.now = until;
}

/// An open connection: the sockets on nodes 0 and 1.
fn connected(options: SocketOptions) -> (World, Link, SocketId, SocketId) {
    let (mut world, link) = world(hosts(false), LinkConfig::default(), Faults::default());
    let to = world.nodes[1].address();
    let listener = world.nodes[1].listen(80, 4).expect("listens");
    let client = world.nodes[0].connect_with(to, 80, 0, options).expect("connects");
    run(&mut world, 10_000);
    let server = world.nodes[1].accept(listener).expect("a connection");
    (world, link, client, server)
}

#[test]
fn a_clean_transfer_has_no_remark_over_both_families() {
    for (name, v6) in [("clean4", false), ("clean6", true)] {
        for bytes in [[0, 2_000_000], [2_000_000, 0], [700_000, 700_000]] {
            // The queue holds the whole window, so that nothing is lost.
            let wire = LinkConfig { queue_bytes: 1 << 20, ..LinkConfig::default() };
            let (mut world, link) = world(hosts(v6), wire, Faults::default());
            transfer(&mut world, bytes);
            judge(&link, name, &[], &[FULL]);
        }
    }
}

#[test]
fn a_wrong_checksum_would_be_remarked() {
    let (_, link, ..) = connected(SocketOptions::default());
    let mut capture = link.recording();
    assert!(remarks(&capture, "right").is_empty());
    if let Some(last) = capture.last_mut() {
        *last ^= 1;
    }
    let said = remarks(&capture, "wrong");
    assert!(said.keys().any(|summary| summary.contains("Bad checksum")), "{said:?}");
}

#[test]
fn losses_lead_to_retransmissions_and_to_nothing_else() {
    for (name, v6, sack) in [("loss4", false, true), ("loss6", true, true), ("loss-without-sack", false, false)] {
        let mut configs = hosts(v6);
        configs.iter_mut().for_each(|config| config.slow.sack = sack);
        let faults = Faults { loss_ppm: 20_000, ..Faults::default() };
        let (mut world, link) = world(configs, LinkConfig { delay_us: 5_000, ..LinkConfig::default() }, faults);
        transfer(&mut world, [500_000, 500_000]);
        let mut may = vec![OUT_OF_ORDER, FULL, TWICE];
        if !sack {
            // A whole window is retransmitted after a time-out. Each of its segments that arrives in TIME-WAIT is
            // acknowledged. All but the first of these find the connection closed (RFC 9293 §3.10.7.1). There is no
            // window in TIME-WAIT.
            may.extend([RESET, ZERO_WINDOW]);
        }
        judge(&link, name, &[RETRANSMISSION, DUPLICATE], &may);
    }
}

#[test]
fn a_queue_that_marks_is_heard_and_loses_nothing() {
    let mut configs = hosts(false);
    configs.iter_mut().for_each(|config| config.slow.ecn = 1);
    let wire = LinkConfig { bits_per_s: 100_000_000, mark_bytes: Some(30_000), ..LinkConfig::default() };
    let (mut world, link) = world(configs, wire, Faults::default());
    transfer(&mut world, [3_000_000, 0]);
    assert!(link.queue(0).marks > 0 && link.drops() == 0);
    judge(&link, "ecn", &[], &[FULL]);
}

#[test]
fn a_reader_that_sleeps_closes_the_window_and_is_probed() {
    let (mut world, link, client, server) = connected(SocketOptions::default());
    let data = vec![7; 400_000];
    let mut sent = world.nodes[0].send(client, &data).expect("room");
    run(&mut world, 3_000_000);
    sent += world.nodes[0].send(client, &data[sent..]).expect("room");
    run(&mut world, 3_000_000);
    let (mut got, mut buffer) = (0, vec![0; 50_000]);
    while got < sent {
        got += world.nodes[1].recv(server, &mut buffer).unwrap_or(0);
        run(&mut world, 1_000);
    }
    judge(&link, "window", &[ZERO_WINDOW, PROBE, FULL], &[KEEPALIVE]);
}

#[test]
fn keepalive_probes_are_known_as_such() {
    let options = SocketOptions {
        keepalive: true,
        keep_idle_s: 1,
        keep_interval_s: 1,
        keep_count: 5,
        ..SocketOptions::default()
    };
    let (mut world, link, ..) = connected(options);
    run(&mut world, 5_000_000);
    judge(&link, "keepalive", &[KEEPALIVE], &[]);
}

#[test]
fn urgent_data_have_their_pointer() {
    let (mut world, link, client, _) = connected(SocketOptions::default());
    world.nodes[0].send(client, b"hello!").expect("room");
    world.nodes[0].tell(client, |update| update.marks.get_or_insert_default().urgent = Some(6));
    run(&mut world, 10_000);
    judge(&link, "urgent", &[], &["Urgent Pointer"]);
}

#[test]
fn all_ways_to_close() {
    // Both close at the same time.
    let (mut world, link, client, server) = connected(SocketOptions::default());
    world.nodes[0].close(client, false);
    world.nodes[1].close(server, false);
    run(&mut world, 100_000);
    judge(&link, "simultaneous", &[], &[]);
    // One after the other, with data between the FINs.
    let (mut world, link, client, server) = connected(SocketOptions::default());
    world.nodes[0].shutdown(client);
    run(&mut world, 10_000);
    world.nodes[1].send(server, &[1; 5000]).expect("room");
    run(&mut world, 10_000);
    world.nodes[1].close(server, false);
    run(&mut world, 10_000);
    judge(&link, "half-close", &[], &[]);
    // A reset, and data to a closed socket.
    let (mut world, link, client, _) = connected(SocketOptions::default());
    world.nodes[0].close(client, true);
    run(&mut world, 10_000);
    judge(&link, "abort", &[RESET], &[]);
    let (mut world, link, client, server) = connected(SocketOptions::default());
    world.nodes[0].close(client, false);
    run(&mut world, 10_000);
    world.nodes[1].send(server, b"too late").expect("room");
    run(&mut world, 10_000);
    judge(&link, "too-late", &[RESET], &[]);
    // There is no listener.
    let (mut world, link) = self::world(hosts(false), LinkConfig::default(), Faults::default());
    let to = world.nodes[1].address();
    world.nodes[0].connect(to, 81).expect("starts");
    run(&mut world, 10_000);
    judge(&link, "refused", &[RESET], &[]);
}

#[test]
fn a_foreign_stack_gives_no_cause_for_remarks_over_both_families() {
    for (name, v6) in [("smoltcp4", false), ("smoltcp6", true)] {
        for ours_opens in [false, true] {
            let [config, other] = hosts(v6);
            let (link, a, b) = Link::new(LinkConfig { queue_bytes: 1 << 20, ..LinkConfig::default() });
            link.record();
            let (address, at): (IpAddr, _) = (config.address, vec![(config.address, config.mac)]);
            let mut node = Node::new(config, Box::new(a));
            node.add_route(other.address, other.mac, 1500);
            let mut peer = SmoltcpHost::new(other.address, other.mac, 1, at, Box::new(b));
            peer.timestamps = true;
            let mut world = World { nodes: vec![node], smoltcp_hosts: vec![peer], ..World::default() };
            let (ours, theirs) = if ours_opens {
                let theirs = world.smoltcp_hosts[0].listen(80, 256 << 10);
                (Endpoint::Node(0, world.nodes[0].connect(other.address, 80).expect("connects")), theirs)
            } else {
                let listener = world.nodes[0].listen(80, 8).expect("listens");
                (Endpoint::Accept(0, listener), world.smoltcp_hosts[0].connect((address, 80), 4000, 256 << 10))
            };
            let theirs = TransferEnd::new(Endpoint::Smoltcp(0, theirs), plan(400_000));
            let mut transfers = Transfers(vec![TransferEnd::new(ours, plan(400_000)), theirs]);
            run_to_the_end(&mut world, &mut transfers).expect("ends well");
            judge(&link, name, &[], &[FULL]);
        }
    }
}
