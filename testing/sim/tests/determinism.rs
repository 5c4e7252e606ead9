//! The same seed gives the same frames at the same times.

mod common;
use common::*;
use towpath_rng::Rng;
use towpath_tcp::time::Micros;

fn run(seed: u64) -> (u64, u64, Micros) {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 50_000);
    let configs = [random_config(1, &mut rng), random_config(2, &mut rng)];
    let (mut world, link) = two_nodes(configs, path, rng.next_u64());
    let mut transfers = random_talkers(&mut world, &mut rng, 3).expect("connections start");
    run_to_the_end(&mut world, &mut transfers).expect("the transfer ends");
    (link.hash(), link.frames(), world.now)
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let first = run(seed);
        assert!(first.1 > 10, "seed {seed} sent only {} frames", first.1);
        assert_eq!(first, run(seed), "seed {seed}");
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20, "different seeds give different frames");
}
