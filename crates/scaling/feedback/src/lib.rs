//! Feedback: the throughput and latency that applications achieve. The scaling policy judges its changes by it.
//!
//! [`Feedback`] has any number of sources. Applications send lines to a socket. Servers are asked once a second: Redis,
//! memcached, any that Prometheus can scrape, or a [`Server`] of the caller's.
//!
//! Each server has a thread of its own, with limits on time and bytes, so [`Feedback::now`] never waits.
//! [`Reading::since`] checks the numbers that a source gives, and impossible ones are dropped.
#![forbid(unsafe_code)]

mod address;
mod buckets;
mod datagrams;
mod endpoint;
mod feedback;
mod http;
mod line;
mod memcached;
mod mix;
mod polled;
mod prometheus;
mod reading;
mod redis;
mod resp;
mod server;
mod stream;

pub use address::Address;
pub use buckets::Buckets;
pub use endpoint::{AddressError, Endpoint};
pub use feedback::{Feedback, Heard};
pub use http::page_of as page_of_http;
pub use line::outcome_of;
pub use memcached::reading_of as reading_of_memcached;
pub use mix::{FORGOTTEN, FRESH, Mix};
pub use prometheus::{Selection, Selector};
pub use reading::{Amount, Reading};
pub use redis::{histogram_of as histogram_of_redis, reading_of as reading_of_redis};
pub use resp::{Reply, reply_of};
pub use server::Server;
