//! Two of our nodes over a bad wire: every byte arrives, both ends close, and no state is left.

mod common;
use common::*;
use std::net::Ipv6Addr;
use towpath_rng::Rng;
use towpath_sim::NodeConfig;

const NAME: &str = "transfer";

fn transfer(seed: u64) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 50_000);
    let configs = [random_config(1, &mut rng), random_config(2, &mut rng)];
    transfer_between(configs, path, rng)
}

/// Over IPv6, in every second world with VLAN tags.
fn transfer_over_ipv6(seed: u64) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let mut path = random_path(&mut rng, 50_000);
    // RFC 8200 §5.
    path.link.mtu_bytes = path.link.mtu_bytes.max(1280);
    let vlan = rng.chance(500_000).then_some(7);
    let configs = [1, 2].map(|n| {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into();
        NodeConfig { address, vlan, ..random_config(n as u8, &mut rng) }
    });
    transfer_between(configs, path, rng)
}

/// Over tagged IPv4.
fn transfer_over_a_vlan(seed: u64) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 50_000);
    let configs = [1, 2].map(|n| NodeConfig { vlan: Some(4095), ..random_config(n, &mut rng) });
    transfer_between(configs, path, rng)
}

fn transfer_between(configs: [NodeConfig; 2], path: Path, mut rng: Rng) -> Result<String, String> {
    let (mut world, link) = two_nodes(configs, path, rng.next_u64());
    let connections = rng.between(1, 3) as usize;
    let mut transfers = random_talkers(&mut world, &mut rng, connections)?;
    run_to_the_end(&mut world, &mut transfers).map_err(|what| format!("{path:#?}\n{what}"))?;
    let bytes: u64 = transfers.0.iter().map(|t| t.got.len).sum();
    Ok(format!("{connections} connections, {bytes} bytes, {} frames, {} µs", link.frames(), world.now.0))
}

#[test]
fn two_thousand_seeds_of_transfer_at_up_to_five_percent_loss() {
    for_seeds(NAME, 2000, |seed| transfer(seed).map(|_| ()));
}

#[test]
fn five_hundred_seeds_of_transfer_over_ipv6_at_up_to_five_percent_loss() {
    for_seeds(NAME, 500, |seed| transfer_over_ipv6(seed).map(|_| ()));
}

#[test]
fn three_hundred_seeds_of_transfer_over_a_vlan() {
    for_seeds(NAME, 300, |seed| transfer_over_a_vlan(seed).map(|_| ()));
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset), with every frame printed if `TOWPATH_TRACE` is set.
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    for one in [transfer, transfer_over_ipv6, transfer_over_a_vlan] {
        match caught(|| one(seed)) {
            Ok(done) => println!("seed {seed}: {done}"),
            Err(what) => panic!("seed {seed}: {what}\n{}", replay(NAME, seed)),
        }
    }
}
