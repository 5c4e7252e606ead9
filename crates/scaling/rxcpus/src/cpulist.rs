//! Sets of CPUs in the kernel's two notations: lists (`0-3,8`) and masks (`0000000f,00000001`).

use std::collections::BTreeSet;
use std::fmt;

/// Most CPUs that the kernel can be built for.
const MOST: u32 = 8192;

/// Some CPUs, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub BTreeSet<u32>);

impl CpuSet {
    /// Reads a list (cpuset(7), *List format*). `None`: the text is not one.
    pub fn of_list(text: &str) -> Option<Self> {
        let mut set = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            if first > last || last >= MOST {
                return None;
            }
            set.extend(first..=last);
        }
        Some(Self(set))
    }
    /// Reads a mask (cpuset(7), *Mask format*). `None`: the text is not one.
    pub fn of_mask(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.trim().split(',').collect();
        let mut set = BTreeSet::new();
        for (place, word) in words.iter().rev().enumerate() {
            let bits = (!word.is_empty() && word.len() <= 8).then(|| u32::from_str_radix(word, 16).ok())??;
            let from = u32::try_from(place).ok()?.checked_mul(32).filter(|from| *from < MOST)?;
            set.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| from + bit));
        }
        Some(Self(set))
    }

    /// As a list.
    pub fn list(&self) -> String {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match parts.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => parts.push((*cpu, *cpu)),
            }
        }
        let text =
            |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        parts.iter().map(text).collect::<Vec<_>>().join(",")
    }
    /// As a list in a sentence: `CPU 2`, `CPUs 2-3`.
    pub fn named(&self) -> String {
        let noun = if self.0.len() == 1 { "CPU" } else { "CPUs" };
        format!("{noun} {self}")
    }
    /// As a mask.
    pub fn mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let word =
            |place: u32| self.0.range(place * 32..(place + 1) * 32).fold(0u32, |word, cpu| word | 1 << (cpu % 32));
        let text =
            |place: u32| if place + 1 == words { format!("{:x}", word(place)) } else { format!("{:08x}", word(place)) };
        (0..words).rev().map(text).collect::<Vec<_>>().join(",")
    }

    /// The CPUs that are not in the other set.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Serializes a set as a list.
pub(crate) fn serialize_list<S: serde::Serializer>(set: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&set.list())
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_the_kernels() {
        let set = CpuSet::of_list("0-3,8,64\n").unwrap();
        assert_eq!((set.list().as_str(), set.mask().as_str()), ("0-3,8,64", "1,00000000,0000010f"));
        assert_eq!(CpuSet::of_mask("1,00000000,0000010f\n").unwrap(), set);
        assert_eq!(CpuSet::of_mask("00").unwrap(), CpuSet::default());
        assert_eq!((CpuSet::default().list().as_str(), CpuSet::default().mask().as_str()), ("", "0"));
    }

    #[test]
    fn what_is_no_set_is_none() {
        for text in ["3-1", "x", "1-", "-1", "0-4294967295", "1 2"] {
            assert_eq!(CpuSet::of_list(text), None, "{text}");
        }
        for text in ["", "g", "1,,2", "123456789"] {
            assert_eq!(CpuSet::of_mask(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_set_is_read_as_it_was_written(cpus in prop::collection::btree_set(0u32..300, 0..80)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(CpuSet::of_list(&set.list()), Some(set.clone()));
            prop_assert_eq!(CpuSet::of_mask(&set.mask()), Some(set));
        }
        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = (CpuSet::of_list(&text), CpuSet::of_mask(&text));
        }
    }
}
