//! The handler's functions for forks and signals, which the loader carries out itself.

use crate::answer::Answer;
use crate::calls::Handler;

/// These functions, without the handler's type.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Before a fork, in the parent.
    pub before_fork: fn(),
    /// After it, in the child.
    pub in_child: fn(),
    /// The handler's `sigaction`.
    pub sigaction: unsafe fn(i32, *const libc::sigaction, *mut libc::sigaction) -> Answer<i32>,
}

impl Hooks {
    /// The functions of `H`.
    pub fn of<H: Handler>() -> Self {
        Self { before_fork: H::forking, in_child: H::forked, sigaction: H::sigaction }
    }
}
