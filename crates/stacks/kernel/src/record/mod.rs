//! A TCP connection as a portable record, with everything that another stack needs to continue it. The stack that
//! gives up a connection writes the record, and the one that takes it over reads it. The bytes of the stream are not
//! interpreted.

mod codec;
mod fields;

pub use codec::{DecodeError, VERSION};
pub use fields::{ConnectionRecord, Invalid, MAX_QUEUE_BYTES, MAX_WINDOW_SCALE, Queue, Settings, Window};
