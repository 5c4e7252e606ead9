//! Numbers in sentences.

/// A count with its noun: `1 CPU`, `2 CPUs`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_one_and_all_others_are_many() {
        assert_eq!([0u32, 1, 2].map(|count| counted(count, "CPU")), ["0 CPUs", "1 CPU", "2 CPUs"]);
        assert_eq!(counted(1usize, "change"), "1 change");
    }
}
