//! The choice among event contexts that share a socket exclusively (`EPOLLEXCLUSIVE`).

/// Notifies contexts of `contexts` (bits), in turn from `turn` on, until one of them was asleep; returns the next turn.
/// As on Linux, contexts that are awake are told and look by themselves. The first that sleeps is woken, and the rest
/// are not told.
///
/// `notify` queues the event for a context and wakes it if it sleeps; true = it slept.
#[inline]
pub fn notify_one(contexts: u64, turn: u32, mut notify: impl FnMut(usize) -> bool) -> u32 {
    let turn = turn % u64::BITS;
    let mut left = contexts.rotate_right(turn);
    while left != 0 {
        let context = (left.trailing_zeros() + turn) % u64::BITS;
        left &= left - 1;
        if notify(context as usize) {
            return context + 1;
        }
    }
    turn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_awake_are_told_up_to_the_first_that_sleeps_and_the_next_time_it_is_another() {
        let sleeping = [3, 7, 63];
        let tell = |turn: u32| {
            let mut told = Vec::new();
            let next = notify_one(1 << 1 | 1 << 3 | 1 << 7 | 1 << 63, turn, |context| {
                told.push(context);
                sleeping.contains(&context)
            });
            (told, next)
        };
        assert_eq!(tell(0), (vec![1, 3], 4));
        assert_eq!(tell(4), (vec![7], 8));
        assert_eq!(tell(8), (vec![63], 64));
        assert_eq!(tell(64), (vec![1, 3], 4));
        assert_eq!(notify_one(1 << 5, 9, |_| false), 9, "nobody sleeps");
    }
}
