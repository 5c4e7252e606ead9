//! Where received frames go that a module does not let pass.

use towpath_modules::module::Action;
use towpath_ports::{Leaving, RxFrame};

/// Where frames go that do not pass.
pub struct Goes<'a> {
    /// They are given back to the port.
    pub done: &'a mut Vec<RxFrame>,
    /// The same, and sent back before.
    pub back: &'a mut Vec<RxFrame>,
    /// They go over another interface, and are given back then.
    pub leaving: &'a mut Vec<Leaving>,
    /// The interface that they came from.
    pub interface: u32,
}

impl Goes<'_> {
    /// Takes a frame. Returns that it does not pass.
    #[cold]
    #[inline(never)]
    pub fn left(&mut self, frame: RxFrame, action: Action, over: u32) -> bool {
        match action {
            Action::Redirect if over != self.interface => self.leaving.push(Leaving { frame, over }),
            Action::Tx | Action::Redirect => self.back.push(frame),
            _ => self.done.push(frame),
        }
        false
    }
}
