//! Tests of the fast path as a whole.
#![allow(clippy::unwrap_used)]
