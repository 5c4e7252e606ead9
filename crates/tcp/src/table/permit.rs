//! Permits: types decide what a stage may write.
//!
//! A permit is a value without size. Functions of a stage take theirs as an argument, and every word of a flow asks for it
//! when it is written. Reading needs none.

use std::ops::Deref;

/// The permit of a stage of the fast path. [`super::stages`] has all of them.
pub trait Permit: Copy {
    /// 32-bit words of the protocol line that the stage, or one that it hands a flow to, may write: one bit each.
    const WORDS: u16;
}

/// Two stages that run one after the other.
impl<A: Permit, B: Permit> Permit for (A, B) {
    const WORDS: u16 = A::WORDS | B::WORDS;
}

/// Some of a flow's state.
pub trait Part {
    /// Its 32-bit words of the protocol line: one bit each.
    const WORDS: u16;
}

/// The stage may write this state.
pub trait Writes<State>: Permit {}

/// State of a fast path that everybody may read and that only some stages may write.
#[derive(Debug, Default)]
pub struct Owned<State>(State);

impl<State> Owned<State> {
    pub(crate) fn new(state: State) -> Self {
        Self(state)
    }
    /// The state, for a stage that may write it.
    #[inline(always)]
    pub fn by<S: Writes<State>>(&mut self, _: S) -> &mut State {
        &mut self.0
    }
}

impl<State> Deref for Owned<State> {
    type Target = State;
    #[inline(always)]
    fn deref(&self) -> &State {
        &self.0
    }
}
