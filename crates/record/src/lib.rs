//! A TCP connection as a portable record: all that another stack needs to go on with it. A stack that gives a connection up writes one,
//! one that takes it over reads it; neither knows the other. Bytes on the wire of the connection are not interpreted.

mod codec;
mod record;

pub use codec::{DecodeError, VERSION};
pub use record::{Invalid, MAX_QUEUE_BYTES, MAX_WINDOW_SCALE, Queue, Record, Settings, Window};
