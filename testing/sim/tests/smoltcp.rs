//! Our node and smoltcp, in both roles, over a bad wire. Each of our options is tested on and off. So are smoltcp's
//! timestamps, and its window scaling, by the size of its buffers. smoltcp has no ECN, and always permits SACK.

mod common;
use common::*;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_rng::Rng;
use towpath_sim::{Endpoint, NodeConfig, TransferEnd, TransferPlan, Transfers};

const NAME: &str = "smoltcp";
/// Number of connections that smoltcp has stalled.
static STALLED: AtomicU32 = AtomicU32::new(0);
/// Most stalls in 1,000 runs. If our stack were the cause, there would be more.
const STALLS_PER_1000: u32 = 1;

fn over_ipv4(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 30_000);
    let config = random_config(1, &mut rng);
    against_smoltcp(config, path, &mut rng)
}

fn over_ipv6(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut path = random_path(&mut rng, 30_000);
    // RFC 8200 §5.
    path.link.mtu_bytes = path.link.mtu_bytes.max(1280);
    let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into();
    let config = NodeConfig { address, ..random_config(1, &mut rng) };
    against_smoltcp(config, path, &mut rng)
}

fn against_smoltcp(config: NodeConfig, mut path: Path, rng: &mut Rng) -> Result<(), String> {
    path.link.checksum_offload = false;
    // smoltcp 0.14 stalls for ever if an old zero window overtakes a newer open one, and the data sent in between is
    // lost. Then its retransmission waits for a window, and its window probe for an empty pipe. So frames to it are not
    // reordered.
    path.there.delay_ppm = 0;
    let (address, peer) = (config.address, peer_of(&config));
    let (mut world, _) = node_and_peer(config, path, rng.next_u64());
    world.smoltcp_hosts[0].timestamps = rng.below(2) == 0;
    let ours_opens = rng.below(2) == 0;
    let rings = 1 << rng.between(12, 18);
    let (ours, theirs) = if ours_opens {
        let theirs = world.smoltcp_hosts[0].listen(80, rings);
        let ours = world.nodes[0].connect(peer, 80).map_err(|errno| format!("connect: errno {errno}"))?;
        (Endpoint::Node(0, ours), theirs)
    } else {
        let listener = world.nodes[0].listen(80, 8).map_err(|errno| format!("listen: errno {errno}"))?;
        let theirs = world.smoltcp_hosts[0].connect((address, 80), rng.between(1024, 60_000) as u16, rings);
        (Endpoint::Accept(0, listener), theirs)
    };
    let ours = TransferEnd::new(ours, random_plan(rng));
    // smoltcp's connect gives up only if configured to. Its reader never pauses, so that its timers determine the pace.
    let plan = TransferPlan { pause_ppm: 0, ..random_plan(rng) };
    let theirs = TransferEnd::new(Endpoint::Smoltcp(0, theirs), plan);
    let result = run_to_the_end(&mut world, &mut Transfers(vec![ours, theirs]));
    if result.is_err() && world.smoltcp_hosts[0].has_stalled() {
        STALLED.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    result.map_err(|what| format!("ours opens: {ours_opens}\n{path:#?}\n{what}"))
}

/// Runs the seeds. Few may end in a stall of smoltcp.
fn seeds(n: u64, one: fn(u64) -> Result<(), String>) {
    for_seeds(NAME, n, one);
    let n = number_from_environment("TOWPATH_SEEDS").unwrap_or(n);
    let (stalled, most) = (STALLED.load(Ordering::Relaxed), 2 + STALLS_PER_1000 * n as u32 / 1000);
    assert!(stalled <= most, "smoltcp left {stalled} connections hanging");
}

#[test]
fn two_thousand_seeds_against_smoltcp_at_up_to_three_percent_loss() {
    seeds(2000, over_ipv4);
}

#[test]
fn five_hundred_seeds_against_smoltcp_over_ipv6() {
    seeds(500, over_ipv6);
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset), with every frame printed if `TOWPATH_TRACE` is set.
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    if let Err(what) = caught(|| over_ipv4(seed).and_then(|()| over_ipv6(seed))) {
        panic!("seed {seed}: {what}\n{}", replay(NAME, seed));
    }
}
