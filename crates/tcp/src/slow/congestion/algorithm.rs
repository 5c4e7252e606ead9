//! Which algorithm a connection uses, by Linux's names.

use super::{CongestionControl, NewReno};
use std::fmt;
use std::net::IpAddr;

/// The algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// NewReno (RFC 5681, RFC 6582).
    #[default]
    Reno,
}

impl Algorithm {
    /// Those that have no parameter, in the order of their numbers.
    pub const NAMED: [Self; 1] = [Self::Reno];

    /// Its name, as in `/proc/sys/net/ipv4/tcp_available_congestion_control`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
        }
    }

    /// By name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Its number in [`SocketOptions::congestion`](crate::flow::SocketOptions::congestion); 0 is nobody's.
    pub fn id(self) -> u8 {
        match self {
            Self::Reno => 1,
        }
    }

    /// By number; `None` for 0 (the default) and for an unknown one.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::NAMED.into_iter().find(|algorithm| algorithm.id() == id)
    }

    /// A new flow's state.
    pub fn start(self) -> Box<dyn CongestionControl> {
        match self {
            Self::Reno => Box::new(NewReno),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Connections to these destinations use another algorithm than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionRoute {
    /// Any address of the network.
    pub network: IpAddr,
    /// How many bits of it count.
    pub prefix: u8,
    /// What they use.
    pub algorithm: Algorithm,
}

impl CongestionRoute {
    /// Is this destination in the network?
    fn covers(&self, destination: IpAddr) -> bool {
        let differing = match (self.network, destination) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differing >= u32::from(self.prefix)
    }

    /// The longest match, as routes have it.
    pub fn find(routes: &[Self], destination: IpAddr) -> Option<Algorithm> {
        let matching = routes.iter().filter(|route| route.covers(destination));
        matching.max_by_key(|route| route.prefix).map(|route| route.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_the_algorithm() {
        for algorithm in Algorithm::NAMED {
            assert_eq!(Algorithm::parse(algorithm.name()), Some(algorithm));
            assert_eq!(Algorithm::from_id(algorithm.id()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_id(0), None);
        assert_eq!(Algorithm::from_id(255), None);
        for unknown in ["", "Reno", "reno ", "vegas"] {
            assert_eq!(Algorithm::parse(unknown), None, "{unknown:?}");
        }
    }
}
