//! Our stack and smoltcp against the reference model of RFC 9293, segment by segment.

mod common;
use common::{caught, for_seeds, seed_from_environment};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_rng::Rng;
use towpath_sim::differential::generate::{self, Choices};
use towpath_sim::differential::report::{Who, describe, replay};
use towpath_sim::differential::rules::{OURS, SMOLTCP};
use towpath_sim::differential::subjects::Ours;
use towpath_sim::differential::{Run, run};

const NAME: &str = "differential";
/// Enough sequences that every rule is needed several times.
const SEEDS: u64 = 10_000;

/// Runs the sequence of these choices on our stack, and then on smoltcp. Returns the rules that were needed.
fn sequence(below: &mut dyn FnMut(u64) -> u64) -> Result<BTreeSet<&'static str>, String> {
    let mut choices = Choices(below);
    let (scene, length) = generate::scene(&mut choices);
    let mut steps = Vec::new();
    let ours = caught(|| {
        Ok(run(scene, &mut Ours::new(scene), OURS, |model| {
            let step = (steps.len() < length).then(|| generate::step(model, &mut choices));
            steps.extend(step);
            step
        }))
    });
    let smoltcp = replay(Who::Smoltcp, scene, &steps);
    let mut needed = BTreeSet::new();
    for (who, result) in [(Who::Ours, ours), (Who::Smoltcp, smoltcp)] {
        match result {
            Ok(Run { divergence: None, hits, .. }) => needed.extend(hits),
            Ok(Run { divergence: Some(_), .. }) | Err(_) => return Err(describe(who, scene, &steps)),
        }
    }
    Ok(needed)
}

#[test]
fn ten_thousand_sequences_go_as_the_model_says() {
    let needed = Mutex::new(BTreeMap::<&str, u64>::new());
    let seeds = AtomicU64::new(0);
    for_seeds(NAME, SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let rules = sequence(&mut |n| rng.below(n))?;
        let mut needed = needed.lock().map_err(|e| e.to_string())?;
        rules.into_iter().for_each(|rule| *needed.entry(rule).or_default() += 1);
        seeds.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let needed = needed.into_inner().expect("no seed has failed");
    println!("{needed:#?}");
    for rule in OURS.iter().chain(SMOLTCP).filter(|_| seeds.load(Ordering::Relaxed) >= SEEDS) {
        assert!(needed.contains_key(rule.name), "no seed needs the rule {:?}: {}", rule.name, rule.reason);
    }
}

/// Choices as bytes: one byte if it is enough, else four. After the end all choices are 0.
fn from_bytes(bytes: &[u8]) -> impl FnMut(u64) -> u64 + '_ {
    let mut left = bytes.iter().copied();
    move |n| {
        let bytes = if n <= 256 { 1 } else { 4 };
        (0..bytes).fold(0, |number, i| number | u64::from(left.next().unwrap_or(0)) << (8 * i)) % n
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/differential")
}

/// The corpus has a sequence for each of the rules, written by `write_corpus`. Add the findings of fuzzers to it.
#[test]
fn fuzz_sequences() {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(corpus()).expect("the corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() > 20, "{files:?}");
    let try_one = |bytes: &[u8]| {
        if let Err(what) = sequence(&mut from_bytes(bytes)) {
            panic!("{what}\nof the choices {bytes:?}");
        }
    };
    let kept: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("a file")).collect();
    kept.iter().for_each(|bytes| try_one(bytes));
    type Edit = (u16, u8);
    bolero::check!().with_type::<(u8, Vec<Edit>, Vec<u8>)>().with_iterations(500).for_each(|(nth, edits, tail)| {
        let mut bytes = kept[usize::from(*nth) % kept.len()].clone();
        bytes.extend(tail);
        for (at, with) in edits.iter().take(8) {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *with;
        }
        try_one(&bytes);
    });
}

/// Rewrites the corpus: for each rule the first seed that needs it.
#[test]
#[ignore = "writes tests/corpus/differential"]
fn write_corpus() {
    let mut left: BTreeSet<&str> = OURS.iter().chain(SMOLTCP).map(|rule| rule.name).collect();
    for seed in 0..SEEDS {
        let (mut rng, mut bytes) = (Rng::new(seed), Vec::new());
        let needed = sequence(&mut |n| {
            let number = rng.below(n);
            bytes.extend(&(number as u32).to_le_bytes()[..if n <= 256 { 1 } else { 4 }]);
            number
        });
        for rule in needed.expect("no seed fails") {
            if left.remove(rule) {
                let name: String = rule.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
                std::fs::write(corpus().join(name.to_lowercase()), &bytes).expect("the corpus can be written");
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset).
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    let mut rng = Rng::new(seed);
    if let Err(what) = sequence(&mut |n| rng.below(n)) {
        panic!("seed {seed}: {what}\n{}", common::replay(NAME, seed));
    }
}
