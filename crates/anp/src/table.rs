//! A card's indirection table: which receive queue gets the packets of which bucket of hashes (RSS).

use serde::Serialize;

/// The table, and how many queues there are to spread over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Each bucket's queue.
    pub buckets: Vec<u32>,
    /// Queues that receive.
    pub queues: u32,
}

/// The word for the table that a card begins with.
const DEFAULT: &str = "default";

impl Table {
    /// As a card begins (`ethtool_rxfh_indir_default`): the kernel spreads it anew when the number of queues changes.
    pub fn default_of(buckets: usize, queues: u32) -> Self {
        Self { buckets: (0..buckets as u32).map(|bucket| bucket % queues.max(1)).collect(), queues }
    }
    /// The text for buckets of a card with as many queues.
    pub fn text(&self, buckets: &[u32]) -> String {
        if Self::default_of(buckets.len(), self.queues).buckets == buckets {
            return DEFAULT.into();
        }
        buckets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
    /// Each bucket's queue by a text; empty = as the card begins. `None`: it is no table.
    pub fn parse(text: &str) -> Option<Vec<u32>> {
        if text == DEFAULT {
            return Some(Vec::new());
        }
        let buckets: Option<Vec<u32>> = text.split(' ').map(|queue| queue.parse().ok()).collect();
        buckets.filter(|buckets| !buckets.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written_and_the_first_has_a_word() {
        let card = Table::default_of(8, 3);
        assert_eq!((card.text(&card.buckets).as_str(), Table::parse("default").unwrap().len()), ("default", 0));
        let two = [0, 1, 0, 1, 0, 1, 0, 1];
        assert_eq!(card.text(&two), "0 1 0 1 0 1 0 1");
        assert_eq!(Table::parse("0 1 0 1 0 1 0 1").unwrap(), two);
        assert_eq!((Table::parse(""), Table::parse("0 x"), Table::parse("0  1")), (None, None, None));
    }
}
