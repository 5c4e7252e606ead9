//! The life of a socket, from `socket` to `shutdown`.

pub mod accept;
pub mod address;
pub mod bind;
pub mod connect;
pub mod end;

pub mod demote;
pub mod idle;
pub mod in_flight;
pub mod kernel_half;
pub mod leaving;
pub mod listen;
pub mod pairs;
pub mod pending;
pub mod promote;
pub mod registration;
pub mod rejoin;
pub mod shutdown;
pub mod socket;
pub mod stack_address;
