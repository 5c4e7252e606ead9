//! What other libraries on the contract use, and no more: the session, slots and what their words say, without descriptors. Here it is
//! the same code that sockets run on.

pub use crate::accept::next as next_accepted;
pub use crate::address::is_kernels;
pub use crate::block::{Deadline, until_signal};
pub use crate::close::abandon;
pub use crate::context::{Context, is_empty};
pub use crate::cork::{is_waited_for, sleep_of};
pub use crate::direct::spin;
pub use crate::fallback::Not;
pub use crate::listen::{decide, let_stand};
pub use crate::private::{Private, flag, used};
pub use crate::receive::consumed;
pub use crate::send::publish;
pub use crate::session::{LIFE_CHECK, Session, borrow, open};
pub use crate::shutdown::local;
pub use crate::socket::Socket;
pub use crate::steer::inherit as inherit_options;
pub use crate::view::View;
