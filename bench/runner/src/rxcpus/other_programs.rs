//! CPU time that other programs used meanwhile.

use std::collections::HashMap;

/// The flag of a kernel thread (`PF_KTHREAD`).
const KERNEL: u64 = 0x0020_0000;

/// A process, as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    kernel: bool,
    /// Clock ticks on a CPU: its own and those of children that have ended.
    ticks: u64,
}

/// CPU seconds since boot of all processes that `own` has not started. The time of one that has ended is in its
/// parent's.
pub fn seconds(own: u32) -> f64 {
    let processes: HashMap<u32, Process> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, process(&std::fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect();
    ticks(&processes, own) as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn process(stat: &str) -> Option<Process> {
    // The program's name is in brackets and may have any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
    Some(Process { parent: number(1)? as u32, kernel: number(6)? & KERNEL != 0, ticks })
}

fn ticks(processes: &HashMap<u32, Process>, own: u32) -> u64 {
    let is_own = |mut pid: u32| {
        // No chain of parents is longer than there are processes.
        for _ in 0..=processes.len() {
            if pid == own {
                return true;
            }
            match processes.get(&pid) {
                Some(process) if process.parent != 0 => pid = process.parent,
                _ => return false,
            }
        }
        false
    };
    processes.iter().filter(|(pid, process)| !process.kernel && !is_own(**pid)).map(|(_, process)| process.ticks).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5 6 7";
        assert_eq!(process(stat), Some(Process { parent: 3, kernel: false, ticks: 100 }));
        assert!(process("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 5 0 0 20").unwrap().kernel);
        assert_eq!(process("7 (short) S 3"), None);
    }

    #[test]
    fn what_the_benchmark_has_started_is_not_foreign_and_the_kernel_is_nobody() {
        let process = |parent, kernel, ticks| Process { parent, kernel, ticks };
        let all = HashMap::from([
            (1, process(0, false, 1)),
            (2, process(0, true, 10)),
            (50, process(1, false, 100)),
            (51, process(50, false, 1000)),
            (52, process(51, false, 10_000)),
            (60, process(1, false, 100_000)),
        ]);
        assert_eq!(ticks(&all, 50), 100_001);
    }
}
