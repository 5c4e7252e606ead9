#![allow(clippy::unwrap_used)]
use super::*;

const TICK_US: u64 = 100_000;

/// A model of a stack and its machine, which adds up their counters tick by tick.
struct Plant {
    sizer: Sizer,
    sample: Sample,
    now_us: u64,
    /// The stack's load, in workers, and the CPUs that programs would use.
    load: f64,
    programs: f64,
    cpus: f64,
    /// Latency of a request with a number of workers, µs.
    latency: fn(usize) -> f64,
}

impl Plant {
    fn new(wanted: CoresSetting, most: usize, cpus: usize) -> Self {
        let sizer = Sizer::new(wanted, most, cpus);
        let latency = |_| 50.0;
        let (sample, now_us) = (Sample::default(), 0);
        Self { sizer, sample, now_us, load: 0.0, programs: 0.0, cpus: cpus as f64, latency }
    }
    fn tick(&mut self) {
        let workers = self.sizer.workers();
        let busy = self.load.min(workers as f64);
        let left = self.cpus - busy;
        let used = self.programs.min(left);
        let s = &mut self.sample;
        s.stack.busy_us += (busy * TICK_US as f64) as u64;
        s.stack.turns += 1000;
        s.stack.full += if self.load > workers as f64 { 900 } else { 0 };
        s.stack.achieved.bytes += (busy * 1e6) as u64;
        let samples = if busy > 0.0 { 100 } else { 0 };
        s.stack.achieved.samples += samples;
        s.stack.achieved.logarithms += ((self.latency)(workers).log2() * 256.0) as u64 * samples;
        s.host.others_us += (used * TICK_US as f64) as u64;
        s.host.waited_us += if self.programs > left { TICK_US / 2 } else { 0 };
        self.now_us += TICK_US;
        if let Some(workers) = self.sizer.tick(*s, self.now_us) {
            assert_eq!(workers, self.sizer.workers());
        }
    }
    fn run(&mut self, ticks: u32) -> usize {
        (0..ticks).for_each(|_| self.tick());
        self.sizer.workers()
    }
    fn reasons(&self) -> Vec<String> {
        self.sizer.sizing("fast", true).changes.into_iter().map(|change| change.reason).collect()
    }
}

#[test]
fn cores_go_up_with_the_load_within_seconds_and_down_after_it() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    assert_eq!(plant.run(30), 1);
    plant.load = 2.6;
    assert_eq!(plant.run(60), 4, "each of three would be busy above 75 %");
    plant.load = 0.02;
    assert_eq!(plant.run(300), 1);
    let sizing = plant.sizer.sizing("fast", true);
    assert_eq!((sizing.workers, sizing.fewest, sizing.most, sizing.set), (1, 1, 4, None));
    assert_eq!((sizing.stack.as_str(), sizing.configured.as_str()), ("fast", "1-4"));
    let ups = sizing.changes.iter().filter(|change| change.to > change.from);
    assert!(ups.clone().all(|change| ["busy", "pressure"].contains(&change.reason.as_str())), "{:?}", plant.reasons());
    assert!(sizing.changes.iter().all(|change| change.at_us > 0 && change.from != change.to));
}

#[test]
fn a_constant_load_makes_few_changes_and_ever_fewer() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    plant.load = 1.4;
    plant.run(600);
    let first = plant.reasons().len();
    plant.run(6000);
    let all = plant.reasons().len();
    assert!(first <= 12 && all - first <= 24, "{first} in the first minute, {all} in eleven: {:?}", plant.reasons());
    assert_eq!(plant.sizer.workers(), 2);
}

#[test]
fn a_core_that_makes_latency_worse_is_given_back() {
    let mut plant = Plant::new(CoresSetting::Range(1, 2), 2, 2);
    plant.load = 0.8;
    plant.latency = |workers| if workers == 2 { 90.0 } else { 50.0 };
    plant.run(40);
    assert!(plant.reasons().contains(&"worse".to_owned()), "{:?}", plant.reasons());
    assert_eq!(plant.sizer.workers(), 1);
}

#[test]
fn programs_that_starve_get_a_core_back() {
    let mut plant = Plant::new(CoresSetting::Range(1, 2), 2, 2);
    plant.load = 0.9;
    assert_eq!(plant.run(20), 2);
    (plant.load, plant.programs) = (0.85, 3.0);
    plant.run(20);
    assert_eq!(plant.sizer.workers(), 1, "{:?}", plant.reasons());
    assert!(plant.reasons().contains(&"starved".to_owned()), "{:?}", plant.reasons());
}

#[test]
fn what_is_not_used_is_left_alone() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    plant.run(3000);
    assert!(plant.reasons().is_empty());
    assert!(plant.sizer.is_quiet() && plant.sizer.rest());
    assert_eq!(plant.sizer.sizing("fast", false).reason, "unused");
    plant.load = 0.1;
    plant.run(1);
    assert!(!plant.sizer.is_quiet());
    // A load that stops within a trial does not make it fail.
    for _ in 0..20 {
        plant.load = 0.9;
        plant.run(12);
        plant.load = 0.0;
        plant.run(40);
    }
    assert!(!plant.reasons().contains(&"fused".to_owned()), "{:?}", plant.reasons());
}

#[test]
fn what_somebody_says_holds_until_auto_is_said() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    assert_eq!(plant.sizer.fix(Some(3), 5), Ok(3));
    plant.load = 4.0;
    assert_eq!(plant.run(100), 3);
    let sizing = plant.sizer.sizing("fast", true);
    assert_eq!((sizing.set, sizing.reason.as_str(), sizing.since_us, sizing.changes.len()), (Some(3), "set", 5, 1));
    assert_eq!(plant.sizer.fix(Some(5), 5).unwrap_err(), "5 is outside 1 to 4, the most that `cores` allows");
    assert!(plant.sizer.fix(Some(0), 5).is_err());
    assert_eq!(plant.sizer.fix(None, 6), Ok(3), "the policy goes on from there");
    assert_eq!(plant.run(100), 4);
    assert_eq!(plant.sizer.sizing("fast", false).set, None);
    assert!(plant.sizer.sizing("fast", false).changes.is_empty());
}

#[test]
fn a_number_in_the_configuration_is_the_number() {
    let mut plant = Plant::new(CoresSetting::Fixed(2), 2, 8);
    assert!(!plant.sizer.decides());
    plant.load = 4.0;
    assert_eq!(plant.run(100), 2);
    assert_eq!(plant.sizer.fix(Some(1), 5), Ok(1));
    assert_eq!(plant.sizer.fix(None, 6), Ok(2));
    // The threads of a remote stack are not in this configuration.
    let remote = Sizer::new(CoresSetting::Fixed(1), 4, 8).sizing("remote", false);
    assert_eq!((remote.workers, remote.most, remote.configured.as_str()), (4, 4, "4"));
    // A range of one number leaves nothing to decide, nor does a machine with one CPU.
    assert!(
        !Sizer::new(CoresSetting::Range(2, 2), 2, 8).decides()
            && !Sizer::new(CoresSetting::Range(1, 4), 4, 1).decides()
    );
    assert_eq!(Sizer::new(CoresSetting::Range(1, 4), 4, 2).workers(), 1);
    assert_eq!(Sizer::new(CoresSetting::Range(3, 4), 4, 2).workers(), 3, "the operator's fewest");
}

#[test]
fn a_stack_that_refuses_is_left_as_it_is() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    plant.load = 4.0;
    plant.run(10);
    plant.sizer.refused(1);
    assert!(!plant.sizer.decides() && plant.sizer.rest());
    assert_eq!(plant.run(100), 1);
    assert_eq!(plant.sizer.sizing("fast", true).reason, "refused");
}

#[test]
fn only_the_last_changes_are_kept() {
    let mut sizer = Sizer::new(CoresSetting::Fixed(2), 2, 2);
    (0..400).for_each(|i| _ = sizer.fix(Some(1 + i % 2), i as u64));
    let changes = sizer.sizing("fast", true).changes;
    assert_eq!((changes.len(), changes[CHANGES - 1].at_us), (CHANGES, 399));
}

#[test]
fn what_was_seen_stands_beside_the_rest_in_the_answer_and_in_the_log() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 8);
    plant.load = 2.0;
    plant.run(10);
    let seen = r#""busy":1.0,"pressure":true,"app_busy":0.0,"app_waiting":0.0,"throughput":10000000.0,"latency_us":"#;
    let sizing = plant.sizer.sizing("fast", true);
    let change = serde_json::to_string(&sizing.changes[0]).unwrap();
    let before = r#"{"tick":2,"at_us":300000,"from":1,"to":2,"reason":"pressure","why":""#;
    assert!(
        change.starts_with(before) && change.contains(&format!(r#"",{seen}"#)) && change.ends_with('}'),
        "{change}"
    );
    let named = |text: &str, names: [&str; 6]| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        names.iter().all(|name| value.get(name).is_some())
    };
    let names = ["busy", "pressure", "app_busy", "app_waiting", "throughput", "latency_us"];
    let text = serde_json::to_string(&sizing).unwrap();
    assert!(named(&text, names) && named(&change, names) && !text.contains("\"seen\""), "{text}");
    assert_eq!(serde_json::from_str::<Sizing>(&text).unwrap(), sizing, "whoever asks reads the same");
}

#[test]
fn cpus_that_are_reserved_meanwhile_are_not_counted_on_and_come_back() {
    let mut plant = Plant::new(CoresSetting::Range(1, 4), 4, 4);
    plant.load = 4.0;
    assert_eq!(plant.run(200), 4, "nobody else wants them");
    let set = |plant: &mut Plant, cpus: usize| {
        (plant.sample.host.cpus, plant.cpus) = (cpus, cpus as f64);
        // The CPU time of those CPUs since boot, which is more than a tick can hold.
        plant.sample.host.others_us += 1_000_000_000;
        assert!(plant.sizer.has_other_cpus(&plant.sample), "{cpus}");
        plant.sizer.set_cpus(cpus);
    };
    set(&mut plant, 2);
    assert_eq!(plant.run(50), 2, "there are no more");
    assert!(plant.reasons().iter().all(|reason| reason != "starved"), "{:?}", plant.reasons());
    set(&mut plant, 1);
    assert_eq!(plant.run(50), 1);
    set(&mut plant, 4);
    assert!(plant.run(300) > 1, "{:?}", plant.reasons());
}
