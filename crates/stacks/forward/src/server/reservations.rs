//! The ports that the host reserves for sockets here. For each, the stack gets the writing end of a pipe, and drops it
//! when the port is free again. The host is told then.

use crate::lock::lock;
use crate::message::ToHost;
use crate::server::sender::MessageSender;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::PipeFlags;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

/// Event data of the end. Reservations have numbers from 1.
const END: u64 = 0;

/// Client, slot, number of the command.
type ReservationKey = (u32, u32, u32);

/// All reservations, by a number of their own.
#[derive(Default)]
struct Reserved {
    last: u64,
    all: HashMap<u64, (OwnedFd, ReservationKey)>,
}

/// All reservations.
pub struct Reservations {
    epoll: OwnedFd,
    /// Notified when the thread is to end.
    end: OwnedFd,
    reserved: Mutex<Reserved>,
}

impl Reservations {
    /// Starts the thread that sends freed reservations over `messages`.
    pub fn start(messages: Arc<dyn MessageSender>) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let end = towpath_ring::wake::doorbell()?;
        epoll::add(&epoll, &end, epoll::EventData::new_u64(END), epoll::EventFlags::IN)?;
        let all = Arc::new(Self { epoll, end, reserved: Mutex::default() });
        let watched = Arc::clone(&all);
        std::thread::Builder::new().name("reservations".into()).spawn(move || watched.watch(&*messages))?;
        Ok(all)
    }
    /// Ends the thread.
    pub fn end(&self) {
        towpath_ring::wake::notify(self.end.as_fd());
    }
    /// Adds a reservation. Returns the descriptor that the stack keeps.
    pub fn add(&self, index: u32, slot: u32, seq: u32) -> io::Result<OwnedFd> {
        let (ours, stacks) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut reserved = lock(&self.reserved);
        let Reserved { last, all } = &mut *reserved;
        *last += 1;
        epoll::add(&self.epoll, &ours, epoll::EventData::new_u64(*last), epoll::EventFlags::empty())?;
        all.insert(*last, (ours, (index, slot, seq)));
        Ok(stacks)
    }
    fn watch(&self, messages: &dyn MessageSender) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)
                .is_err_and(|error| error != rustix::io::Errno::INTR)
            {
                return;
            }
            for event in &events {
                let number = event.data.u64();
                if number == END {
                    return;
                }
                let gone = lock(&self.reserved).all.remove(&number);
                if let Some((_, (index, slot, seq))) = gone {
                    let _ = messages.send(0, &ToHost::Freed { index, slot, seq });
                }
            }
        }
    }
}
