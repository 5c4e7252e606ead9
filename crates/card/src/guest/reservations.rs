//! The ports that the host keeps reserved for this card's sockets. The stack gets the writing end of a pipe for each, and drops it when
//! the port is free again; that is passed on.

use super::post::Post;
use crate::message::FromCard;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::PipeFlags;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// What the end has for a number; the first reservation has 1.
const END: u64 = 0;

/// Which: place, slot, number of the command.
type Key = (u32, u32, u32);

/// Those that there are, by a number that each has for itself.
#[derive(Default)]
struct Kept {
    last: u64,
    all: HashMap<u64, (OwnedFd, Key)>,
}

/// All of them.
pub struct Reservations {
    epoll: OwnedFd,
    /// Rung when nobody is to be told any more.
    end: OwnedFd,
    kept: Mutex<Kept>,
}

impl Reservations {
    /// None yet; passes on over `messages`.
    pub fn start(messages: Arc<dyn Post>) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let end = towpath_ring::wake::doorbell()?;
        epoll::add(&epoll, &end, epoll::EventData::new_u64(END), epoll::EventFlags::IN)?;
        let all = Arc::new(Self { epoll, end, kept: Mutex::default() });
        let watched = Arc::clone(&all);
        std::thread::Builder::new().name("reservations".into()).spawn(move || watched.watch(&*messages))?;
        Ok(all)
    }
    /// Passes on no more.
    pub fn end(&self) {
        towpath_ring::wake::ring(self.end.as_fd());
    }
    /// One more: what the stack keeps.
    pub fn add(&self, place: u32, slot: u32, seq: u32) -> io::Result<OwnedFd> {
        let (ours, stacks) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { last, all } = &mut *kept;
        *last += 1;
        epoll::add(&self.epoll, &ours, epoll::EventData::new_u64(*last), epoll::EventFlags::empty())?;
        all.insert(*last, (ours, (place, slot, seq)));
        Ok(stacks)
    }
    fn watch(&self, messages: &dyn Post) {
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
                let gone = self.kept.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&number);
                if let Some((_, (place, slot, seq))) = gone {
                    let _ = messages.send(0, &FromCard::Freed { place, slot, seq });
                }
            }
        }
    }
}
