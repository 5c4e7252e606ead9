//! How many threads the service's stack has: as the configuration says, as somebody has said, or as many as pay off; and where they do not run.

mod allocator;
mod aside;
mod host;
mod sizer;
mod totals;
pub mod wanted;

pub use allocator::{Allocator, start};
pub use aside::Aside;
pub use wanted::Cores;
