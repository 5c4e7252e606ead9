//! A table with a fixed number of entries, in parts that are made at their first use. A client may have many slots, and
//! most use few.

/// Entries of one part.
const PART: usize = 64;

/// A table that makes its parts at their first use.
pub struct Sparse<T> {
    parts: Box<[Option<Box<[T]>>]>,
}

impl<T: Default> Sparse<T> {
    /// At least `len` entries, all default.
    pub fn new(len: usize) -> Self {
        Self { parts: (0..len.div_ceil(PART)).map(|_| None).collect() }
    }
    /// An entry; `None` if it was never asked for by `entry`.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.parts.get(index / PART)?.as_ref()?.get(index % PART)
    }
    /// An entry, made if need be. Panics if `index` is outside the table.
    pub fn entry(&mut self, index: usize) -> &mut T {
        let part = self.parts[index / PART].get_or_insert_with(|| (0..PART).map(|_| T::default()).collect());
        &mut part[index % PART]
    }
    /// Every entry whose part exists, with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let parts = self.parts.iter().enumerate().filter_map(|(n, part)| Some((n * PART, part.as_ref()?)));
        parts.flat_map(|(first, part)| part.iter().enumerate().map(move |(i, entry)| (first + i, entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_exists() {
        let mut table: Sparse<u32> = Sparse::new(1000);
        assert!(table.get(0).is_none() && table.get(5000).is_none());
        *table.entry(999) = 7;
        *table.entry(64) = 8;
        assert_eq!((table.get(999), table.get(998), table.get(63)), (Some(&7), Some(&0), None));
        let set: Vec<_> = table.iter().filter(|(_, value)| **value != 0).map(|(i, value)| (i, *value)).collect();
        assert_eq!(set, [(64, 8), (999, 7)]);
        assert_eq!(table.iter().count(), 2 * PART);
    }
}
