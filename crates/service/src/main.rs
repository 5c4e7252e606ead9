//! `towpathd`: the Towpath service.
fn main() {}
