//! Headers, options and checksums. `zerocopy` views over bytes; bad frames die here. Knows no connections.

pub mod offload;
