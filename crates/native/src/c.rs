//! The functions of `include/towpath.h`.
