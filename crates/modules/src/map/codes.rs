//! What updates ask for, and what they answer.

/// What an update may do: anything, only make an element, or only change one.
pub const ANY: u64 = 0;
pub const NO_EXIST: u64 = 1;
pub const EXIST: u64 = 2;

/// An errno as a helper returns it.
pub const fn error(errno: i32) -> i64 {
    -(errno as i64)
}
