//! The threads of a process that is in no control group of its own.

use crate::setting::{Setting, Task, started};
use crate::tree::Tree;

/// The threads of a process, its main thread first. Empty: there is no such process.
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

/// Frees threads that were started while the process was confined.
///
/// Such a thread inherited the confinement, and the journal has no older value of it. It gets the value of the main
/// thread, `before`.
pub fn free(tree: &Tree, main: Task, known: &[String], ours: &[String], before: &str) {
    for task in threads(tree, main.process).into_iter().map(Setting::Task) {
        let name = task.to_string();
        let confined = |now: String| ours.iter().any(|value| task.same(&now, value));
        if !known.contains(&name) && tree.text(&name).is_some_and(confined) {
            // It fails only for a thread that ends now, which needs nothing.
            let _ = tree.write(&name, before);
        }
    }
}
