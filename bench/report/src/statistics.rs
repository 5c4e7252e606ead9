//! Jain's index, medians and quantiles.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_between_one_share_and_all() {
        assert_eq!(jain(&[3.0; 10]), 1.0);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((quantile(&values, 0.01), quantile(&values, 0.5), quantile(&values, 0.99)), (1.0, 50.0, 99.0));
        assert_eq!(quantile(&[7.0], 0.01), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
