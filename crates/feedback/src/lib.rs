//! What applications achieve: throughput and latency, for the policy that gives stacks their CPUs.
//!
//! [`Feedback`] asks any number of sources: applications that send lines to a socket, and servers that are asked once a second for
//! what they say of themselves (Redis, memcached, any that Prometheus can scrape, or a [`Server`] of the caller's). Each of those has
//! a thread of its own, and bounds on time and bytes: whatever a server does, [`Feedback::now`] comes back at once. Nothing a source
//! says is believed beyond what [`Reading::since`] makes of it, and what cannot be is nothing said.

mod address;
mod buckets;
mod datagrams;
mod http;
mod line;
mod memcached;
mod mix;
mod polled;
mod prometheus;
mod reading;
mod redis;
mod resp;
mod source;
mod stream;

pub use address::{Address, AddressError, Endpoint};
pub use buckets::Buckets;
pub use http::page_of as page_of_http;
pub use line::outcome_of;
pub use memcached::reading_of as reading_of_memcached;
pub use mix::{FORGOTTEN, FRESH, Mix};
pub use prometheus::{Selection, Selector};
pub use reading::{Amount, Reading};
pub use redis::{histogram_of as histogram_of_redis, reading_of as reading_of_redis};
pub use resp::{Reply, reply_of};
pub use source::{Feedback, Heard, Server};
