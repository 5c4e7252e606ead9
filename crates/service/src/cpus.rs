//! The CPUs that this process may use.

use crate::config::{Config, ConfigError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Write;

/// The CPUs to which the kernel lets a thread of this process be pinned: online, and in its control group.
pub fn usable() -> Vec<usize> {
    // In a thread of its own, because the present affinity may be narrower than what is allowed.
    let find = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        let _ = sched_setaffinity(None, &all);
        let allowed = sched_getaffinity(None).unwrap_or(all);
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
    };
    std::thread::spawn(find).join().unwrap_or_default()
}

/// Checks the key `cpus` of a configuration against this machine.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    if config.cpus.is_empty() {
        return Ok(());
    }
    check_named(&config.cpus, &usable()).map_err(|why| config.error_at("cpus", why))
}

fn check_named(named: &[usize], usable: &[usize]) -> Result<(), String> {
    match named.iter().find(|cpu| !usable.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(format!(
            "there is no CPU {cpu} that this process may use; name one of {}, or none (`nproc`, and the control group's \
             cpuset, say which there are)",
            list(usable)
        )),
    }
}

/// As in `0-3,6`.
fn list(cpus: &[usize]) -> String {
    let mut out = String::new();
    for run in cpus.chunk_by(|one, next| one + 1 == *next) {
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match run {
            [one] => write!(out, "{comma}{one}"),
            run => write!(out, "{comma}{}-{}", run[0], run[run.len() - 1]),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_refused_with_those_that_are() {
        assert_eq!(check_named(&[2, 0], &[0, 1, 2, 5]), Ok(()));
        let error = check_named(&[1, 9], &[0, 1, 2, 5]).err().unwrap_or_default();
        assert!(
            error.starts_with("there is no CPU 9 that this process may use; name one of 0-2,5, or none"),
            "{error}"
        );
    }

    #[test]
    fn this_thread_runs_on_a_usable_cpu() {
        let usable = usable();
        let own = sched_getaffinity(None).expect("an affinity");
        assert!((0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).all(|cpu| usable.contains(&cpu)), "{usable:?}");
        assert_eq!(sched_getaffinity(None).expect("an affinity"), own, "it is as it was");
    }
}
