//! The death of the service, as waits notice it: listeners with a kernel half become the kernel's, because it goes on.

use std::sync::OnceLock;
use towpath_client::socket::Socket;

static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// Sets the function that gives all such listeners back to the kernel. Only the first call has an effect.
pub fn set_give_back(give_back: fn()) {
    let _ = GIVE_BACK.set(give_back);
}

/// Is this a listener with a kernel half whose service has died?
#[inline]
pub fn is_left_alone(socket: &Socket) -> bool {
    socket.session.is_dead() && socket.kernel_half()
}

/// A service has died: its listeners are the kernel's from now on. The caller holds no lock of an instance.
#[cold]
pub fn give_back() {
    if let Some(give_back) = GIVE_BACK.get() {
        give_back();
    }
}
