//! Values on the command line: `1%`, `10ms`, `100mbit`, `256k`. A number without a unit is refused where it would be
//! ambiguous.

/// A share, `1%` or `0.01`, in millionths.
pub fn share(text: &str) -> Result<u32, String> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 10_000.0),
        None => (text, 1_000_000.0),
    };
    let value: f64 = digits.trim().parse().map_err(|_| format!("{text:?} is no share; write 1% or 0.01"))?;
    let ppm = (value * scale).round();
    if !(0.0..=1_000_000.0).contains(&ppm) {
        return Err(format!("{text} is not between 0% and 100%"));
    }
    Ok(ppm as u32)
}

/// A length of time, `10ms`, in ns.
pub fn time(text: &str) -> Result<u64, String> {
    scaled(text, &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)], "10ms, 250us or 1s")
}

/// A rate, `100mbit`, in bits per second.
pub fn rate(text: &str) -> Result<u64, String> {
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    scaled(text, &units, "100mbit, 1gbit or 800kbit").and_then(|rate| match rate {
        0 => Err("a rate of 0 lets nothing through; leave it out for no limit".to_owned()),
        rate => Ok(rate),
    })
}

/// An amount of memory, `256k`, in bytes (k = 1024).
pub fn bytes(text: &str) -> Result<u64, String> {
    scaled(text, &[("k", 1 << 10), ("m", 1 << 20), ("b", 1)], "256k, 1m or 30000b")
}

fn scaled(text: &str, units: &[(&str, u64)], examples: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not understood; write {examples}");
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &lower[digits.len()..];
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let value: f64 = digits.trim().parse().map_err(|_| wrong())?;
    let scaled = value * *factor as f64;
    if !(0.0..9e18).contains(&scaled) {
        return Err(wrong());
    }
    Ok(scaled.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(share("1%"), Ok(10_000));
        assert_eq!(share("0.01%"), Ok(100));
        assert_eq!(share("0.5"), Ok(500_000));
        assert_eq!(time("10ms"), Ok(10_000_000));
        assert_eq!(time("1.5us"), Ok(1500));
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        assert_eq!(rate("2.5Gbit"), Ok(2_500_000_000));
        assert_eq!(bytes("256k"), Ok(262_144));
        assert_eq!(bytes("1500b"), Ok(1500));
    }

    #[test]
    fn what_is_not_understood_says_what_to_write() {
        for wrong in [share("101%"), share("-1%"), share("x")] {
            assert!(wrong.is_err());
        }
        for (wrong, example) in
            [(time("10"), "10ms"), (rate("100"), "100mbit"), (bytes("9"), "256k"), (time("-1s"), "1s")]
        {
            assert!(wrong.is_err_and(|text| text.contains(example)));
        }
        assert!(rate("0mbit").is_err());
    }
}
