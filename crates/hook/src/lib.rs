//! How the calls of a program are caught (LD_PRELOAD); not what they mean
