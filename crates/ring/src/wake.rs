//! Armed-flag wake-ups: spin, arm, fence, look again, sleep.
