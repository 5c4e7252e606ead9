//! The echo server: one thread, level-triggered epoll.

use crate::sys;
use std::io;
use std::net::SocketAddrV4;

const LISTENER: u64 = u64::MAX;

/// Bytes of a connection that were read and could not be sent back yet.
#[derive(Default)]
struct PendingEcho {
    pending: Vec<u8>,
    sent: usize,
}

/// Arguments of the server.
#[derive(clap::Args)]
pub struct Options {
    /// Address to listen on, such as 10.77.0.1:9000.
    listen: SocketAddrV4,
    /// Ask for events again and again instead of sleeping.
    #[arg(long)]
    spin: bool,
}

/// Serves until killed.
pub fn run(options: &Options) -> io::Result<()> {
    sys::raise_limit();
    let wait_ms = if options.spin { 0 } else { -1 };
    let listener = sys::listen(options.listen)?;
    let epoll = sys::epoll()?;
    sys::watch(epoll, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN, LISTENER)?;
    println!("ready");
    let mut connections: Vec<Option<PendingEcho>> = Vec::new();
    let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
    let mut buffer = vec![0; 65536];
    loop {
        let ready = sys::wait(epoll, &mut events, wait_ms)?;
        for event in &events[..ready] {
            let (data, what) = (event.u64, event.events as i32);
            if data == LISTENER {
                while let Some(fd) = sys::accept(listener)? {
                    if connections.len() <= fd as usize {
                        connections.resize_with(fd as usize + 1, || None);
                    }
                    connections[fd as usize] = Some(PendingEcho::default());
                    sys::watch(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, fd as u64)?;
                }
                continue;
            }
            let fd = data as i32;
            let Some(connection) = connections.get_mut(fd as usize).and_then(Option::as_mut) else { continue };
            if serve(epoll, fd, what, connection, &mut buffer).is_err() {
                connections[fd as usize] = None;
                sys::close(fd);
            }
        }
    }
}

/// One event; an error ends the connection.
fn serve(epoll: i32, fd: i32, what: i32, connection: &mut PendingEcho, buffer: &mut [u8]) -> io::Result<()> {
    if connection.sent < connection.pending.len() {
        if let Some(n) = sys::write(fd, &connection.pending[connection.sent..])? {
            connection.sent += n;
        }
        if connection.sent < connection.pending.len() {
            return Ok(());
        }
        connection.pending.clear();
        connection.sent = 0;
        sys::watch(epoll, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN, fd as u64)?;
    }
    if what & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) == 0 {
        return Ok(());
    }
    match sys::read(fd, buffer)? {
        None => Ok(()),
        Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(n) => {
            let sent = sys::write(fd, &buffer[..n])?.unwrap_or(0);
            if sent < n {
                connection.pending.extend_from_slice(&buffer[sent..n]);
                sys::watch(epoll, libc::EPOLL_CTL_MOD, fd, libc::EPOLLOUT, fd as u64)?;
            }
            Ok(())
        }
    }
}
