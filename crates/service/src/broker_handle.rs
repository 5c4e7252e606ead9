//! How other threads reach the descriptor broker ([`crate::descriptor_broker`]).

use crate::descriptor_transfer;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use towpath_runtime::{ClientId, Proof};

/// Work that the broker does in the service's descriptor table.
pub enum BrokerRequest {
    /// Open an event context. The writing end of its doorbell comes through the transfer socket.
    Context {
        /// The client's token.
        token: u64,
        /// Receives the context's number.
        done: SyncSender<Option<u32>>,
    },
    /// Send a pair region over a connection.
    Pair {
        /// The connection's number.
        connection: u64,
        /// The client that asks.
        id: ClientId,
        /// The pair's position and number.
        pair: (u32, u32),
    },
    /// Send the doorbell of the pair's other client over a connection.
    Doorbell {
        /// The connection's number.
        connection: u64,
        /// The client that asks.
        id: ClientId,
        /// The pair's position and number.
        pair: (u32, u32),
        /// The event context of the other client.
        context: u32,
    },
    /// Close event contexts.
    DropContexts {
        /// The client's token.
        token: u64,
        /// One bit per context.
        contexts: u64,
    },
    /// Keep the descriptor that comes through the transfer socket until the slot is freed.
    Reserve {
        /// The client.
        id: ClientId,
        /// Its slot.
        slot: u32,
        /// The sequence number of the command that needs the reservation.
        seq: u32,
        /// What is known of the port.
        proof: Proof,
        /// Receives the slot when the reservation is made.
        done: SyncSender<Option<u32>>,
    },
    /// Give the stack the file that comes through the transfer socket.
    File {
        /// The client.
        id: ClientId,
        /// The process's number.
        process: u32,
        /// The number of a file that this one replaces.
        replaces: u32,
        /// Receives the file's number.
        done: SyncSender<Option<u32>>,
    },
    /// All descriptors of a socket are closed.
    Hangup {
        /// The client.
        id: ClientId,
        /// Its slot.
        slot: u32,
        /// The generation to which the descriptors belonged.
        generation: u32,
    },
    /// One process of this client has ended. Others may be left.
    ProcessExited {
        /// The client.
        id: ClientId,
        /// The process's number.
        process: u32,
    },
    /// A client connection no longer serves this client.
    Left {
        /// The client's token.
        token: u64,
    },
    /// The thread of this connection ends.
    Ended {
        /// The connection's number.
        connection: u64,
    },
    /// End the broker.
    Quit,
}

/// See the module.
pub struct BrokerHandle {
    requests: Mutex<Sender<BrokerRequest>>,
    /// Locked until the broker has taken the descriptor.
    transfer: Mutex<()>,
    /// The sending end of the transfer socket. It has the same number in every client connection's table.
    pub transfer_fd: OwnedFd,
}

impl BrokerHandle {
    /// Sends requests over this channel, and descriptors over this socket.
    pub fn new(requests: Sender<BrokerRequest>, transfer_fd: OwnedFd) -> Self {
        Self { requests: Mutex::new(requests), transfer: Mutex::new(()), transfer_fd }
    }

    /// Posts a request without waiting for it.
    pub fn post(&self, request: BrokerRequest) {
        // Without a receiver the service is ending.
        let _ = self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(request);
    }

    /// Moves descriptors into the service's table and waits for the answer. `None` if the broker did not use them. They
    /// are closed in this table before the broker acts: it has the only ones.
    pub fn transfer(
        &self,
        descriptors: Vec<OwnedFd>,
        request: impl FnOnce(SyncSender<Option<u32>>) -> BrokerRequest,
    ) -> Option<u32> {
        let _one_at_a_time = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        descriptor_transfer::send(self.transfer_fd.as_fd(), &borrowed).ok()?;
        drop(borrowed);
        drop(descriptors);
        let (done, answer) = sync_channel(1);
        self.post(request(done));
        answer.recv().ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::mpsc::channel;

    #[test]
    fn the_broker_has_the_only_descriptor_when_it_is_asked_and_its_answer_is_returned() {
        let kind = SocketType::SEQPACKET;
        let (sending, receiving) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (requests, asked) = channel();
        let handle = BrokerHandle::new(requests, sending);
        let broker = std::thread::spawn(move || {
            let mut had = Vec::new();
            while let Ok(BrokerRequest::Context { token, done }) = asked.recv() {
                let descriptors = descriptor_transfer::receive(receiving.as_fd());
                had.push((token, descriptors.len()));
                let _ = done.send((token != 7).then_some(5));
            }
            had
        });
        let transfer = |token| {
            let file = std::fs::File::open("/dev/null").unwrap().into();
            handle.transfer(vec![file], |done| BrokerRequest::Context { token, done })
        };
        assert_eq!((transfer(6), transfer(7)), (Some(5), None));
        handle.post(BrokerRequest::Quit);
        assert_eq!(broker.join().unwrap(), [(6, 1), (7, 1)]);
        assert_eq!(transfer(6), None, "the service is ending");
    }
}
