//! A rule that lets programs of two network namespaces be joined.

use super::cidr::Cidr;
use super::process_filter::ProcessFilter;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Connections of `from` to listeners of `to` may go ring to ring. Where no rule says so, they never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRule {
    /// The stack of the connecting program's namespace.
    pub from: String,
    /// The stack of the listener's namespace.
    pub to: String,
    /// The connecting processes.
    pub processes: ProcessFilter,
    /// The listener's addresses. They are required: the connecting program's stack asks the listener's for these alone.
    pub local: Cidr,
    /// The listener's ports.
    pub ports: Option<RangeInclusive<u16>>,
}

impl JoinRule {
    /// Does it allow a connection to this listener? The namespaces and the process are not checked here.
    pub fn covers(&self, listener: SocketAddr) -> bool {
        self.local.contains(listener.ip()) && self.ports.as_ref().is_none_or(|ports| ports.contains(&listener.port()))
    }

    /// Is it about this stack?
    pub fn is_about(&self, stack: &str) -> bool {
        self.from == stack || self.to == stack
    }
}

impl fmt::Display for JoinRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "join from {} to {}{} on {}", self.from, self.to, self.processes, self.local)?;
        if let Some(ports) = &self.ports {
            write!(f, " port {}", ports.start())?;
            if ports.start() != ports.end() {
                write!(f, "-{}", ports.end())?;
            }
        }
        Ok(())
    }
}
