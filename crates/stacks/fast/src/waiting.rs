//! Commands that wait for the proof of their port.

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

/// At most one command for each slot.
#[derive(Debug, Default)]
pub struct WaitingCommands(Vec<(WaitingCommand, Micros)>);

impl WaitingCommands {
    /// Adds a command. One that waits already goes on as before.
    pub fn add(&mut self, now: Micros, command: WaitingCommand) {
        let same = |known: &WaitingCommand| (known.client, known.slot) == (command.client, command.slot);
        match self.0.iter_mut().find(|(known, _)| same(known)) {
            Some((known, _)) if known.seq == command.seq => {}
            Some(known) => *known = (command, now.after(WAIT_US)),
            None => self.0.push((command, now.after(WAIT_US))),
        }
    }

    /// Removes the command of a slot. False: there is none.
    pub fn remove(&mut self, client: ClientId, slot: Slot) -> bool {
        let at = self.0.iter().position(|(known, _)| (known.client, known.slot) == (client, slot));
        at.map(|at| self.0.swap_remove(at)).is_some()
    }

    /// Takes a command whose time is up.
    pub fn take_expired(&mut self, now: Micros) -> Option<WaitingCommand> {
        let at = self.0.iter().position(|(_, until)| *until <= now)?;
        Some(self.0.swap_remove(at).0)
    }

    /// When the next one expires.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.0.iter().map(|(_, until)| *until).min()
    }
}
