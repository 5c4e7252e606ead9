//! A network device's indirection table: the receive queue for each bucket of hashes (RSS).

use serde::Serialize;

/// The table, and the number of receive queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Each bucket's queue.
    pub buckets: Vec<u32>,
    /// Queues that receive.
    pub queues: u32,
}

/// The word for a device's default table.
const DEFAULT: &str = "default";

impl Table {
    /// The default table (`ethtool_rxfh_indir_default`). The kernel spreads it anew when the number of queues changes.
    pub fn default_of(buckets: usize, queues: u32) -> Self {
        Self { buckets: (0..buckets as u32).map(|bucket| bucket % queues.max(1)).collect(), queues }
    }
    /// The text for these buckets of a device with this number of queues.
    pub fn text(&self, buckets: &[u32]) -> String {
        if Self::default_of(buckets.len(), self.queues).buckets == buckets {
            return DEFAULT.into();
        }
        buckets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
    /// Reads each bucket's queue. Empty: the default table. `None`: the text is no table.
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
        let device = Table::default_of(8, 3);
        assert_eq!((device.text(&device.buckets).as_str(), Table::parse("default").unwrap().len()), ("default", 0));
        let two = [0, 1, 0, 1, 0, 1, 0, 1];
        assert_eq!(device.text(&two), "0 1 0 1 0 1 0 1");
        assert_eq!(Table::parse("0 1 0 1 0 1 0 1").unwrap(), two);
        assert_eq!((Table::parse(""), Table::parse("0 x"), Table::parse("0  1")), (None, None, None));
    }
}
