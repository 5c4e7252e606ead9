//! Takes from this process what it needs no more: capabilities, files and system calls.
//!
//! Everything here is final: a process cannot get back what it has given up. [`privileges`] and [`files`] concern the
//! calling thread and those that it starts later, so they come before the first thread. [`calls`] concerns all threads.

pub mod calls;
pub mod files;
pub mod privileges;
pub mod refused;
