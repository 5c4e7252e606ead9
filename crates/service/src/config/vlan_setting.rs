//! The key `vlan`: which frames of the interfaces are served.

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::fmt;

/// The greatest number of a VLAN (IEEE 802.1Q).
const MOST: u16 = 4094;

/// One number for the only interface, or one for each, in the order of `interface`. 0: untagged frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanSetting {
    /// Of the only interface.
    One(u16),
    /// Of each.
    Each(Vec<u16>),
}

impl VlanSetting {
    /// The tag of the frames of the interface at this place; `None`: they have none.
    pub fn of(&self, place: usize) -> Option<u16> {
        let number = match self {
            Self::One(number) => Some(*number),
            Self::Each(numbers) => numbers.get(place).copied(),
        };
        number.filter(|number| *number != 0)
    }

    fn numbers(&self) -> &[u16] {
        match self {
            Self::One(number) => std::slice::from_ref(number),
            Self::Each(numbers) => numbers,
        }
    }

    /// Is a frame of any interface tagged?
    pub fn tags(&self) -> bool {
        self.numbers().iter().any(|number| *number != 0)
    }

    /// Checks the numbers, for so many interfaces.
    pub fn check(&self, interfaces: usize) -> Result<(), String> {
        if let Some(number) = self.numbers().iter().find(|number| **number > MOST) {
            return Err(format!("{number} is outside 0 to {MOST}"));
        }
        match self {
            Self::One(number) if *number != 0 && interfaces > 1 => {
                let each = vec![number.to_string(); interfaces].join(", ");
                Err(format!(
                    "{interfaces} interfaces are named; write a number for each: vlan = [{each}], 0 for untagged frames"
                ))
            }
            Self::Each(numbers) if numbers.len() != interfaces => Err(format!(
                "numbers and interfaces named: {} and {interfaces}; write one for each, in their order, 0 for untagged frames",
                numbers.len()
            )),
            _ => Ok(()),
        }
    }
}

impl Default for VlanSetting {
    fn default() -> Self {
        Self::One(0)
    }
}

impl<'de> Deserialize<'de> for VlanSetting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Numbers)
    }
}

struct Numbers;

impl<'de> Visitor<'de> for Numbers {
    type Value = VlanSetting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("u16")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<VlanSetting, E> {
        let wrong = |_| E::invalid_value(de::Unexpected::Signed(number), &self);
        number.try_into().map(VlanSetting::One).map_err(wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VlanSetting, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element()? {
            numbers.push(number);
        }
        Ok(VlanSetting::Each(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_its_number() {
        let (one, each) = (VlanSetting::One(7), VlanSetting::Each(vec![7, 0, 9]));
        assert_eq!([0, 1].map(|place| one.of(place)), [Some(7), Some(7)]);
        assert_eq!([0, 1, 2, 3].map(|place| each.of(place)), [Some(7), None, Some(9), None]);
        assert!(one.tags() && each.tags());
        assert!(!VlanSetting::default().tags() && !VlanSetting::Each(vec![0, 0]).tags());
    }
}
