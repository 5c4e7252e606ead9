//! The library and a stack without a protocol, in one process. Calls are made as the exported functions make them.

mod direct_peer;
mod epoll;
mod fast;
mod glance;
pub mod halves;
mod halves_fork;
mod hand_over;
mod hostile;
mod kernel_half;
mod leaving;
mod marks;
mod options;
pub mod os;
mod pairs;
mod past;
mod readiness;
mod rejoin;
mod six;
mod splice;
mod stream;
mod urgent;
mod usual;
