//! What is known before each instruction of a program, whichever way leads there: a forward data-flow analysis.

use crate::ProgramSpec;
use crate::insn::Insn;

/// Something that is known at a place. Its default: no way leads there.
pub trait Fact: Clone + Default + PartialEq {
    /// What is known if either may hold.
    fn join(&self, other: &Self) -> Self;
}

/// The same of each register.
impl<F: Fact, const N: usize> Fact for [F; N]
where
    [F; N]: Default,
{
    fn join(&self, other: &Self) -> Self {
        std::array::from_fn(|register| self[register].join(&other[register]))
    }
}

/// By instruction: what is known before it. `begins`: what is known where the program and its functions begin. `after` says what an
/// instruction at a place makes of it.
pub fn before<F: Fact>(
    program: &ProgramSpec,
    begins: impl IntoIterator<Item = (usize, F)>,
    after: impl Fn(usize, Insn, &F) -> F,
) -> Vec<F> {
    let mut before = vec![F::default(); program.insns.len()];
    let mut waiting = Vec::new();
    for (start, known) in begins {
        if let Some(there) = before.get_mut(start) {
            *there = known;
            waiting.push(start);
        }
    }
    while let Some(at) = waiting.pop() {
        let insn = program.insns[at];
        let known = after(at, insn, &before[at]);
        for target in insn.followers(at).into_iter().flatten() {
            let Some(there) = before.get_mut(target) else { continue };
            let joined = there.join(&known);
            if joined != *there {
                *there = joined;
                waiting.push(target);
            }
        }
    }
    before
}
