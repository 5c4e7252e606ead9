//! The descriptor broker: one thread that acts in the service's own descriptor table.
//!
//! Each client connection has a descriptor table of its own ([`crate::descriptor_table`]). So work on descriptors of
//! the stack, or of several clients, is sent to this thread.

use crate::broker_handle::BrokerRequest;
use crate::descriptor_transfer;
use crate::state::ServiceState;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::mpsc::Receiver;
use towpath_ring::control::{Reply, send_reply};
use towpath_runtime::{Reservation, SharedFile};

/// Serves requests until [`BrokerRequest::Quit`].
pub fn run(state: &ServiceState, requests: &Receiver<BrokerRequest>, transfer: &OwnedFd) {
    let received = || descriptor_transfer::receive(transfer.as_fd()).pop();
    while let Ok(request) = requests.recv() {
        match request {
            BrokerRequest::Context { token, done } => {
                // The descriptor must leave the socket whether it is used or not.
                let doorbell = received();
                let operator = |uid| state.settings.live.admission().is_operator(uid);
                let context = doorbell.as_ref().and_then(|_| state.registry().take_context(token, operator));
                let opened = doorbell.zip(context).map(|(doorbell, (id, number))| {
                    state.registry().keep_doorbell(token, number, &doorbell);
                    state.stack.add_context(id, number, doorbell);
                    number
                });
                let _ = done.send(opened);
            }
            BrokerRequest::Pair { connection, id, pair } => {
                let found = state.stack.pair(id, pair.0, pair.1);
                let found = found.map(|p| (Reply::Pair { pair: pair.1, geometry: p.geometry }, p.memfd));
                answer(state, connection, found);
            }
            BrokerRequest::Doorbell { connection, id, pair, context } => {
                let peer = state.stack.pair(id, pair.0, pair.1).map(|pair| pair.peer);
                let doorbell = peer.and_then(|peer| state.registry().open_doorbell(peer, context));
                answer(state, connection, doorbell.map(|doorbell| (Reply::Doorbell { context }, doorbell)));
            }
            BrokerRequest::DropContexts { token, contexts } => drop_contexts(state, token, contexts),
            BrokerRequest::Reserve { id, slot, seq, proof, done } => {
                let mut descriptors = descriptor_transfer::receive(transfer.as_fd()).into_iter();
                let reservation = descriptors.next().map(|held| Reservation { port: descriptors.next(), held, proof });
                let kept = reservation.map(|reservation| state.stack.reserve(id, slot, seq, reservation));
                let _ = done.send(kept.map(|()| slot));
            }
            BrokerRequest::File { id, process, replaces, done } => {
                let file = received().map(|file| SharedFile { process, replaces, file });
                let _ = done.send(file.and_then(|file| state.stack.add_file(id, file).ok()));
            }
            BrokerRequest::Hangup { id, slot, generation } => state.stack.hangup(id, slot, generation),
            BrokerRequest::ProcessExited { id, process } => state.stack.departed(id, process),
            BrokerRequest::Left { token } => left(state, token),
            BrokerRequest::Ended { connection } => ended(state, connection),
            BrokerRequest::Quit => break,
        }
    }
}

/// Answers a process that has asked for a descriptor.
fn answer(state: &ServiceState, connection: u64, answer: Option<(Reply, OwnedFd)>) {
    let Some(socket) = state.registry().connections.get(&connection).map(|c| c.socket.clone()) else { return };
    // The socket does not block: a client that does not read its answers gets none.
    let _ = match answer {
        Some((reply, descriptor)) => send_reply(socket.as_fd(), &reply, &[descriptor.as_fd()]),
        None => send_reply(socket.as_fd(), &Reply::Refused { errno: Errno::NOENT.raw_os_error() }, &[]),
    };
}

fn drop_contexts(state: &ServiceState, token: u64, contexts: u64) {
    let Some(id) = state.registry().clients.get(&token).map(|client| client.id) else { return };
    for number in (0..u64::BITS).filter(|n| contexts & (1 << n) != 0) {
        state.stack.drop_context(id, number);
    }
    // Another connection may get these numbers only after the stack has dropped them.
    state.registry().free_contexts(token, contexts);
}

fn left(state: &ServiceState, token: u64) {
    // The memfd is closed last: this thread, and none that serves others, gives the region's memory back.
    let Some(client) = state.registry().leave(token) else { return };
    let id = client.id;
    tracing::debug!(client = id.0, "client has gone");
    state.stack.remove_client(id);
    drop(client);
    state.settings.policy.leave(id);
    state.settings.auto.leave(id);
}

fn ended(state: &ServiceState, number: u64) {
    let thread = state.registry().connections.get_mut(&number).and_then(|c| c.thread.take());
    // The thread must drop its handle of the socket first, so that the descriptor is closed in this table.
    if let Some(thread) = thread {
        let _ = thread.join();
    }
    state.registry().remove_connection(number);
    state.wake();
}
