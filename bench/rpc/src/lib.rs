//! What the load generators do. `towpath-rpc` uses sockets and makes no system call past libc, as most programs. What uses the
//! native API is a program of its own, because Towpath's code does make such calls, and a program with them is injected.

pub mod bulk;
pub mod client;
pub mod files;
pub mod flood;
pub mod many;
pub mod sends;
pub mod server;
pub mod short;
mod sys;
pub mod turns;
pub mod values;
pub mod work;

/// Prints a report as one JSON object.
pub fn print(report: &impl serde::Serialize) {
    match serde_json::to_string(report) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("{error}"),
    }
}
