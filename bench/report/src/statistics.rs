//! Jain's index, medians, quantiles and ranges.

/// The middle value, the lower of two.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(&values.into_iter().collect::<Vec<f64>>(), 0.5)
}

/// Jain's fairness index: 1 = all the same, 1/n = one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The value below which `q` of all lie (nearest rank).
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// The middle of some values and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value, the lower of two.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of these values; `None` if there is none, or one that is no number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let (least, most) = (values.iter().copied().fold(f64::INFINITY, f64::min), quantile(values, 1.0));
        Some(Self { median: quantile(values, 0.5), least, most })
    }

    /// Between the least and the largest, in parts of the median.
    pub fn scatter(&self) -> f64 {
        (self.most - self.least) / self.median
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn jains_index_is_between_one_share_and_all() {
        assert_eq!(jain(&[3.0; 10]), 1.0);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let spread = Spread::of(&[4.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, least: 1.0, most: 4.0 });
        assert_eq!(spread.scatter(), 1.5);
        assert_eq!(Spread::of(&[5.0]).map(|spread| spread.scatter()), Some(0.0));
        assert_eq!((Spread::of(&[]), Spread::of(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((quantile(&values, 0.01), quantile(&values, 0.5), quantile(&values, 0.99)), (1.0, 50.0, 99.0));
        assert_eq!(quantile(&[7.0], 0.01), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
