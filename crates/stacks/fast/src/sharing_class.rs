//! Numbers of sharing classes: the flows of a class share a weight and a rate limit.

use towpath_runtime::Limit;

/// The sharing class of a client's flows: its limit's, which other clients may share, or its own.
pub fn class_of(index: u32, limit: Option<&Limit>) -> u16 {
    match limit {
        Some(limit) => limit.number.checked_mul(2).and_then(|n| n.checked_add(2)).unwrap_or(0),
        None => u16::try_from(index).ok().and_then(|n| n.checked_mul(2)?.checked_add(1)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_clients_and_limits_never_meet() {
        let limit = |number| Limit { id: 1, number, weight: 1, rate: 0, connections: 0, new_per_s: 0 };
        let classes = (0..100).map(|n| class_of(n, None)).chain((0..100).map(|n| class_of(0, Some(&limit(n)))));
        let distinct: std::collections::HashSet<u16> = classes.collect();
        assert_eq!(distinct.len(), 200);
        assert!(!distinct.contains(&0));
        assert_eq!(
            (class_of(u32::MAX, None), class_of(0, Some(&limit(u16::MAX)))),
            (0, 0),
            "what has no number is the default"
        );
    }
}
