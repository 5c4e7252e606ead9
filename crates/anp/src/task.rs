//! The threads of a process, for machines where it is in no control group of its own.

use crate::setting::{Setting, Task};
use crate::tree::Tree;

/// Its threads, the first one first. None: there is no such process.
pub fn threads(tree: &Tree, process: u32) -> Vec<Task> {
    let folder = format!("/proc/{process}/task");
    let mut threads: Vec<Task> = tree
        .names(&folder)
        .iter()
        .filter_map(|name| {
            let started = started(&tree.text(&format!("{folder}/{name}/stat"))?)?;
            Some(Task { process, thread: name.parse().ok()?, started })
        })
        .collect();
    threads.sort_by_key(|task| (task.thread != process, task.thread));
    threads
}

/// The time of start in a thread's `stat` (proc_pid_stat(5)): the twentieth field after its name, which may have blanks and brackets in it.
pub fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Threads that were born while the process was confined have its confinement, and nobody has written down what they had before: they get
/// what its first thread has again.
pub fn free(tree: &Tree, main: Task, known: &[String], ours: &[String], before: &str) {
    for task in threads(tree, main.process).into_iter().map(Setting::Task) {
        let name = task.to_string();
        let confined = |now: String| ours.iter().any(|value| task.same(&now, value));
        if !known.contains(&name) && tree.text(&name).is_some_and(confined) {
            // A thread that ends now needs nothing.
            let _ = tree.write(&name, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::started;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let rest = (0..30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["(a", "(a b", "(a) b", "("] {
            assert_eq!(started(&format!("7 {name}) {rest}")), Some(19), "{name}");
        }
        assert_eq!((started(""), started("1 (a) 1 2"), started("1 (a) ")), (None, None, None));
    }
}
