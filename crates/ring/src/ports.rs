//! Lists of ports that a command gives a program by its environment.

use core::ops::RangeInclusive;

/// Environment variable: ports of listeners whose connections a program only passes on. `towpath run --splice` sets it.
pub const VARIABLE: &str = "TOWPATH_SPLICE";

/// The ranges of a list like `7000,8000-8009`; `None`: it is none.
pub fn ranges(list: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(first..=last)
    };
    list.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn a_list_has_ports_and_ranges_and_nothing_else() {
        assert_eq!(ranges("7000"), Some(vec![7000..=7000]));
        assert_eq!(ranges("7000, 8000-8009,1-65535"), Some(vec![7000..=7000, 8000..=8009, 1..=65535]));
        for wrong in ["", "0", "7000,", "9-8", "65536", "http", "-1", "1-2-3"] {
            assert!(ranges(wrong).is_none(), "{wrong}");
        }
    }
}
