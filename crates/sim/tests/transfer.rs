//! Two of our nodes over a bad wire: every byte arrives, both ends close, nothing is left.

mod common;
use common::*;
use towpath_sim::Rng;

const NAME: &str = "transfer";

fn transfer(seed: u64) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 50_000);
    let configs = [random_config(1, &mut rng), random_config(2, &mut rng)];
    let (mut world, link) = two_nodes(configs, path, rng.next_u64());
    let connections = rng.between(1, 3) as usize;
    let mut talkers = random_talkers(&mut world, &mut rng, connections)?;
    run_to_the_end(&mut world, &mut talkers).map_err(|what| format!("{path:#?}\n{what}"))?;
    let bytes: u64 = talkers.0.iter().map(|t| t.got.len).sum();
    Ok(format!("{connections} connections, {bytes} bytes, {} frames, {} µs", link.frames(), world.now.0))
}

#[test]
fn a_thousand_seeds_of_transfer_at_up_to_five_percent_loss() {
    for_seeds(NAME, 1000, |seed| transfer(seed).map(|_| ()));
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset), with every frame printed if `TOWPATH_TRACE` is set.
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    match caught(|| transfer(seed)) {
        Ok(done) => println!("seed {seed}: {done}"),
        Err(what) => panic!("seed {seed}: {what}\n{}", replay(NAME, seed)),
    }
}
