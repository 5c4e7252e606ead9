//! CPU time that programs use on this machine, and time that they wait for a CPU: `/proc/stat` and
//! `/proc/pressure/cpu`.

use rustix::thread::{CpuSet, sched_getaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A tick of `/proc/stat`, µs (`USER_HZ` is 100 wherever Linux runs today).
const TICK_US: u64 = 10_000;

/// Totals since the machine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCpu {
    /// CPU time of everything but this process on the CPUs that this process may use, µs.
    pub others_us: u64,
    /// Time in which some thread was ready to run and waited for a CPU, µs.
    pub waited_us: u64,
    /// CPUs that this process may use; 0 = unknown.
    pub cpus: usize,
    /// More threads are ready to run than there are CPUs. Used where the kernel does not measure waiting
    /// (`CONFIG_PSI`).
    pub crowded: bool,
}

/// Rates over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgramsCpu {
    /// CPU time, seconds per second.
    pub busy: f64,
    /// The part of the time in which some thread waited for a CPU.
    pub waiting: f64,
}

impl HostCpu {
    /// The totals now.
    pub fn read() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let pressure = std::fs::read_to_string("/proc/pressure/cpu").ok();
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own_us = own.tv_sec as u64 * 1_000_000 + own.tv_nsec as u64 / 1000;
        let allowed = sched_getaffinity(None).ok();
        let is_ours = |cpu| allowed.as_ref().is_none_or(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        Self::parse(&stat, pressure.as_deref(), own_us, is_ours)
    }

    /// The totals from the files' texts.
    fn parse(stat: &str, pressure: Option<&str>, own_us: u64, is_ours: impl Fn(usize) -> bool) -> Self {
        let cpus = || stat.lines().filter_map(cpu).filter(|(cpu, _)| is_ours(*cpu));
        let busy_us: u64 = cpus().map(|(_, ticks)| ticks * TICK_US).sum();
        let waited = pressure.and_then(|text| text.lines().find_map(|line| line.strip_prefix("some ")));
        let total = waited.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
        let running = stat.lines().find_map(|line| line.strip_prefix("procs_running ")?.parse::<usize>().ok());
        // This thread is one of those that run.
        let crowded = total.is_none() && running.unwrap_or(0) > cpus().count() + 1;
        let others_us = busy_us.saturating_sub(own_us);
        Self { others_us, waited_us: total.unwrap_or(0), cpus: cpus().count(), crowded }
    }

    /// The rates since `before`.
    pub fn since(&self, before: &Self, elapsed: Duration) -> ProgramsCpu {
        let elapsed_us = (elapsed.as_micros() as f64).max(1.0);
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / elapsed_us;
        let waited = part(self.waited_us, before.waited_us).min(1.0);
        let waiting = if self.crowded { 1.0 } else { waited };
        ProgramsCpu { busy: part(self.others_us, before.others_us), waiting }
    }
}

/// Number and busy ticks of the CPU in a line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal
/// (proc(5)). The time of guests is part of user and nice.
fn cpu(line: &str) -> Option<(usize, u64)> {
    let (number, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
    let ticks: Vec<u64> = rest.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let idle = |i: &usize| *i == 3 || *i == 4;
    Some((number.parse().ok()?, ticks.iter().take(8).enumerate().filter(|(i, _)| !idle(i)).map(|(_, t)| t).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  90 0 0 0 0 0 0 0 0 0\ncpu0 10 1 2 1000 500 3 4 5 0 0\ncpu1 20 0 0 7 0 0 0 0 0 0\ncpu2 40 0 0 7 0 0 0 0\n\
                        intr 5 6\nctxt 7\nprocs_running 4\nprocs_blocked 0\n";
    const PRESSURE: &str = "some avg10=2.94 avg60=26.74 avg300=21.80 total=7000\nfull avg10=0.00 avg60=0.00 total=9\n";

    #[test]
    fn programs_have_what_the_cpus_of_this_process_did_without_this_process() {
        let host = HostCpu::parse(STAT, Some(PRESSURE), 150_000, |cpu| cpu < 2);
        assert_eq!(
            host,
            HostCpu { others_us: (25 + 20) * TICK_US - 150_000, waited_us: 7000, cpus: 2, crowded: false }
        );
        let later = HostCpu { others_us: host.others_us + 150_000, waited_us: 32_000, ..host };
        let seen = later.since(&host, Duration::from_millis(100));
        assert_eq!(seen, ProgramsCpu { busy: 1.5, waiting: 0.25 });
    }

    #[test]
    fn without_pressure_figures_more_who_run_than_cpus_say_that_somebody_waits() {
        let crowded = |cpus: usize| HostCpu::parse(STAT, None, 0, |cpu| cpu < cpus).crowded;
        assert!(crowded(2) && !crowded(3));
        let (now, before) = (HostCpu { crowded: true, ..HostCpu::default() }, HostCpu::default());
        assert_eq!(now.since(&before, Duration::from_millis(100)).waiting, 1.0);
    }

    #[test]
    fn what_is_not_there_or_goes_back_is_nothing() {
        assert_eq!(HostCpu::parse("", None, 5, |_| true), HostCpu::default());
        let later = HostCpu { others_us: 5, waited_us: 5, ..HostCpu::default() };
        assert_eq!(HostCpu::default().since(&later, Duration::ZERO), ProgramsCpu::default());
        assert!(HostCpu::read().others_us > 0, "this machine has run something");
    }
}
