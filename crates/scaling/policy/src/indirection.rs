//! Changes a network device's indirection table (RSS) with as few moved buckets as possible.
//!
//! `ethtool -X equal N` deals the buckets out anew. From 4 queues to 5 it moves 4 of 5 of them, and every flow in them
//! is reordered once.

/// The table with its buckets spread evenly over the queues `0..queues`. A bucket stays if its queue remains and has no
/// more than its share. `None`: there is no queue, or no bucket.
pub fn rebalance(table: &[u32], queues: u32) -> Option<Vec<u32>> {
    if queues == 0 || table.is_empty() {
        return None;
    }
    let count = table.len();
    let (share, rest) = (count / queues as usize, count % queues as usize);
    let mut has = vec![0usize; queues as usize];
    for queue in table {
        if let Some(buckets) = has.get_mut(*queue as usize) {
            *buckets += 1;
        }
    }
    // The queues that have most now get the larger shares.
    let mut by_load: Vec<usize> = (0..has.len()).collect();
    by_load.sort_by_key(|queue| (std::cmp::Reverse(has[*queue]), *queue));
    let mut room = vec![share; has.len()];
    by_load.iter().take(rest).for_each(|queue| room[*queue] += 1);
    let mut after = Vec::with_capacity(count);
    for queue in table {
        let stays = room.get_mut(*queue as usize).filter(|room| **room > 0);
        after.push(stays.map(|room| {
            *room -= 1;
            *queue
        }));
    }
    let mut next = 0;
    let filled = after.into_iter().map(|queue| {
        queue.unwrap_or_else(|| {
            while room[next] == 0 {
                next += 1;
            }
            room[next] -= 1;
            next as u32
        })
    });
    Some(filled.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::rebalance;
    use proptest::prelude::*;

    fn moved(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn a_queue_more_takes_its_share_and_nothing_else_moves() {
        let four: Vec<u32> = (0..128).map(|bucket| bucket % 4).collect();
        let five = rebalance(&four, 5).unwrap();
        assert_eq!(moved(&four, &five), 25, "a fifth");
        let equal: Vec<u32> = (0..128).map(|bucket| bucket % 5).collect();
        assert!(moved(&four, &equal) > 95, "dealt out anew: {}", moved(&four, &equal));
        assert_eq!(rebalance(&five, 5).unwrap(), five, "once it is even nothing moves");
    }

    #[test]
    fn no_table_and_no_queue_have_no_answer() {
        assert_eq!((rebalance(&[], 4), rebalance(&[1, 2], 0)), (None, None));
    }

    proptest! {
        /// Any table that a device may have now.
        #[test]
        fn every_table_becomes_even_with_the_fewest_moves(table in prop::collection::vec(0u32..70, 1..300), queues in 1u32..64) {
            let after = rebalance(&table, queues).unwrap();
            prop_assert_eq!(after.len(), table.len());
            let count = |table: &[u32], queue| table.iter().filter(|q| **q == queue).count();
            let counts: Vec<usize> = (0..queues).map(|queue| count(&after, queue)).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            prop_assert_eq!(counts.iter().sum::<usize>(), table.len());
            // The buckets that must move: those of removed queues, and the excess of the others.
            let must = table.len() - (0..queues).map(|q| count(&table, q).min(counts[q as usize])).sum::<usize>();
            prop_assert_eq!(moved(&table, &after), must);
        }
    }
}
