//! The console of a guest's kernel. Its last lines are kept to explain why the kernel has ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of lines kept.
const LINES: usize = 100;
/// Bytes kept of a line.
const LINE_BYTES: u64 = 400;

/// The last lines of a console.
#[derive(Clone, Default)]
pub struct Console(Arc<Mutex<VecDeque<String>>>);

impl Console {
    /// Reads a console to its end, on a thread of its own.
    pub fn follow(&self, from: impl Read + Send + 'static) -> std::io::Result<()> {
        let console = self.clone();
        let follow = move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while matches!((&mut from).take(LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
                console.note(&String::from_utf8_lossy(&line));
                line.clear();
            }
        };
        std::thread::Builder::new().name("guest-console".into()).spawn(follow).map(drop)
    }
    fn note(&self, line: &str) {
        // The line goes to a log and a terminal.
        let line: String = line.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if line.trim().is_empty() {
            return;
        }
        tracing::debug!("guest: {line}");
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
    /// The last `most` lines. If the kernel has panicked, the last line is the one that says so.
    pub fn last(&self, most: usize) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines: Vec<_> = lines.iter().filter(|line| !line.contains("[<")).collect();
        if let Some(panic) = lines.iter().rposition(|line| line.contains("Kernel panic")) {
            lines.truncate(panic + 1);
        }
        lines.iter().skip(lines.len().saturating_sub(most)).map(|line| (*line).clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_control_characters() {
        let console = Console::default();
        (0..200).for_each(|n| console.note(&format!("line {n}\x1b[0m\r\n")));
        console.note("\n");
        assert_eq!(console.last(2), ["line 198 [0m", "line 199 [0m"]);
        assert_eq!(console.last(1000).len(), LINES);
        console.note("Kernel panic - not syncing: no init");
        (0..20).for_each(|n| console.note(&format!("call {n}")));
        assert_eq!(console.last(2), ["line 199 [0m", "Kernel panic - not syncing: no init"]);
    }
}
