//! Runs the stages on cores and serves the ring contract with them
