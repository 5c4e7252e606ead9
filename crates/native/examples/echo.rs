//! An echo server: `echo 127.0.0.1:7777`. Received bytes are copied once, from the one ring into the other.
use std::collections::HashMap;
use std::io;
use towpath_native::{Connection, Event, Listener, Stack};

const LISTENER: u64 = 0;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let address = address.parse().map_err(io::Error::other)?;
    let mut stack = Stack::open()?;
    let mut listener = Listener::bind(&stack, address, 1024)?;
    stack.watch(&listener, LISTENER)?;
    println!("ready on {}", listener.local_addr());
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut last = LISTENER;
    let mut events = [Event::default(); 64];
    loop {
        let count = stack.wait(&mut events, None)?;
        for event in &events[..count] {
            if event.token == LISTENER {
                while let Some((connection, _)) = ready(listener.accept())? {
                    last += 1;
                    stack.watch(&connection, last)?;
                    connections.insert(last, connection);
                }
            } else if let Some(connection) = connections.get_mut(&event.token)
                && !echo(connection).unwrap_or(false)
            {
                // Dropped, it is closed.
                connections.remove(&event.token);
            }
        }
    }
}

/// Sends back all that is there, as far as there is room. False: the peer has ended its stream, and has everything
/// back.
fn echo(connection: &mut Connection) -> io::Result<bool> {
    let (mut receiver, mut sender) = connection.split();
    loop {
        let Some(received) = ready(receiver.received())? else { return Ok(true) };
        if received.is_empty() {
            return Ok(false);
        }
        // No room: the event that there is some again comes here, too.
        let Some(mut room) = ready(sender.reserve(received.len()))? else { return Ok(true) };
        room.put_received(&received);
        receiver.consume(room.commit());
    }
}

/// `None` instead of the error that there is nothing to do now.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
