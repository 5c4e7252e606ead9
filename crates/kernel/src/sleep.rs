//! When a thread rests, and what comes due by time.

use crate::core::{Core, EVENTS};
use rustix::event::{Timespec, epoll};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// How long what reserves a port is kept without a command for its slot, and a command without its reservation, µs.
pub const LOOSE_US: u64 = 2_000_000;
/// How soon a listener without room is looked at again, µs: applications that accept ring no door for it.
const CROWDED_US: u64 = 1000;

/// Most sleeps in a row without spinning before.
const LONGEST_REST: u32 = 63;

/// Whether spinning before a sleep is worth it. Where the thread has no CPU of its own it is in vain, because the CPU is taken from
/// whom it waits for; spinning in vain becomes rarer each time, down to every 64th sleep, and coming work makes it usual again.
#[derive(Debug, Default)]
pub struct Patience {
    /// Sleeps still to come without spinning.
    rest: u32,
    /// How many there were after the last time in vain.
    last_rest: u32,
}

impl Patience {
    /// Is the next sleep to come at once?
    pub fn is_spent(&self) -> bool {
        self.rest > 0
    }
    /// Work came. If it did while the thread was spinning, that was worth it.
    pub fn came(&mut self, spinning: bool) {
        if spinning {
            *self = Self::default();
        }
    }
    /// It has slept, after spinning in vain or at once.
    pub fn slept(&mut self, spun: bool) {
        if spun {
            self.last_rest = (2 * self.last_rest + 1).min(LONGEST_REST);
            self.rest = self.last_rest;
        } else {
            self.rest = self.rest.saturating_sub(1);
        }
    }
}

impl Core {
    /// Takes what the kernel has to tell, waiting for it for up to `timeout_us` (`None` = for ever).
    pub fn poll(&mut self, timeout_us: Option<u64>) {
        let timeout = timeout_us
            .map(|us| Timespec { tv_sec: (us / 1_000_000).min(3600) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
        if !self.events.is_empty() {
            return;
        }
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        // An error is a signal, or would come again and again: then nothing has happened.
        if let Ok((events, _)) = epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref()) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }

    /// Sleeps until there is something to do; false = there was already.
    pub fn sleep(&mut self, now: u64) -> bool {
        self.bell.arm();
        let mut pending = self.stop.load(Ordering::Relaxed) || !self.again.is_empty() || !self.events.is_empty();
        for client in self.clients.iter().flatten() {
            let (doors, commands) = (client.shared.region.doors(0), client.shared.region.commands());
            doors.arm();
            commands.arm();
            pending |= !doors.is_empty(client.own.door_head) || !commands.is_empty(client.command_head);
        }
        // Requests ring the bell even while it is not armed, so that none is missed here.
        if !pending {
            self.counts.sleeps += 1;
            let timeout = self.next_deadline().map(|at| at.saturating_sub(now));
            self.poll(timeout);
        }
        self.bell.disarm();
        for client in self.clients.iter().flatten() {
            client.shared.region.doors(0).disarm();
            client.shared.region.commands().disarm();
        }
        !pending
    }

    fn next_deadline(&self) -> Option<u64> {
        let clients = self.clients.iter().flatten();
        let waiting = clients.clone().flat_map(|client| &client.own.waiting).map(|waiting| waiting.until_us).min();
        let loose = clients.clone().any(|client| !client.loose_sockets.is_empty());
        let loose = loose.then(|| towpath_stack::thread::now_us() + LOOSE_US);
        [self.crowded_at, waiting, loose].into_iter().flatten().min()
    }

    /// What comes due by time; how much it was.
    pub fn due(&mut self, now: u64) -> usize {
        let mut work = 0;
        if self.crowded_at.is_some_and(|at| at <= now) {
            self.crowded_at = None;
            for (index, slot) in std::mem::take(&mut self.crowded) {
                self.look(index, slot);
                work += 1;
            }
        }
        for client in self.clients.iter_mut().flatten() {
            client.expire_sockets(now, LOOSE_US);
        }
        self.give_up_waiting(now);
        self.forget_clients();
        work
    }

    /// A listener has no room for connections that the kernel has.
    pub fn crowded(&mut self, index: u32, slot: towpath_ring::Slot) {
        if !self.crowded.contains(&(index, slot)) {
            self.crowded.push((index, slot));
        }
        self.crowded_at.get_or_insert_with(|| towpath_stack::thread::now_us() + CROWDED_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `sleeps` sleeps that nothing came before, those with spinning.
    fn spun(patience: &mut Patience, sleeps: u32) -> u32 {
        let one = |_: &u32| {
            let spins = !patience.is_spent();
            patience.slept(spins);
            spins
        };
        (0..sleeps).filter(one).count() as u32
    }

    #[test]
    fn spinning_in_vain_becomes_rare_and_work_that_comes_makes_it_usual() {
        let mut patience = Patience::default();
        assert_eq!(spun(&mut patience, 640), 15, "1 of 2, of 4, of 8, then of 64");
        while patience.is_spent() {
            patience.slept(false);
        }
        patience.came(false);
        assert_eq!(spun(&mut patience, 64), 1, "work that came at once says nothing");
        patience.came(true);
        assert!(!patience.is_spent());
        assert_eq!(spun(&mut patience, 4), 2);
    }
}
