//! The context's pointer goes through arithmetic that changes nothing, which the kernel's verifier lets it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, may_verify};
use towpath_modules::{Action, Insn, LoadError, Object, ProgramSpec};

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

/// A program that does this to r2, which is the context, while r3 is 0. Then it loads the frame's ends by r2, and returns the
/// frame's first byte.
fn program(steps: &[Insn]) -> Object {
    let mut insns = vec![insn(0xbf, 2, 1, 0, 0), insn(0xb7, 3, 0, 0, 0)];
    insns.extend(steps);
    insns.extend([
        insn(0x61, 4, 2, 0, 0),
        insn(0x61, 5, 2, 4, 0),
        insn(0xb7, 0, 0, 0, 0),
        insn(0xbf, 1, 4, 0, 0),
        insn(0x07, 1, 0, 0, 14),
        insn(0x2d, 1, 5, 1, 0),
        insn(0x71, 0, 4, 0, 0),
        insn(0x95, 0, 0, 0, 0),
    ]);
    let program = ProgramSpec { name: "context".into(), frags: false, insns, functions: vec![0] };
    Object { programs: vec![program], maps: Vec::new(), license: "GPL".into() }
}

#[test]
fn a_context_to_which_nothing_was_added_is_the_context() {
    if !may_verify() {
        return;
    }
    // r2 += 0, r2 -= 0, r2 += r3, r2 -= r3, and r3 += r2 and back.
    let all: [&[Insn]; 5] = [
        &[insn(0x07, 2, 0, 0, 0)],
        &[insn(0x17, 2, 0, 0, 0)],
        &[insn(0x0f, 2, 3, 0, 0)],
        &[insn(0x1f, 2, 3, 0, 0)],
        &[insn(0x0f, 3, 2, 0, 0), insn(0xbf, 2, 3, 0, 0)],
    ];
    let mut accepted = 0;
    for steps in all {
        let mut three = match Three::new(&program(steps), "context") {
            Ok(three) => three,
            Err(LoadError::Verifier { .. }) => continue,
            Err(why) => panic!("{steps:?}: {why}"),
        };
        accepted += 1;
        for first in [1, 2, 3] {
            assert_eq!(three.agree(&format!("{steps:?}"), &[first; 60]), Action::of(first.into()));
        }
    }
    eprintln!("{accepted} of {} accepted", all.len());
}

#[test]
fn a_context_that_was_moved_is_refused() {
    if !may_verify() {
        return;
    }
    // The loads would be of other places than a comparison with the context can tell.
    for steps in [[insn(0x07, 2, 0, 0, 4)], [insn(0x17, 2, 0, 0, 4)]] {
        let result = Three::new(&program(&steps), "context");
        assert!(matches!(result, Err(LoadError::Verifier { .. })), "{steps:?}");
    }
}
