//! What compiled code and this crate agree on: how code reads its run, and calls what programs may call.

pub use crate::check::STACK;
pub use crate::context::{Base, bases};
pub use crate::helpers::{TAIL_CALL, place as helper_place};
pub use crate::run::{Field, place};
