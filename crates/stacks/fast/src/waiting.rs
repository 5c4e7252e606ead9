//! Commands that wait: for the proof of their port, or for their route.

use std::collections::{HashMap, VecDeque};
use towpath_ring::Slot;
use towpath_runtime::ClientId;
use towpath_tcp::time::Micros;

/// How long a command waits, µs. The library sends the proof before the command.
const WAIT_US: u64 = 2_000_000;

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingCommand {
    /// Its client.
    pub client: ClientId,
    /// Its slot.
    pub slot: Slot,
    /// Its number.
    pub seq: u32,
}

/// At most one command for each slot. Every call takes constant time, because clients decide how many wait.
#[derive(Debug, Default)]
pub struct WaitingCommands {
    /// The number of the command that waits, and until when.
    waiting: HashMap<(ClientId, u32), (u32, Micros)>,
    /// In the order of their ends. Some of these no longer wait.
    deadlines: VecDeque<(Micros, WaitingCommand)>,
}

impl WaitingCommands {
    /// Adds a command. False: another command of the slot has no answer yet, which breaks the contract.
    pub fn add(&mut self, now: Micros, command: WaitingCommand) -> bool {
        let key = (command.client, command.slot.raw());
        if let Some((seq, _)) = self.waiting.get(&key) {
            return *seq == command.seq;
        }
        let until = now.after(WAIT_US);
        self.waiting.insert(key, (command.seq, until));
        self.deadlines.push_back((until, command));
        true
    }

    /// Removes the command of a slot. False: there is none.
    pub fn remove(&mut self, client: ClientId, slot: Slot) -> bool {
        self.waiting.remove(&(client, slot.raw())).is_some()
    }

    /// Takes a command whose time is up.
    pub fn take_expired(&mut self, now: Micros) -> Option<WaitingCommand> {
        while let Some((until, command)) = self.deadlines.front().copied().filter(|(until, _)| *until <= now) {
            self.deadlines.pop_front();
            let key = (command.client, command.slot.raw());
            if self.waiting.get(&key) == Some(&(command.seq, until)) {
                self.waiting.remove(&key);
                return Some(command);
            }
        }
        None
    }

    /// When the next one expires.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.deadlines.front().map(|(until, _)| *until)
    }
}

/// How long a command waits for its route, µs: a neighbour of a network without troubles has answered long before.
const ROUTE_US: u64 = 10_000;

/// A command that waits for its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteWait {
    /// Its slot.
    pub slot: Slot,
    /// Until when.
    pub until: Micros,
    /// The policy's verdict, which is asked for once.
    pub congestion: u8,
}

/// At most one command for each slot. They are few, as they wait for a moment.
#[derive(Debug, Default)]
pub struct RouteWaits(HashMap<(ClientId, u32), RouteWait>);

impl RouteWaits {
    /// The one of a slot.
    pub fn get(&self, client: ClientId, slot: Slot) -> Option<RouteWait> {
        self.0.get(&(client, slot.raw())).copied()
    }

    /// May the command wait, or wait longer? If not, it waits no more.
    pub fn wait(&mut self, now: Micros, client: ClientId, slot: Slot, congestion: u8) -> bool {
        let new = RouteWait { slot, until: now.after(ROUTE_US), congestion };
        let may = self.0.entry((client, slot.raw())).or_insert(new).until > now;
        if !may {
            self.remove(client, slot);
        }
        may
    }

    /// The command of a slot waits no more.
    pub fn remove(&mut self, client: ClientId, slot: Slot) {
        self.0.remove(&(client, slot.raw()));
    }

    /// Those to look at now: all, or those that have waited long enough.
    pub fn due(&self, now: Micros, all: bool) -> Vec<(ClientId, RouteWait)> {
        let due = self.0.iter().filter(|(_, wait)| all || wait.until <= now);
        due.map(|((client, _), wait)| (*client, *wait)).collect()
    }

    /// When the next one has waited long enough.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.0.values().map(|wait| wait.until).min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_ring::{Geometry, Layout};

    #[test]
    fn a_slot_has_one_command_that_waits_until_its_proof_comes_or_its_time_is_up() {
        let layout = Layout::new(Geometry { slots: 16, app_slots: 8, ..Geometry::DEFAULT }).unwrap();
        let command = |raw, seq| WaitingCommand { client: ClientId(1), slot: layout.slot(raw).unwrap(), seq };
        let mut waiting = WaitingCommands::default();
        assert!(waiting.add(Micros(0), command(1, 5)) && waiting.add(Micros(9), command(1, 5)));
        assert!(waiting.add(Micros(10), command(2, 7)));
        assert!(!waiting.add(Micros(10), command(2, 8)), "the last one has no answer");
        assert!(!waiting.remove(ClientId(2), command(2, 7).slot), "another client's slot");
        assert!(waiting.remove(ClientId(1), command(1, 5).slot));
        assert!(waiting.add(Micros(20), command(1, 6)), "and waits again");
        assert_eq!(waiting.take_expired(Micros(WAIT_US + 9)), None);
        assert_eq!(waiting.next_deadline(), Some(Micros(WAIT_US + 10)));
        let expired: Vec<_> = std::iter::from_fn(|| waiting.take_expired(Micros(WAIT_US + 20))).collect();
        assert_eq!(expired, [command(2, 7), command(1, 6)]);
        assert_eq!((waiting.next_deadline(), waiting.waiting.len()), (None, 0));
    }

    #[test]
    fn a_command_waits_for_its_route_once_and_not_for_long() {
        let layout = Layout::new(Geometry { slots: 16, app_slots: 8, ..Geometry::DEFAULT }).unwrap();
        let (client, slot, other) = (ClientId(1), layout.slot(1).unwrap(), layout.slot(2).unwrap());
        let mut waits = RouteWaits::default();
        assert!(waits.wait(Micros(0), client, slot, 3) && waits.wait(Micros(ROUTE_US - 1), client, slot, 4));
        assert!(waits.wait(Micros(5), client, other, 0));
        assert_eq!(waits.get(client, slot).map(|wait| (wait.congestion, wait.until)), Some((3, Micros(ROUTE_US))));
        assert_eq!((waits.due(Micros(ROUTE_US), false).len(), waits.due(Micros(0), true).len()), (1, 2));
        assert_eq!(waits.next_deadline(), Some(Micros(ROUTE_US)));
        assert!(!waits.wait(Micros(ROUTE_US), client, slot, 0), "its time is up");
        waits.remove(client, other);
        assert_eq!((waits.next_deadline(), waits.get(client, slot)), (None, None));
    }
}
