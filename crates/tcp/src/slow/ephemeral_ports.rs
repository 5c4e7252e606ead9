//! The ports of connections whose sockets are not bound.

use super::config::SlowConfig;

/// A set of ports in a fixed order.
#[derive(Debug)]
pub(super) enum EphemeralPorts {
    /// First and last of a range.
    Range(u16, u16),
    /// Those that the host holds, in the order in which it gave them.
    Held(Vec<u16>),
}

impl EphemeralPorts {
    /// The ports to begin with.
    pub fn new(config: &SlowConfig) -> Self {
        if config.held_ports {
            return Self::Held(Vec::new());
        }
        Self::Range(config.first_port, config.last_port.max(config.first_port))
    }
    /// How many there are.
    pub fn count(&self) -> u32 {
        match self {
            Self::Range(first, last) => u32::from(last - first) + 1,
            Self::Held(ports) => ports.len() as u32,
        }
    }
    /// Port number `i`, counted on from the first after the last.
    pub fn nth(&self, i: u32) -> Option<u16> {
        let i = i.checked_rem(self.count())?;
        match self {
            Self::Range(first, _) => Some(first + i as u16),
            Self::Held(ports) => ports.get(i as usize).copied(),
        }
    }
    /// Adds ports that the host holds from now on.
    pub fn add(&mut self, more: Vec<u16>) {
        if let Self::Held(ports) = self {
            ports.extend(more);
        }
    }
}
