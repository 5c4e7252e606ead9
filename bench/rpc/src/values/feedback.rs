//! A server's feedback: a line `thr= lat_us= p99_us=`, twice a second.

use super::now_ns;
use hdrhistogram::Histogram;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
const PERIOD: Duration = Duration::from_millis(500);
/// A line covers this many periods.
const PERIODS: usize = 2;

/// The latencies of one thread's answers since the last line. `None`: no feedback is wanted.
#[derive(Clone)]
pub struct Answered(Option<Arc<Mutex<Histogram<u64>>>>);

impl Answered {
    /// Notes that requests with these times of sending have been answered.
    pub fn note(&self, stamps: &[u64]) {
        let Some(shared) = &self.0 else { return };
        let now = now_ns();
        let mut histogram = shared.lock().unwrap_or_else(PoisonError::into_inner);
        stamps.iter().for_each(|stamp| histogram.saturating_record(now.saturating_sub(*stamp)));
    }
}

/// Makes one for each of `threads` threads, and starts a thread that sends lines to the socket at `path`.
pub fn start(path: Option<PathBuf>, threads: usize) -> io::Result<Vec<Answered>> {
    let Some(path) = path else { return Ok(vec![Answered(None); threads]) };
    let mut shared = Vec::new();
    for _ in 0..threads {
        shared.push(Arc::new(Mutex::new(histogram()?)));
    }
    let answered = shared.iter().map(|one| Answered(Some(one.clone()))).collect();
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let (mut recent, mut begun) = (Vec::new(), Instant::now());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(PERIOD);
            let Ok(mut sum) = histogram() else { return };
            for one in &shared {
                let mut one = one.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = sum.add(&*one);
                one.reset();
            }
            recent.push((begun.elapsed(), sum));
            begun = Instant::now();
            if recent.len() > PERIODS {
                recent.remove(0);
            }
            let _ = socket.send_to(line(&recent).as_bytes(), &path);
        }
    });
    Ok(answered)
}

fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1000, 60_000_000_000, 2).map_err(io::Error::other)
}

/// The line for these periods.
fn line(periods: &[(Duration, Histogram<u64>)]) -> String {
    let seconds: f64 = periods.iter().map(|(time, _)| time.as_secs_f64()).sum();
    let Some((_, first)) = periods.first() else { return String::new() };
    let mut all = first.clone();
    periods.iter().skip(1).for_each(|(_, histogram)| all += histogram);
    let throughput = all.len() as f64 / seconds.max(1e-3);
    if all.is_empty() {
        return format!("thr={throughput:.1}");
    }
    let (mean, p99) = (all.mean() / 1000.0, all.value_at_quantile(0.99) as f64 / 1000.0);
    format!("thr={throughput:.1} lat_us={mean:.1} p99_us={p99:.1}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_said_is_of_all_periods_together() {
        let mut a = histogram().unwrap();
        let mut b = histogram().unwrap();
        a.record(100_000).unwrap();
        b.record(300_000).unwrap();
        let half = Duration::from_millis(500);
        let said = line(&[(half, a), (half, b)]);
        assert!(said.starts_with("thr=2.0 lat_us=20") && said.contains(" p99_us=30"), "{said}");
        assert_eq!(line(&[(half, histogram().unwrap())]), "thr=0.0", "there is no latency of nothing");
    }
}
