//! Worlds whose hosts run the stages as a pipeline have the frames of run-to-completion, at the same times, whatever the order
//! of steps: transfers with loss, reordering, duplicates, SACK, ECN, super-segments and ends of all kinds.

mod common;
use common::*;
use std::net::Ipv6Addr;
use towpath_rng::Rng;
use towpath_sim::{Link, NodeConfig, World};
use towpath_tcp::counters::Counters;
use towpath_tcp::time::Micros;

const NAME: &str = "pipeline";

/// All that can be seen of a world.
#[derive(Debug, PartialEq)]
struct Seen {
    hash: u64,
    frames: u64,
    end: Micros,
    counters: Vec<[Counters; 2]>,
    /// How each end's stream ended.
    ends: Vec<(u64, u64, Option<i32>)>,
}

fn transfer(seed: u64, pipeline: Option<u64>) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let mut path = random_path(&mut rng, 50_000);
    let v6 = rng.chance(300_000);
    if v6 {
        // RFC 8200 §5.
        path.link.mtu_bytes = path.link.mtu_bytes.max(1280);
    }
    let configs = [1u8, 2].map(|n| {
        let config =
            NodeConfig { pipeline: pipeline.map(|seed| seed << 8 | u64::from(n)), ..random_config(n, &mut rng) };
        if v6 {
            NodeConfig { address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into(), ..config }
        } else {
            config
        }
    });
    let (mut world, link) = two_nodes(configs, path, rng.next_u64());
    let connections = rng.between(1, 3) as usize;
    let mut transfers = random_talkers(&mut world, &mut rng, connections)?;
    run_to_the_end(&mut world, &mut transfers)?;
    let ends = transfers.0.iter().map(|end| (end.got.len, end.got.finish(), end.error)).collect();
    Ok(seen(&world, &link, ends))
}

fn seen(world: &World, link: &Link, ends: Vec<(u64, u64, Option<i32>)>) -> Seen {
    let counters = world.nodes.iter().map(|node| node.counters()).collect();
    Seen { hash: link.hash(), frames: link.frames(), end: world.now, counters, ends }
}

/// One world under some orders of steps.
fn compare(seed: u64, orders: u64) -> Result<(), String> {
    let whole = transfer(seed, None)?;
    for order in 0..orders {
        let pipelined = transfer(seed, Some(order))?;
        if pipelined != whole {
            return Err(format!("order {order}: {whole:#?}\nbut in the pipeline {pipelined:#?}"));
        }
    }
    Ok(())
}

#[test]
fn a_world_of_pipelines_has_the_frames_of_run_to_completion() {
    for_seeds(NAME, 300, |seed| compare(seed, 2));
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset).
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    if let Err(what) = caught(|| compare(seed, 20)) {
        panic!("seed {seed}: {what}\n{}", replay(NAME, seed));
    }
}
