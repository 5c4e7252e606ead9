//! Numbers with names.

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;
use towpath_ring::command::not_ours;
use towpath_stack::status;

/// Named numbers in a fixed order; a JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named(pub Vec<(String, u64)>);

impl Named {
    fn of(names: &[&str], values: &[u64]) -> Self {
        Self(names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }
}

impl From<&status::Named> for Named {
    fn from(named: &status::Named) -> Self {
        Self(named.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }
}

impl From<&[u64; not_ours::REASONS]> for Named {
    fn from(counts: &[u64; not_ours::REASONS]) -> Self {
        Self::of(&not_ours::NAMES, counts)
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Named;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let mut named = Named::default();
                while let Some(entry) = map.next_entry()? {
                    named.0.push(entry);
                }
                Ok(named)
            }
        }
        deserializer.deserialize_map(Read)
    }
}
