//! Limits on what a program may use.

use super::process_filter::ProcessFilter;
use std::fmt;

/// A limit of the list. All clients whose first limit it is share it, so a program that is started twice has no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRule {
    /// The processes that it is about.
    pub processes: ProcessFilter,
    /// Payload bytes per second.
    pub rate: Option<u64>,
    /// The weight of its clients. Other clients have 1.
    pub weight: Option<u16>,
    /// Connections.
    pub connections: Option<u32>,
    /// New connections per second.
    pub new_per_s: Option<u32>,
}

/// The units of `tc`: bits in powers of 1000, and bytes (`bps`).
const UNITS: [(&str, u64, u64); 8] = [
    ("gbit", 1_000_000_000, 8),
    ("mbit", 1_000_000, 8),
    ("kbit", 1000, 8),
    ("gbps", 1_000_000_000, 1),
    ("mbps", 1_000_000, 1),
    ("kbps", 1000, 1),
    ("bit", 1, 8),
    ("bps", 1, 1),
];

/// Reads a rate (`1gbit`, `500kbit`, `10mbps`) in bytes per second.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no rate; write \"1gbit\", \"500kbit\", or in bytes \"10mbps\"");
    let (_, factor, divisor) = UNITS.iter().find(|(name, ..)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(*factor).ok_or_else(wrong)? / divisor;
    if bytes == 0 { Err(wrong()) } else { Ok(bytes) }
}

/// A rate in the largest unit of bits that has no fraction.
fn show_rate(bytes_per_s: u64) -> String {
    let bits = u128::from(bytes_per_s) * 8;
    let fits = UNITS.iter().find(|(name, factor, _)| name.ends_with("bit") && bits.is_multiple_of(u128::from(*factor)));
    fits.map_or_else(|| format!("{bits}bit"), |(name, factor, _)| format!("{}{name}", bits / u128::from(*factor)))
}

impl fmt::Display for LimitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit{}", self.processes)?;
        if let Some(rate) = self.rate {
            write!(f, " rate {}", show_rate(rate))?;
        }
        if let Some(weight) = self.weight {
            write!(f, " weight {weight}")?;
        }
        if let Some(connections) = self.connections {
            write!(f, " connections {connections}")?;
        }
        match self.new_per_s {
            Some(new) => write!(f, " new {new}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_have_the_units_of_tc() {
        let cases = [
            ("1gbit", 125_000_000, "1gbit"),
            ("500kbit", 62_500, "500kbit"),
            ("10mbps", 10_000_000, "80mbit"),
            ("8bit", 1, "8bit"),
            ("3bps", 3, "24bit"),
            ("1500kbit", 187_500, "1500kbit"),
        ];
        for (text, bytes, shown) in cases {
            assert_eq!(parse_rate(text).unwrap(), bytes, "{text}");
            assert_eq!(show_rate(bytes), shown);
        }
        for wrong in ["1", "gbit", "1Gbit", "7bit", "-1gbit", "1.5gbit", "99999999999999gbit"] {
            assert!(parse_rate(wrong).unwrap_err().contains("is no rate"), "{wrong}");
        }
    }
}
