//! The same echo server by the native API, whose every request is exactly: `wait` (ready already), `received`,
//! `reserve`, one copy, `commit`, `consume`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use towpath_native::{Connection, Event, Listener, Readiness, Stack};

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// Time for an event to arrive.
const SETTLE: Duration = Duration::from_micros(200);

/// Listens, accepts one connection, echoes until its end; the number of requests counted.
pub fn run(address: Ipv4Addr, port: u16, requests: u64) -> io::Result<u64> {
    let mut stack = Stack::open()?;
    let mut listener = Listener::bind(&stack, SocketAddr::from((address, port)), 16)?;
    listener.set_nodelay(true);
    println!("ready");
    let mut connection = loop {
        match listener.accept() {
            Ok((connection, _)) => break connection,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    };
    stack.watch(&connection, 7)?;
    let (mut counted, mut missed) = (0, 0);
    while counted < requests {
        // Waits outside the counted function until a whole request is there.
        if !connection.wait(Readiness::READABLE, LIMIT)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // The stack publishes the bytes first, and the event after that.
        std::thread::sleep(SETTLE);
        match native_turn(&mut stack, &mut connection) {
            0 => break,
            n if n < 0 => missed += 1,
            _ => counted += 1,
        }
        // Only requests count, not waits that return too early.
        if missed > 8 + counted / 100 {
            return Err(io::Error::other("no event, nothing received, or no room"));
        }
    }
    Ok(counted)
}

/// The counted function. Bytes echoed, 0 at the end, -1 for an error.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn native_turn(stack: &mut Stack, connection: &mut Connection) -> isize {
    let mut events = [Event::default(); 1];
    if !matches!(stack.wait(&mut events, Some(Duration::ZERO)), Ok(1)) {
        return -1;
    }
    let (mut receiver, mut sender) = connection.split();
    let Ok(received) = receiver.received() else { return -1 };
    if received.is_empty() {
        return 0;
    }
    let Ok(mut room) = sender.reserve(received.len()) else { return -1 };
    room.put_received(&received);
    let count = room.commit();
    receiver.consume(count);
    count as isize
}
