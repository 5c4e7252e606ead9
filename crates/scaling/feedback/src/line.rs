//! The lines that applications send.

use towpath_scaling::Outcome;

/// No application serves this many requests per second, or needs this many µs for one.
pub(crate) const ABSURD: f64 = 1e15;

/// Reads a line such as `thr=12000 lat_us=83 p99_us=240`: requests per second, and µs. Unknown words are ignored.
/// `None`: it has no throughput, or an impossible one.
pub fn outcome_of(line: &str) -> Option<Outcome> {
    let value = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        word.parse::<f64>().ok().filter(|value| (0.0..ABSURD).contains(value))
    };
    let optional = |name| value(name).unwrap_or(0.0);
    Some(Outcome { throughput: value("thr")?, latency_us: optional("lat_us"), p99_us: optional("p99_us") })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_applications_say_is_read_and_nonsense_is_not() {
        let outcome = outcome_of("p99_us=240 thr=12000 lat_us=83 colour=green\n").unwrap();
        assert_eq!(outcome, Outcome { throughput: 12000.0, latency_us: 83.0, p99_us: 240.0 });
        for line in ["", "lat_us=3", "thr=", "thr=-1", "thr=NaN", "thr=inf", "thr=1e300", "throughput=3"] {
            assert_eq!(outcome_of(line), None, "{line}");
        }
    }
}
