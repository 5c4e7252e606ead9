//! Sends one after the other on one connection, while its stack is stopped. All but the first send find that the stack
//! has been notified already, like most sends of a busy sender.

use crate::library::{accept_one, check};
use std::io;
use std::net::Ipv4Addr;

/// Bytes of a send.
const BYTES: usize = 64;
/// More sends than this do not fit the smallest usual send ring.
const MOST: u64 = (64 << 10) / BYTES as u64;

/// Listens, accepts one connection, sends; the number of sends counted. `service` is the process to stop.
pub fn run(address: Ipv4Addr, port: u16, sends: u64, service: i32) -> io::Result<u64> {
    let (connection, _) = accept_one(address, port)?;
    let (buffer, sends) = ([7; BYTES], sends.min(MOST));
    // The stack is in the worker process, a child of the service's.
    let children = std::fs::read_to_string(format!("/proc/{service}/task/{service}/children"))?;
    let processes: Vec<i32> =
        children.split_whitespace().filter_map(|child| child.parse().ok()).chain([service]).collect();
    let to_all = |number| processes.iter().try_for_each(|process| signal(*process, number));
    to_all(libc::SIGSTOP)?;
    let failed =
        (0..sends).find(|_| sends_turn(connection, &buffer) != BYTES as isize).map(|_| io::Error::last_os_error());
    to_all(libc::SIGCONT)?;
    failed.map_or(Ok(sends), Err)
}

fn signal(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::kill(process, signal) }).map(drop)
}

/// The counted function: one call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sends_turn(connection: i32, buffer: &[u8; BYTES]) -> isize {
    // SAFETY: the buffer has that many bytes.
    unsafe { libc::write(connection, buffer.as_ptr().cast(), buffer.len()) }
}
