//! The fast path: established connections, in batches, on one core.
