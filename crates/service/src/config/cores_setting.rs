//! The key `cores`: how many CPU cores the stack may use.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most cores of any stack.
pub const MAX_CORES: usize = 16;

/// A number, or a range in which the service chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CoresSetting {
    /// Exactly this number.
    Fixed(usize),
    /// As many as pay off, within this range.
    Range(usize, usize),
    /// As many as pay off, from one core to half of the CPUs.
    Auto,
}

impl CoresSetting {
    /// The least number.
    pub fn fewest(self) -> usize {
        match self {
            Self::Fixed(cores) | Self::Range(cores, _) => cores,
            Self::Auto => 1,
        }
    }
    /// The greatest number, on a machine with `cpus` CPUs. `named` of them are configured for the stack (0 = none).
    pub fn most(self, cpus: usize, named: usize) -> usize {
        match self {
            Self::Fixed(cores) | Self::Range(_, cores) => cores,
            Self::Auto if named > 0 => named.min(MAX_CORES),
            Self::Auto => (cpus / 2).clamp(1, MAX_CORES),
        }
    }
    /// Does the service choose the number?
    pub fn is_chosen(self) -> bool {
        !matches!(self, Self::Fixed(_))
    }
    /// Checks the limits.
    pub fn check(self) -> Result<(), String> {
        let good = |cores| (1..=MAX_CORES).contains(&cores);
        match self {
            Self::Fixed(cores) if !good(cores) => Err(format!("{cores} is outside 1 to {MAX_CORES}")),
            Self::Range(fewest, most) if !good(fewest) || !good(most) || fewest > most => {
                Err(format!("\"{self}\" is no range within 1 to {MAX_CORES}"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for CoresSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cores) => write!(f, "{cores}"),
            Self::Range(fewest, most) => write!(f, "{fewest}-{most}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for CoresSetting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok();
        let cores = match text.split_once('-') {
            _ if text == "auto" => Some(Self::Auto),
            Some((fewest, most)) => number(fewest).zip(number(most)).map(|(fewest, most)| Self::Range(fewest, most)),
            None => number(text).map(Self::Fixed),
        };
        cores.ok_or_else(|| format!("{text:?} is no number of cores; write 2, \"1-4\" or \"auto\""))
    }
}

impl<'de> Deserialize<'de> for CoresSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = CoresSetting;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of cores, \"1-4\" or \"auto\"")
            }
            fn visit_i64<E: de::Error>(self, cores: i64) -> Result<CoresSetting, E> {
                // `check` refuses a number that is too large.
                usize::try_from(cores)
                    .map(CoresSetting::Fixed)
                    .map_err(|_| E::custom(format!("{cores} is outside 1 to {MAX_CORES}")))
            }
            fn visit_u64<E: de::Error>(self, cores: u64) -> Result<CoresSetting, E> {
                self.visit_i64(cores.try_into().unwrap_or(i64::MAX))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<CoresSetting, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cores_are_a_number_a_range_or_auto() {
        let read = |text: &str| text.parse::<CoresSetting>().unwrap();
        assert_eq!(read("2"), CoresSetting::Fixed(2));
        assert_eq!(read("1-4"), CoresSetting::Range(1, 4));
        assert_eq!(read("auto"), CoresSetting::Auto);
        for text in ["", "many", "1-", "-4", "1-4-8", "1.5"] {
            assert!(text.parse::<CoresSetting>().is_err(), "{text}");
        }
        for (text, good) in [("0", false), ("16", true), ("17", false), ("2-1", false), ("0-4", false), ("3-16", true)]
        {
            assert_eq!(read(text).check().is_ok(), good, "{text}");
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn auto_is_one_core_to_one_for_every_two_cpus_or_one_for_each_that_is_named() {
        let most = |cpus, named| CoresSetting::Auto.most(cpus, named);
        assert_eq!((most(1, 0), most(2, 0), most(8, 0), most(256, 0), most(8, 3)), (1, 1, 4, 16, 3));
        assert_eq!(
            (CoresSetting::Auto.fewest(), CoresSetting::Range(2, 4).fewest(), CoresSetting::Fixed(3).fewest()),
            (1, 2, 3)
        );
        assert_eq!((CoresSetting::Range(2, 4).most(1, 0), CoresSetting::Fixed(3).most(1, 0)), (4, 3));
    }
}
