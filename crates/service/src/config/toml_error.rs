//! Explains an error of the TOML parser: the key, and the key that was probably meant.

use super::KEYS;

/// The TOML parser's message with its key. For an unknown key: the nearest known one.
pub fn explain(text: &str, line: usize, message: &str) -> String {
    let written = text.lines().nth(line - 1).unwrap_or("");
    let key = written.split('=').next().unwrap_or("").trim();
    if message.starts_with("unknown field") {
        let key = message.split('`').nth(1).unwrap_or(key);
        return match nearest(key) {
            Some(known) => format!("unknown key {key:?}; did you mean {known:?}?"),
            None => format!("unknown key {key:?}; the keys are {}", KEYS.join(", ")),
        };
    }
    if written.contains('=') && KEYS.contains(&key) { format!("{key}: {message}") } else { message.to_owned() }
}

/// The line that sets `key`, or 1.
pub fn line_of(text: &str, key: &str) -> usize {
    line_that_sets(text, key).unwrap_or(1)
}

/// The line that sets `key`.
pub fn line_that_sets(text: &str, key: &str) -> Option<usize> {
    let sets = |line: &str| line.split_once('=').is_some_and(|(left, _)| left.trim() == key);
    text.lines().position(sets).map(|at| at + 1)
}

/// The known key that is nearest to `key`, if at most a third of its letters differ.
fn nearest(key: &str) -> Option<&'static str> {
    let (distance, known) = KEYS.iter().map(|known| (edits(key, known), *known)).min()?;
    (distance <= known.len().max(3) / 3).then_some(known)
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
