//! The ports of connections whose sockets are not bound.

use super::SlowPath;
use super::config::SlowConfig;
use super::host::Host;
use crate::time::Micros;
use std::collections::HashSet;

/// How long a step of held ports stays a user's when no tuple uses it, µs.
const IDLE_US: u64 = 60_000_000;
/// How often held ports that are idle are looked for, µs.
const LOOK_US: u64 = 10_000_000;
/// A user may have this many times the ports that are left. So the last ones are never one user's.
const TIMES_THE_REST: usize = 3;

/// The ports of unbound connections.
#[derive(Debug)]
pub(super) enum EphemeralPorts {
    /// First and last of a range.
    Range(u16, u16),
    /// Those that the host holds.
    Held(HeldSteps),
}

/// A set of ports in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// The first step of this user, or the whole range. It is small, so that the others become idle.
    First(u32),
    /// This user's other steps.
    Rest(u32),
    /// This user's last step.
    Last(u32),
    /// All users' steps.
    Everybodys,
}

/// The answer to a user who needs more ports than he has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// His last step is new.
    His,
    /// All ports are somebody's. He may use those of others.
    Shared,
    /// He has his share.
    None,
}

/// Ports that the host holds, in the steps in which it gave them. Each step is one user's or nobody's.
#[derive(Debug)]
pub(super) struct HeldSteps {
    /// Ports that the host can hold at most.
    most: usize,
    steps: Vec<Step>,
    /// When idle steps are looked for. `None`: all are nobody's.
    next_look: Option<Micros>,
}

#[derive(Debug)]
struct Step {
    user: Option<u32>,
    ports: Vec<u16>,
    /// When a tuple was last seen to use one of them.
    used_at: Micros,
}

impl HeldSteps {
    fn of(&self, user: u32) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.user == Some(user))
    }

    /// The next step for this user.
    fn more(&mut self, now: Micros, user: u32, hold: impl FnOnce() -> Vec<u16>) -> More {
        let owned: usize = self.steps.iter().filter(|step| step.user.is_some()).map(|step| step.ports.len()).sum();
        let his: usize = self.of(user).map(|step| step.ports.len()).sum();
        let left = self.most.saturating_sub(owned);
        if his > 0 && his >= TIMES_THE_REST * left {
            return More::None;
        }
        let step = match self.steps.iter().position(|step| step.user.is_none()) {
            Some(nobodys) => self.steps.remove(nobodys).ports,
            None => hold(),
        };
        if step.is_empty() {
            return More::Shared;
        }
        self.steps.push(Step { user: Some(user), ports: step, used_at: now });
        self.next_look.get_or_insert(now.after(LOOK_US));
        More::His
    }

    /// Takes idle steps from their users. Returns the ports that the host need not hold any more: one step stays.
    fn end_idle(&mut self, now: Micros, used: &HashSet<u16>) -> Vec<u16> {
        for step in &mut self.steps {
            if step.ports.iter().any(|port| used.contains(port)) {
                step.used_at = now;
            } else if now.since(step.used_at) >= IDLE_US {
                step.user = None;
            }
        }
        let (mut kept, mut idle) = (false, Vec::new());
        self.steps.retain_mut(|step| {
            let stays = step.user.is_some() || !std::mem::replace(&mut kept, true);
            if !stays {
                idle.append(&mut step.ports);
            }
            stays
        });
        self.next_look = self.steps.iter().any(|step| step.user.is_some()).then(|| now.after(LOOK_US));
        idle
    }
}

impl EphemeralPorts {
    /// The ports to begin with.
    pub fn new(config: &SlowConfig) -> Self {
        let (first, last) = (config.first_port, config.last_port.max(config.first_port));
        match config.held_ports {
            true => Self::Held(HeldSteps { most: usize::from(last - first) + 1, steps: Vec::new(), next_look: None }),
            false => Self::Range(first, last),
        }
    }

    fn steps(&self, set: Set) -> impl Iterator<Item = &[u16]> {
        let held = match self {
            Self::Range(..) => &[][..],
            Self::Held(held) => &held.steps[..],
        };
        let of = |user: u32| held.iter().filter(move |step| step.user == Some(user)).count();
        let (user, from, to) = match set {
            Set::First(user) => (Some(user), 0, 1),
            Set::Rest(user) => (Some(user), 1, usize::MAX),
            Set::Last(user) => (Some(user), of(user).saturating_sub(1), usize::MAX),
            Set::Everybodys => (None, 0, usize::MAX),
        };
        let steps = held.iter().filter(move |step| user.is_none() || step.user == user);
        steps.skip(from).take(to).map(|step| &step.ports[..])
    }

    /// How many there are in a set.
    pub fn count(&self, set: Set) -> u32 {
        match (self, set) {
            (Self::Range(first, last), Set::First(_)) => u32::from(last - first) + 1,
            _ => self.steps(set).map(|ports| ports.len() as u32).sum(),
        }
    }

    /// Port number `i` of a set, counted on from the first after the last.
    pub fn nth(&self, set: Set, i: u32) -> Option<u16> {
        let mut i = i.checked_rem(self.count(set))?;
        if let Self::Range(first, _) = self {
            return Some(first + i as u16);
        }
        self.steps(set).find_map(|ports| match ports.get(i as usize) {
            None => {
                i -= ports.len() as u32;
                None
            }
            found => found.copied(),
        })
    }

    /// More ports for this user. `hold` asks the host for them.
    pub fn more(&mut self, now: Micros, user: u32, hold: impl FnOnce() -> Vec<u16>) -> More {
        match self {
            Self::Range(..) => More::None,
            Self::Held(held) => held.more(now, user, hold),
        }
    }

    /// When idle ports are looked for.
    pub fn next_look(&self) -> Option<Micros> {
        match self {
            Self::Range(..) => None,
            Self::Held(held) => held.next_look,
        }
    }
}

impl SlowPath {
    /// Gives back to the host what no connection has used for a while.
    pub(super) fn give_back_ports(&mut self, now: Micros, host: &mut dyn Host) {
        let EphemeralPorts::Held(held) = &mut self.ports else { return };
        if held.next_look.is_none_or(|look| look > now) {
            return;
        }
        let connections = self.table.iter().map(|(_, connection)| connection.tuple.local_port);
        let used = connections.chain(self.time_wait.iter().map(|tuple| tuple.local_port)).collect();
        let idle = held.end_idle(now, &used);
        if !idle.is_empty() {
            host.give_back_ports(idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_of_a_user_is_the_last_of_his_own() {
        let config = SlowConfig { first_port: 100, last_port: 199, held_ports: true, ..SlowConfig::default() };
        let mut ports = EphemeralPorts::new(&config);
        for (user, first) in [(1, 100), (2, 110), (2, 120), (2, 130), (1, 140)] {
            assert_eq!(ports.more(Micros(0), user, || (first..first + 10).collect()), More::His);
        }
        let last = |user| (ports.count(Set::Last(user)), ports.nth(Set::Last(user), 0));
        assert_eq!((last(1), last(2)), ((10, Some(140)), (10, Some(130))));
    }
}
