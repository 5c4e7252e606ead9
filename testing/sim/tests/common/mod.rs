//! Worlds of two hosts on one wire, made from a seed.
#![allow(dead_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_rng::Rng;
use towpath_sim::{
    Endpoint, Faults, Faulty, Link, LinkConfig, Node, NodeConfig, Outcome, SmoltcpHost, TransferEnd, TransferPlan,
    Transfers, World,
};
use towpath_tcp::time::Micros;

/// The wire and its faults.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub link: LinkConfig,
    pub there: Faults,
    pub back: Faults,
}

/// The largest packet, with an Ethernet header.
pub const GSO_MAX_BYTES: u32 = 65_535 + 14;

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// A wire of random speed, delay and queue, with up to `loss_ppm` of loss in each direction. Two of three worlds add
/// duplication, corruption and reordering.
pub fn random_path(rng: &mut Rng, loss_ppm: u32) -> Path {
    let link = LinkConfig {
        bits_per_s: pick(rng, &[10_000_000, 100_000_000, 1_000_000_000, 0]),
        delay_us: pick(rng, &[5, 50, 500, 5_000, 20_000]),
        queue_bytes: pick(rng, &[16 << 10, 64 << 10, 256 << 10]),
        mtu_bytes: pick(rng, &[576, 1500, 1500, 9000]),
        checksum_offload: rng.chance(250_000),
        print: std::env::var_os("TOWPATH_TRACE").is_some(),
        ..LinkConfig::default()
    };
    // The number is not taken from the generator, so that old seeds keep their worlds.
    let cuts = link.checksum_offload && rng.clone().chance(500_000);
    let link = LinkConfig { gso_max_bytes: if cuts { GSO_MAX_BYTES } else { 0 }, ..link };
    let nasty = rng.below(3) > 0;
    let mut faults = || Faults {
        loss_ppm: rng.below(u64::from(loss_ppm) + 1) as u32,
        duplicate_ppm: if nasty { rng.below(20_000) as u32 } else { 0 },
        corrupt_ppm: if nasty { rng.below(10_000) as u32 } else { 0 },
        delay_ppm: if nasty { rng.below(100_000) as u32 } else { 0 },
        delay_us: rng.between(1, 4 * link.delay_us + 100),
    };
    let there = faults();
    let back = faults();
    Path { link, there, back }
}

/// The plan of one end: mostly small transfers, some of a few 100 KB. Every fourth reader is slow.
pub fn random_plan(rng: &mut Rng) -> TransferPlan {
    let limit = pick(rng, &[0, 1, 1_000, 20_000, 60_000, 300_000]);
    TransferPlan {
        seed: rng.next_u64(),
        bytes: rng.below(limit + 1),
        chunk: pick(rng, &[100, 1460, 4096, 16 << 10]),
        pause_ppm: if rng.below(4) == 0 { 100_000 } else { 0 },
        pause_us: pick(rng, &[100, 10_000, 300_000]),
    }
}

pub fn random_config(n: u8, rng: &mut Rng) -> NodeConfig {
    let mut config = NodeConfig::numbered(n, rng.next_u64());
    config.rings =
        (pick(rng, &[4096, 16 << 10, 64 << 10, 256 << 10]), pick(rng, &[4096, 16 << 10, 64 << 10, 256 << 10]));
    // Half of the worlds have Linux's options. In the others each option may be missing.
    if rng.below(2) == 0 {
        let slow = &mut config.slow;
        (slow.timestamps, slow.sack, slow.window_scaling) = (rng.below(2) == 0, rng.below(2) == 0, rng.below(2) == 0);
        slow.ecn = rng.below(3) as u8;
    }
    config
}

/// Two nodes, 10.0.0.1 and 10.0.0.2, with routes to each other.
pub fn two_nodes(configs: [NodeConfig; 2], path: Path, seed: u64) -> (World, Link) {
    let (link, a, b) = Link::new(path.link);
    let a = Faulty::new(a, seed, path.back, path.there);
    let [first, second] = configs;
    let (first_at, second_at) = ((first.address, first.mac), (second.address, second.mac));
    let mut left = Node::new(first, Box::new(a));
    let mut right = Node::new(second, Box::new(b));
    let mtu = path.link.mtu_bytes as u16;
    left.add_route(second_at.0, second_at.1, mtu);
    right.add_route(first_at.0, first_at.1, mtu);
    (World { nodes: vec![left, right], ..World::default() }, link)
}

/// smoltcp's address: 10.0.0.2, or fd00::2 for a node of IPv6.
pub fn peer_of(config: &NodeConfig) -> IpAddr {
    match config.address {
        IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 2).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
    }
}

/// One node and smoltcp.
pub fn node_and_peer(config: NodeConfig, path: Path, seed: u64) -> (World, Link) {
    let (link, a, b) = Link::new(path.link);
    let a = Faulty::new(a, seed, path.back, path.there);
    let at = (config.address, config.mac);
    let peer_at = (peer_of(&config), [2, 0, 0, 0, 0, 2]);
    let mut node = Node::new(config, Box::new(a));
    node.add_route(peer_at.0, peer_at.1, path.link.mtu_bytes as u16);
    let peer = SmoltcpHost::new(peer_at.0, peer_at.1, seed, vec![at], Box::new(b));
    (World { nodes: vec![node], smoltcp_hosts: vec![peer], ..World::default() }, link)
}

/// `n` connections from node 0 to node 1, port 80, with random plans. The ends come in pairs.
pub fn random_talkers(world: &mut World, rng: &mut Rng, n: usize) -> Result<Transfers, String> {
    let address = world.nodes[1].address();
    let mut transfers = Vec::new();
    for i in 0..n {
        let port = 80 + i as u16;
        let listener = world.nodes[1].listen(port, 8).map_err(|errno| format!("listen: errno {errno}"))?;
        let socket = world.nodes[0].connect(address, port).map_err(|errno| format!("connect: errno {errno}"))?;
        transfers.push(TransferEnd::new(Endpoint::Node(0, socket), random_plan(rng)));
        transfers.push(TransferEnd::new(Endpoint::Accept(1, listener), random_plan(rng)));
    }
    Ok(Transfers(transfers))
}

/// An hour of virtual time is enough for everything here.
pub const LONG: Micros = Micros(3_600_000_000);

/// Runs to the end. Checks that both ends of every pair have received the other's bytes, and that no node has a flow
/// left.
pub fn run_to_the_end(world: &mut World, transfers: &mut Transfers) -> Result<(), String> {
    let outcome = world.run(LONG, transfers);
    for pair in transfers.0.chunks(2) {
        let both = [(&pair[0], &pair[1]), (&pair[1], &pair[0])];
        for (from, to) in both {
            if !from.finished() || from.sent.len != to.got.len || from.sent.finish() != to.got.finish() {
                return Err(format!(
                    "{outcome:?} after {} µs: {} of {} bytes arrived, hashes {:x} and {:x}\nfrom {}\nto   {}\n{}",
                    world.now.0,
                    to.got.len,
                    from.sent.len,
                    from.sent.finish(),
                    to.got.finish(),
                    from.describe(),
                    to.describe(),
                    describe(world)
                ));
            }
        }
    }
    for (i, node) in world.nodes.iter().enumerate() {
        if node.flows() > 0 || node.connections() > node.listeners() || node.steered() != node.listeners() {
            return Err(format!("node {i} has something left after {:?}:\n{}", world.now, describe(world)));
        }
    }
    if outcome != Outcome::Idle {
        return Err(format!("still not idle after {:?}:\n{}", world.now, describe(world)));
    }
    Ok(())
}

fn describe(world: &World) -> String {
    world.nodes.iter().map(|n| format!("{}: {}\n", n.address(), n.describe())).collect()
}

/// Transfers `bytes` from node 1 to node 0, so that faults apply after the wire and its queue, not before. Returns the
/// world after its end, and the seconds until the last byte arrived.
pub fn bulk_transfer(
    configs: [NodeConfig; 2],
    link: LinkConfig,
    faults: Faults,
    seed: u64,
    bytes: u64,
) -> (World, f64) {
    let path = Path { link, there: Faults::default(), back: faults };
    let (mut world, _) = two_nodes(configs, path, seed);
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let address = world.nodes[1].address();
    let client = world.nodes[0].connect(address, 80).expect("connects");
    let plan = |bytes| TransferPlan { seed: 3, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
    let mut transfers = Transfers(vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(0)),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(bytes)),
    ]);
    while transfers.0[0].got.len < bytes {
        let until = world.now.after(200);
        world.run(until, &mut transfers);
        assert!(until < LONG, "{}", world.nodes[1].describe());
    }
    let took_s = world.now.0 as f64 / 1e6;
    run_to_the_end(&mut world, &mut transfers).expect("ends well");
    (world, took_s)
}

/// Runs `one` for seeds `0..n` on all CPUs (`TOWPATH_SEEDS` of them if set). Panics with the command that repeats the
/// first failure.
pub fn for_seeds(test: &str, n: u64, one: impl Fn(u64) -> Result<(), String> + Sync) {
    let n = number_from_environment("TOWPATH_SEEDS").unwrap_or(n);
    let next = std::sync::atomic::AtomicU64::new(0);
    let failed = std::sync::Mutex::new(None::<(u64, String)>);
    let worker = || {
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= n || failed.lock().is_ok_and(|f| f.is_some()) {
                return;
            }
            if let Err(what) = caught(|| one(seed)) {
                if let Ok(mut failed) = failed.lock()
                    && failed.as_ref().is_none_or(|(first, _)| seed < *first)
                {
                    *failed = Some((seed, what));
                }
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(worker);
        }
    });
    if let Ok(Some((seed, what))) = failed.into_inner() {
        panic!("seed {seed}: {what}\n{}", replay(test, seed));
    }
}

/// Converts a panic to an error, so that it is reported with its seed.
pub fn caught<T>(one: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// The command that repeats a failure.
pub fn replay(test: &str, seed: u64) -> String {
    format!("TOWPATH_SEED={seed} cargo test -p towpath-sim --test {test} one_seed -- --nocapture")
}

/// The seed in the environment.
pub fn seed_from_environment() -> Option<u64> {
    number_from_environment("TOWPATH_SEED")
}

pub fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
