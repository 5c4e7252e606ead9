//! The machine and Linux's settings, as the page shows them, and the CPU time that a hypervisor took.

use std::process::Command;
use towpath_bench_report::{CPUS, LOAD};

/// CPU time of the machine since boot, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTicks {
    all: f64,
    stolen: f64,
}

impl CpuTicks {
    /// Now.
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/stat").map(|text| Self::of(&text)).unwrap_or_default()
    }

    fn of(stat: &str) -> Self {
        // user, nice, system, idle, iowait, irq, softirq, steal. What guests use is part of user and nice.
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).map_while(|word| word.parse().ok()).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or(0.0) }
    }

    /// The share of the machine's CPU time since then that its hypervisor gave to others.
    pub fn stolen_since(self, before: Self) -> f64 {
        let all = self.all - before.all;
        if all > 0.0 { (self.stolen - before.stolen) / all } else { 0.0 }
    }
}

/// The trimmed text of a file of the kernel.
fn file(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

/// The trimmed output of a program.
fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|text| !text.is_empty())
}

/// Now, in UTC.
pub fn date() -> String {
    said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_else(|| "unknown".to_owned())
}

/// The commit of the working directory.
pub fn commit() -> String {
    let Some(commit) = said("git", &["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    match said("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(_) => commit + "-dirty",
        None => commit,
    }
}

/// When a file was last committed.
pub fn committed(path: &str) -> Option<String> {
    said("git", &["log", "-1", "--format=%cs", "--", path])
}

/// A value of a line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
    Some(value.trim())
}

/// Names and values of the machine.
pub fn machine() -> Vec<(String, String)> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let flags = field(&cpuinfo, "flags").unwrap_or_default();
    let virtual_machine = flags.split(' ').any(|flag| flag == "hypervisor");
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let gib = memory.and_then(|text| field(&text, "MemTotal")?.split(' ').next()?.parse::<f64>().ok());
    let facts = [
        ("CPU", field(&cpuinfo, "model name").map(str::to_owned)),
        (CPUS, Some(cpus.to_string())),
        ("under a hypervisor", Some(if virtual_machine { "yes" } else { "no" }.to_owned())),
        ("memory", gib.map(|kib| format!("{:.0} GiB", kib / f64::from(1 << 20)))),
        ("kernel", file("/proc/sys/kernel/osrelease")),
        ("governor", file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        (LOAD, file("/proc/loadavg").map(|text| text.split(' ').take(3).collect::<Vec<_>>().join(" "))),
    ];
    known(&facts)
}

/// Names and values of what Linux, the baseline, was set to.
pub fn settings() -> Vec<(String, String)> {
    let sysctl = |path: &str| file(&format!("/proc/sys/net/{path}"));
    let fixed = |text: &str| Some(text.to_owned());
    let default = sysctl("ipv4/tcp_congestion_control").unwrap_or_default();
    let facts = [
        ("congestion control", Some(format!("cubic over the veth, by a route; {default} on the loopback device"))),
        (
            "receive packet steering",
            fixed("server's receive work on CPU 0, client's on CPU 1; none where a way is free"),
        ),
        ("pinning", fixed("server on CPU 0, client on CPU 1, both on CPU 0 with one CPU; none where a way is free")),
        ("waiting", fixed("ends sleep in epoll_wait; on the same host also ends that spin")),
        ("TCP_NODELAY", fixed("set by the load generator; with the kernel stack's sends also Nagle's algorithm")),
        ("veth", fixed("MTU 1500, the kernel's own offloads while Linux is measured")),
        ("tcp_rmem", sysctl("ipv4/tcp_rmem")),
        ("tcp_wmem", sysctl("ipv4/tcp_wmem")),
        (
            "busy_poll, busy_read",
            sysctl("core/busy_poll").zip(sysctl("core/busy_read")).map(|(a, b)| format!("{a}, {b}")),
        ),
        ("queueing discipline", sysctl("core/default_qdisc")),
    ];
    known(&facts)
}

fn known(facts: &[(&str, Option<String>)]) -> Vec<(String, String)> {
    facts.iter().filter_map(|(name, value)| Some(((*name).to_owned(), value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let before = CpuTicks::of("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1 1 1\n");
        let now = CpuTicks::of("cpu  30 0 30 110 0 0 0 30 9 9\n");
        assert_eq!((before.all, before.stolen), (100.0, 10.0));
        assert_eq!(now.stolen_since(before), 0.2);
        assert_eq!(CpuTicks::of("").stolen_since(before), 0.0, "no time has passed");
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "model\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!((field(text, "model name"), field(text, "flags")), (Some("AMD EPYC"), None));
    }
}
