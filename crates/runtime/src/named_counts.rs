//! Counters with names, which depend on the stack.

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Named counters in the order in which they are shown. In JSON an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCounts(Vec<(Cow<'static, str>, u64)>);

impl NamedCounts {
    /// All counters in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (&**name, *count))
    }
    /// The counter of this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, count)| count)
    }
}

impl FromIterator<(&'static str, u64)> for NamedCounts {
    fn from_iter<I: IntoIterator<Item = (&'static str, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().map(|(name, count)| (name.into(), count)).collect())
    }
}

impl Serialize for NamedCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for NamedCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = NamedCounts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedCounts, A::Error> {
                let mut counts = NamedCounts::default();
                while let Some((name, count)) = map.next_entry::<String, u64>()? {
                    counts.0.push((name.into(), count));
                }
                Ok(counts)
            }
        }
        deserializer.deserialize_map(Read)
    }
}
