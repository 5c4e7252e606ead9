//! Chains without a port.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::insn::Insn;
use crate::module::Module;
use crate::object::{Object, ProgramSpec};
use std::cell::Cell;

thread_local! { static TIME: Cell<Now> = const { Cell::new(Now { thread_ns: 0, wall_ns: 0 }) } }

/// A clock that goes on by 250 µs whenever somebody asks, so that each timed run takes that. Beside it, one that stands
/// still measures what it takes to ask.
fn slow() -> Now {
    let now = TIME.get();
    TIME.set(Now { thread_ns: now.thread_ns + 250_000, wall_ns: now.wall_ns + 250_000 });
    now
}

fn still() -> Now {
    TIME.get()
}

fn attached(name: &str, percent: u8) -> Attached {
    let module = Arc::new(Module::interpreted(&Object::null(), 0, 1).unwrap());
    Attached {
        module,
        counts: Counts::new(1),
        budget: Arc::new(Budget::new(name, percent)),
        selector: None,
        direct: None,
    }
}

#[test]
fn a_module_over_its_budget_leaves_the_chain_and_is_told_once() {
    let modules = [attached("greedy", 10), attached("patient", 100)];
    let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, still);
    chain.clock = slow;
    let mut told = Vec::new();
    for _ in 0..100_000 {
        assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass);
        told.extend(chain.settle().map(|budget| budget.module().to_owned()));
    }
    assert_eq!(told, ["greedy"]);
    let runs = |of: &Attached| of.counts.sums()[0];
    // In each millisecond it takes 250 µs and is given 100. It has saved 10 ms, so it lasts for some 70 runs.
    assert!(runs(&modules[0]) <= 200, "{}", runs(&modules[0]));
    assert_eq!(runs(&modules[1]), 100_000);
    let overrun = modules[0].budget.overrun().unwrap();
    assert_eq!((overrun.flow_group, overrun.run_ns), (0, 250_000));
    assert_eq!(modules[1].budget.overrun(), None);
}

/// Its verdict is the frame's byte at this place. If it redirects, it does so over the port that the fourth byte says.
fn by_byte(place: i16) -> Attached {
    let insn = |code, dst, src, off, imm| Insn { code, dst, src, off, imm };
    let insns = vec![
        insn(0x61, 2, 1, 0, 0),
        insn(0x71, 6, 2, place, 0),
        insn(0x71, 1, 2, 3, 0),
        insn(0xb7, 2, 0, 0, 0),
        insn(0x85, 0, 0, 0, 23),
        insn(0xbf, 0, 6, 0, 0),
        insn(0x95, 0, 0, 0, 0),
    ];
    let program = ProgramSpec { name: "byte".into(), frags: false, insns, functions: vec![0] };
    let object = Object { programs: vec![program], maps: Vec::new(), license: "GPL".into() };
    Attached { module: Arc::new(Module::interpreted(&object, 0, 1).unwrap()), ..attached("byte", 99) }
}

#[test]
fn a_batch_is_its_frames_one_by_one() {
    let frames: Vec<Vec<u8>> = (0..3000u32)
        .map(|at| vec![[2, 4, 1, 3][(at * at / 7 % 4) as usize], [2, 0][(at % 3 / 2) as usize], 2, at as u8])
        .collect();
    for count in 0..=3 {
        let chains = [(); 2].map(|()| (0..count).map(by_byte).collect::<Vec<_>>());
        let [mut batched, mut alone] =
            chains.each_ref().map(|modules| Chain::with_clock(modules, Hook::Ingress, 0, 0, still));
        let (mut left, mut expected) = (Vec::new(), Vec::new());
        for (batch, frames) in frames.chunks(64).enumerate() {
            let mut copies = frames.to_vec();
            let mut slices: Vec<_> = copies.iter_mut().map(|frame| IoSliceMut::new(frame)).collect();
            batched.run_batch(64 * batch, &mut slices, &mut left);
            for (at, frame) in frames.iter().enumerate() {
                let action = alone.run_in_place(&mut frame.clone());
                let over = if action == Action::Redirect { frame[3].into() } else { 0 };
                assert!(action != Action::Redirect || alone.over() == over);
                expected.extend(Some(Left { place: 64 * batch + at, action, over }).filter(|_| action != Action::Pass));
            }
        }
        assert_eq!(left, expected, "{count} modules");
        drop((batched, alone));
        let [batched, alone] = chains.map(|modules| modules.iter().map(|one| one.counts.sums()).collect::<Vec<_>>());
        assert_eq!(batched, alone);
    }
}

#[test]
fn what_one_flow_group_has_found_holds_on_all_of_them() {
    let modules = [attached("greedy", 1)];
    let mut chains: Vec<_> = (0..2).map(|group| Chain::with_clock(&modules, Hook::Egress, group, 0, still)).collect();
    chains[0].clock = slow;
    (0..1000).for_each(|_| assert_eq!(chains[0].run_in_place(&mut [0; 64]), Action::Pass));
    assert!(chains[0].is_empty() && chains[0].settle().is_some());
    // Its time costs nothing here, but the next timed run finds that it is to go.
    (0..1000).for_each(|_| assert_eq!(chains[1].run_in_place(&mut [0; 64]), Action::Pass));
    assert!(chains[1].is_empty() && chains[1].settle().is_none());
}

#[test]
fn asking_the_clock_is_charged_to_nobody() {
    let modules = [attached("cheap", 1)];
    let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, slow);
    (0..10_000).for_each(|_| assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass));
    assert_eq!(modules[0].budget.overrun(), None);
}

#[test]
fn a_module_has_the_frames_of_connections_that_its_selector_chooses() {
    // The selectors stand in the frame.
    let whose: Arc<Whose> = Arc::new(|frame| u32::from_ne_bytes([frame[0], frame[1], frame[2], frame[3]]));
    let frame = |bits: u32| [bits.to_ne_bytes(), [0; 4]].concat();
    let of = |name, bit| Attached { selector: Some(bit), ..attached(name, 100) };
    let modules = [of("first", 1), attached("all", 100), of("second", 1 << 31)];
    for hook in [Hook::Ingress, Hook::Egress] {
        let mut chain = Chain::new(&modules, hook, 0, 0);
        assert!(chain.selects() && chain.is_for(0));
        assert_eq!(chain.selectors_of(&frame(1)), 0, "nobody is asked yet");
        chain.ask(Arc::clone(&whose));
        for bits in [0, 1, 1, 1 << 31, 1 | 1 << 31, 2] {
            assert_eq!(chain.run_selected_in_place(&mut frame(bits)), Action::Pass);
            assert_eq!(chain.run_selected(&mut Frame::whole(&mut [0; 64]), bits), Action::Pass);
        }
    }
    assert_eq!(modules.each_ref().map(|one| one.counts.sums()[0]), [12, 24, 8]);
    let alone = Chain::new(&modules[2..], Hook::Ingress, 0, 0);
    assert!(alone.is_for(1 << 31) && !alone.is_for(1) && alone.is_for(EVERY));
    // What was not sent is counted where the frame was last.
    let chain = Chain::new(&modules, Hook::Egress, 0, 0);
    [1, 0, 1 << 31, EVERY].into_iter().for_each(|bits| chain.failed(bits));
    assert_eq!(modules.each_ref().map(|one| one.counts.sums()[5]), [0, 2, 2]);
    assert!(!Chain::new(&modules[1..2], Hook::Ingress, 0, 0).selects());
}

#[test]
fn frames_of_others_take_no_time_of_a_module_and_do_not_save_it() {
    let modules = [Attached { selector: Some(1), ..attached("greedy", 10) }, attached("patient", 100)];
    let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, still);
    chain.clock = slow;
    chain.ask(Arc::new(|frame| frame[0].into()));
    (0..100_000).for_each(|_| assert_eq!(chain.run_selected_in_place(&mut [2; 64]), Action::Pass));
    assert_eq!((modules[0].counts.sums()[0], modules[0].budget.overrun()), (0, None));
    (0..100_000).for_each(|at| assert_eq!(chain.run_selected_in_place(&mut [(at % 2) as u8; 64]), Action::Pass));
    assert!(modules[0].budget.overrun().is_some());
    assert!(modules[0].counts.sums()[0] < 1000, "{}", modules[0].counts.sums()[0]);
}
