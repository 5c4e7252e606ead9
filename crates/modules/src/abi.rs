//! What compiled code and this crate agree on: how code reads its run, and calls what programs may call.

pub use crate::check::{STACK, wants_room};
pub use crate::context::{Base, bases};
pub use crate::helpers::{TAIL_CALL, place as helper_place, takes_context as helper_takes_context};
pub use crate::run::{Field, place};
