//! `fork` and the client. The rings and the slots' private words are shared with the child. The sessions' connections,
//! event contexts and locks are not.

use crate::session::{self, Session};
use crate::{context, descriptor_reserve, direct, process, rejoin, tid};

/// In a forked child, before anything else: forgets the parent's process id.
pub fn new_process() {
    process::forked();
    tid::forget();
}

/// In a forked child: resets what belongs to one process only.
pub fn in_child() {
    if session::get().is_some() {
        context::forked();
        descriptor_reserve::forked();
        direct::forked();
    }
    rejoin::forked();
    session::all().for_each(Session::forked);
    // Another thread of the parent may have found its service dead, and not have said so yet.
    session::review_usual();
}
