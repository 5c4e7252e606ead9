//! The congestion control algorithms, by Linux's names.

use super::bbr::Bbr;
use super::constant::Constant;
use super::control::CongestionControl;
use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::dctcp_rate::DctcpRate;
use super::newreno::NewReno;
use super::timely::Timely;
use std::fmt;

/// The algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// NewReno (RFC 5681, RFC 6582).
    Reno,
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// DCTCP (RFC 8257).
    Dctcp,
    /// DCTCP as a rate (TAS).
    DctcpRate,
    /// TIMELY.
    Timely,
    /// BBRv3.
    Bbr,
    /// A constant rate in bytes per second; `u64::MAX` = the socket's `SO_MAX_PACING_RATE`, if set.
    Constant(u64),
}

impl Algorithm {
    /// The algorithms without a parameter, in the order of their numbers.
    pub const NAMED: [Self; 6] = [Self::Reno, Self::Cubic, Self::Dctcp, Self::DctcpRate, Self::Timely, Self::Bbr];

    fn known() -> impl Iterator<Item = Self> {
        Self::NAMED.into_iter().chain([Self::Constant(u64::MAX)])
    }

    /// Its name, as in `/proc/sys/net/ipv4/tcp_available_congestion_control`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
            Self::DctcpRate => "dctcp-rate",
            Self::Timely => "timely",
            Self::Bbr => "bbr",
            Self::Constant(_) => "constant",
        }
    }

    /// Parses a name. A constant rate is `constant:RATE`, in bits per second with an optional suffix `k`, `m` or `g`.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(rate) = name.strip_prefix("constant:") {
            return bits_per_s(rate).map(|bits| Self::Constant(bits / 8));
        }
        Self::known().find(|algorithm| algorithm.name() == name)
    }

    /// Its number in [`SocketOptions::congestion`](crate::flow::SocketOptions::congestion), which is never 0.
    pub fn id(self) -> u8 {
        match self {
            Self::Reno => 1,
            Self::Cubic => 2,
            Self::Dctcp => 3,
            Self::DctcpRate => 4,
            Self::Timely => 5,
            Self::Bbr => 6,
            Self::Constant(_) => 7,
        }
    }

    /// By number; `None` for 0 (the default) and for unknown numbers.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::known().find(|algorithm| algorithm.id() == id)
    }

    /// Is it a form of DCTCP, which needs ECN with the receiver's echo of RFC 8257?
    pub fn needs_ecn(self) -> bool {
        self.name().starts_with("dctcp")
    }

    /// A new flow's state.
    pub fn start(self) -> Box<dyn CongestionControl> {
        match self {
            Self::Reno => Box::new(NewReno),
            Self::Cubic => Box::new(Cubic::default()),
            Self::Dctcp => Box::new(Dctcp::default()),
            Self::DctcpRate => Box::new(DctcpRate::default()),
            Self::Timely => Box::new(Timely::default()),
            Self::Bbr => Box::new(Bbr::default()),
            Self::Constant(bytes_per_s) => Box::new(Constant::new(bytes_per_s)),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(bytes_per_s) if *bytes_per_s != u64::MAX => {
                write!(f, "constant:{}", bytes_per_s.saturating_mul(8))
            }
            _ => f.write_str(self.name()),
        }
    }
}

fn bits_per_s(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1_000),
        (at, 'm' | 'M') => (&text[..at], 1_000_000),
        (at, 'g' | 'G') => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit).filter(|bits| *bits >= 8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_constant_rate_carries_its_rate() {
        for (name, bytes_per_s) in [("8", 1), ("100k", 12_500), ("10m", 1_250_000), ("2G", 250_000_000)] {
            let algorithm = Algorithm::parse(&format!("constant:{name}"));
            assert_eq!(algorithm, Some(Algorithm::Constant(bytes_per_s)), "{name}");
            assert_eq!(Algorithm::parse(&algorithm.unwrap().to_string()), algorithm);
        }
        for wrong in ["", "0", "7", "k", "-8", "+8", "1.5m", "10x", "99999999999999999999", "20000000000g", "ä"] {
            assert_eq!(Algorithm::parse(&format!("constant:{wrong}")), None, "{wrong:?}");
        }
    }

    #[test]
    fn names_and_numbers_lead_back_to_the_algorithm() {
        for algorithm in Algorithm::known() {
            assert_eq!(Algorithm::parse(algorithm.name()), Some(algorithm));
            assert_eq!(Algorithm::from_id(algorithm.id()), Some(algorithm));
            assert_eq!(algorithm.to_string(), algorithm.name());
        }
        assert_eq!(Algorithm::from_id(0), None);
        assert_eq!(Algorithm::from_id(255), None);
        for unknown in ["", "Reno", "reno ", "vegas", "constant ", "constantly"] {
            assert_eq!(Algorithm::parse(unknown), None, "{unknown:?}");
        }
    }
}
