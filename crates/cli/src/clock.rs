//! Moments in words.

/// µs since 1970, as `2026-11-29 23:01:46.123456` in UTC.
pub fn utc(us: u64) -> String {
    let (seconds, micros) = (us / 1_000_000, us % 1_000_000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// The day of this number since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    // Every 400 years have as many days.
    year += left / 146_097 * 400;
    left %= 146_097;
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_as_date_says() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000000");
        assert_eq!(utc(951_782_399_999_999), "2000-02-28 23:59:59.999999");
        assert_eq!(utc(951_868_800_000_000), "2000-03-01 00:00:00.000000");
        assert_eq!(utc(1_795_993_306_000_001), "2026-11-29 23:01:46.000001");
        assert_eq!(utc(4_107_542_400_000_000), "2100-03-01 00:00:00.000000");
        // The largest that memory may hold.
        assert!(utc(u64::MAX).starts_with("586524-"));
    }
}
