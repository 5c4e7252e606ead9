//! Deterministic network simulator: virtual clock, seeded faults
