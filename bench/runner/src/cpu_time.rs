//! CPU time: of a CPU, of all CPUs, and of processes.

use std::io;

/// Busy time of a CPU in ns since boot: user, nice, system, interrupts (4 ms steps).
pub fn cpu_busy_ns(cpu: usize) -> io::Result<f64> {
    line_busy_ns(&format!("cpu{cpu} "))
}

/// The same for all CPUs together.
pub fn busy_ns() -> io::Result<f64> {
    line_busy_ns("cpu ")
}

fn line_busy_ns(name: &str) -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or_else(|| io::Error::other("no such CPU"))?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&field| ticks.get(field)).sum();
    Ok(busy * 1e9 / rustix::param::clock_ticks_per_second() as f64)
}

/// Run time in ns of all threads of these processes and of their children.
pub fn tasks_ns(pids: &[u32]) -> f64 {
    pids.iter().map(|&pid| process_ns(pid)).sum()
}

fn process_ns(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let mut sum = 0.0;
    for task in tasks.flatten() {
        let path = task.path();
        if let Ok(text) = std::fs::read_to_string(path.join("schedstat")) {
            sum += text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        }
        if let Ok(children) = std::fs::read_to_string(path.join("children")) {
            sum += children.split_whitespace().filter_map(|word| word.parse().ok()).map(process_ns).sum::<f64>();
        }
    }
    sum
}
