//! A listener's queue of connections that wait to be accepted.

use crate::address::Address;
use crate::doorbell;
use crate::memory;
use crate::socket::Socket;
use crate::sys::Sys;
use core::sync::atomic::Ordering::Relaxed;
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::options::Options;

/// Takes the next connection off a listener's queue; `take` makes it the caller's own. EAGAIN: the caller is a signal
/// handler that has interrupted another `next`.
///
/// A record leaves the queue only after `take`. So wherever a process is killed, the queue or the service knows of the
/// connection.
pub fn next(listener: &Socket, mut take: impl FnMut(&Socket)) -> Sys<Option<(Socket, Address)>> {
    let session = listener.session;
    // A forked child joins its client before it takes the lock.
    session.join();
    let _taking = listener.private().receiving.lock().ok_or(libc::EAGAIN)?;
    while listener.readable() as usize >= Accepted::BYTES {
        let mut bytes = [0; Accepted::BYTES];
        session.region.rx(listener.slot).read(listener.app().rx_head.load(Relaxed), &mut bytes);
        let record = Accepted::from_bytes(&bytes);
        let socket =
            session.region.slot(record.slot).map(|slot| Socket { session, slot, generation: record.generation });
        let good = socket.filter(may_be_taken);
        good.iter().for_each(&mut take);
        listener.view().consume(Accepted::BYTES as u32);
        if let Some(socket) = good {
            // Who comes next comes by the same way, most often. A direct connection needs none of this memory.
            if socket.stack().pair.load(Relaxed) == 0 {
                memory::expect_children(session, Some(socket.slot));
            }
            return Ok(Some((socket, (record.remote_addr, record.remote_port))));
        }
    }
    Ok(None)
}

/// Can this connection be taken? If not, it is ended.
fn may_be_taken(socket: &Socket) -> bool {
    let (session, slot) = (socket.session, socket.slot);
    if session.region.layout().is_app_slot(slot) || socket.is_gone() || socket.state() == state::FREE {
        return false;
    }
    // A process was killed while it took the connection, perhaps half way. Linux too would end the connection then.
    let begun = socket.app().generation.load(Relaxed) == socket.generation;
    if begun || socket.is_out_of_reach() {
        Socket::reset(session, slot, app_flags::CLOSED | app_flags::ABORT);
        socket.adopt();
        doorbell::notify(socket);
        doorbell::notify_commands(session, slot);
        return false;
    }
    true
}

/// An accepted connection begins with its listener's options, here and in the stack.
pub fn inherit_options(listener: &Socket, socket: &Socket) {
    socket.options().post(&Options { priority: 0, ..listener.options().read().1 });
}
