//! Values with a unit, as the configuration has them: `"20us"`, `"128KiB"`.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::str::FromStr;

/// A length of time, stored in microseconds. It is written with a unit: `"20us"`, `"1500ms"`, `"60s"`, `"5min"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(u64);

/// An amount of memory in bytes. It is written with a unit: `"4096B"`, `"128KiB"`, `"1MiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

/// Why a text is not a value with a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A bare number.
    #[error("{value} has no unit; write {examples}")]
    NoUnit {
        /// The number as written.
        value: String,
        /// The same number with units.
        examples: String,
    },
    /// A unit that is not known.
    #[error("{unit:?} is no unit here; write {examples}")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The same number with known units.
        examples: String,
    },
    /// Not a whole number with a unit.
    #[error("{value:?} is not a whole number with a unit; write something like {example}")]
    NotANumber {
        /// The text as written.
        value: String,
        /// One good value.
        example: &'static str,
    },
    /// Does not fit.
    #[error("{value} is too large")]
    TooLarge {
        /// The text as written.
        value: String,
    },
}

/// The units of one kind of value: names, factors, and those to suggest.
struct Units {
    units: &'static [(&'static str, u64)],
    suggest: [&'static str; 3],
    example: &'static str,
}

const TIME: Units = Units {
    units: &[("µs", 1), ("us", 1), ("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)],
    suggest: ["us", "ms", "s"],
    example: "\"20us\"",
};

const SIZE: Units = Units {
    units: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)],
    suggest: ["B", "KiB", "MiB"],
    example: "\"128KiB\"",
};

impl Units {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim_start());
        if number.is_empty() {
            return Err(UnitError::NotANumber { value: text.into(), example: self.example });
        }
        if unit.is_empty() {
            return Err(UnitError::NoUnit { value: number.into(), examples: self.examples(number) });
        }
        if unit.starts_with(['.', ',', '_']) {
            return Err(UnitError::NotANumber { value: text.into(), example: self.example });
        }
        let Some((_, factor)) = self.units.iter().find(|(name, _)| *name == unit) else {
            return Err(UnitError::UnknownUnit { unit: unit.into(), examples: self.examples(number) });
        };
        let too_large = || UnitError::TooLarge { value: text.into() };
        number.parse::<u64>().ok().and_then(|n| n.checked_mul(*factor)).ok_or_else(too_large)
    }

    fn examples(&self, number: &str) -> String {
        let [a, b, c] = self.suggest;
        format!("\"{number}{a}\", \"{number}{b}\" or \"{number}{c}\"")
    }

    /// Shows `value` in the largest unit that makes it a whole number.
    fn show(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, u64)| value.is_multiple_of(*factor) && (value != 0 || *factor == 1);
        let (name, factor) = self.units.iter().rev().find(fits).unwrap_or(&self.units[0]);
        write!(f, "{}{name}", value / factor)
    }
}

impl Duration {
    /// A number of microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }
    /// A number of seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000)
    }
    /// In microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    /// As the standard library's type.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl Bytes {
    /// A number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }
    /// A number of KiB.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib << 10)
    }
    /// In bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

macro_rules! value_with_unit {
    ($type:ident, $kind:ident, $expects:literal) => {
        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                $kind.parse(text).map(Self)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $kind.show(self.0, f)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Read;
                impl Visitor<'_> for Read {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expects)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    // A bare number gives the same error as a number in quotes.
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Read)
            }
        }
    };
}

value_with_unit!(Duration, TIME, "a length of time with its unit, like \"20us\"");
value_with_unit!(Bytes, SIZE, "an amount of memory with its unit, like \"128KiB\"");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_unit_is_read() {
        for (text, us) in
            [("20us", 20), ("20µs", 20), ("3 ms", 3_000), ("60s", 60_000_000), ("2min", 120_000_000), ("0s", 0)]
        {
            assert_eq!(text.parse::<Duration>().unwrap().as_micros(), us, "{text}");
        }
        for (text, bytes) in [("64B", 64), ("128KiB", 131_072), ("1MiB", 1 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(text.parse::<Bytes>().unwrap().get(), bytes, "{text}");
        }
    }

    #[test]
    fn shown_as_written() {
        for text in ["20us", "1500us", "3ms", "30s", "1min", "36h", "0us"] {
            assert_eq!(text.parse::<Duration>().unwrap().to_string(), text);
        }
        for text in ["100B", "128KiB", "1MiB", "3GiB", "0B"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        let time = |t: &str| t.parse::<Duration>().unwrap_err().to_string();
        let size = |t: &str| t.parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(time("20"), r#"20 has no unit; write "20us", "20ms" or "20s""#);
        assert_eq!(time("20kg"), r#""kg" is no unit here; write "20us", "20ms" or "20s""#);
        assert_eq!(time("soon"), r#""soon" is not a whole number with a unit; write something like "20us""#);
        assert_eq!(time("1.5s"), r#""1.5s" is not a whole number with a unit; write something like "20us""#);
        assert_eq!(time("-1s"), r#""-1s" is not a whole number with a unit; write something like "20us""#);
        assert_eq!(time("99999999999999999999s"), "99999999999999999999s is too large");
        assert_eq!(size("128KB"), r#""KB" is no unit here; write "128B", "128KiB" or "128MiB""#);
        assert_eq!(size("128"), r#"128 has no unit; write "128B", "128KiB" or "128MiB""#);
    }
}
