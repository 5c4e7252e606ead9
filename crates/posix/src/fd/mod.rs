//! Descriptors: the table of their kinds, copying and closing, streams, and descriptor passing.

pub mod close;
pub mod fclose;
pub mod fcntl;
pub mod ioctl;
pub mod passing;
pub mod standard_streams;
pub mod streams;
pub mod table;
pub mod unshared;
