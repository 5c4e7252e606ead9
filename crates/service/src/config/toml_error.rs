//! Explains an error of the TOML parser: the key, and the key that was probably meant.

use super::KEYS;
use crate::admission::Admit;
use crate::policy::Entry;
use serde::Deserialize;
use toml::Spanned;

/// The TOML parser's message in the words of this configuration: the key, and what to write. For an unknown key: the
/// nearest known one.
pub fn explain(text: &str, line: usize, message: &str) -> String {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let written = lines.last().copied().unwrap_or_default();
    if message.starts_with("unknown field") {
        let key = message.split('`').nth(1).unwrap_or_else(|| written.split('=').next().unwrap_or_default().trim());
        return match nearest(key) {
            Some(known) => format!("unknown key {key:?}; did you mean {known:?}?"),
            None => format!("unknown key {key:?}; the keys are {}", KEYS.join(", ")),
        };
    }
    // The entries of a list may stand on lines of their own.
    let set = lines.iter().rev().find_map(|line| line.split_once('='));
    match set.map(|(key, value)| (key.trim(), value.trim())).filter(|(key, _)| KEYS.contains(key)) {
        Some((key, value)) => {
            format!("{key}: {}", right_form(key, value, message).unwrap_or_else(|| message.to_owned()))
        }
        None => message.to_owned(),
    }
}

/// What to write instead of `value`, if the parser says that it has the wrong type.
fn right_form(key: &str, value: &str, message: &str) -> Option<String> {
    let bare = value.trim_matches('"');
    let quoted = format!("write it in quotes: {key} = \"{bare}\"");
    if message.starts_with("string values must be quoted") && bare.starts_with('[') {
        let entries =
            bare.trim_matches(['[', ']']).split(',').map(|entry| format!("{:?}", entry.trim().trim_matches('"')));
        return Some(format!("its entries stand in quotes: {key} = [{}]", entries.collect::<Vec<_>>().join(", ")));
    }
    if message.starts_with("string values must be quoted") {
        return (!bare.is_empty()).then_some(quoted);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let mut names = rest.split('`').skip(1).step_by(2);
        let (unknown, known) = (names.next()?, names.map(|name| format!("{name:?}")).collect::<Vec<_>>());
        return Some(format!("{unknown:?} is not known; write {}", known.join(" or ")));
    }
    let (found, expected) = message.split_once(", expected ")?;
    let entry = match key {
        "admit" => "\"uid:1000\"",
        "interface" => "\"eth1\"",
        "policy" => "\"deny connect port 25\"",
        _ => "2",
    };
    let whole = |most: u64| match found.split('`').nth(1) {
        Some(number) if found.starts_with("invalid value: integer") => format!("{number} is outside 0 to {most}"),
        _ if bare.parse::<u64>().is_ok() => format!("{value} is no number; write {key} = {bare}"),
        _ => format!("{value} is no number; write a whole one, from 0 to {most}"),
    };
    Some(match expected {
        "a sequence" if value.starts_with('"') || key == "cpus" => {
            format!("{value} is no list; write {key} = [{value}]")
        }
        "a sequence" => format!("{value} is no list; write one such as {key} = [{entry}]"),
        "a string" if value.starts_with('[') => format!("its entries stand in quotes: {key} = [{entry}]"),
        "a string" => quoted,
        "a boolean" => format!("{value} is neither true nor false; write one of them, without quotes"),
        "a map" => format!("{value} is no table; write [{key}.NAME] on a line of its own, and its keys below"),
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "usize" => whole(usize::MAX as u64),
        _ => return None,
    })
}

/// The lists whose entries have a form of their own.
#[derive(Deserialize)]
struct Lists {
    #[serde(default)]
    admit: Vec<Spanned<String>>,
    #[serde(default)]
    policy: Vec<Spanned<String>>,
}

/// The line of the first entry that has the wrong form, of the list that this line begins. The parser names only where the
/// list begins.
pub fn line_of_entry(text: &str, line: usize) -> Option<usize> {
    let key = text.lines().nth(line - 1)?.split('=').next()?.trim();
    let Lists { admit, policy } = toml::from_str(text).ok()?;
    let wrong = match key {
        "admit" => admit.iter().find(|entry| entry.get_ref().parse::<Admit>().is_err())?,
        "policy" => policy.iter().find(|entry| entry.get_ref().parse::<Entry>().is_err())?,
        _ => return None,
    };
    Some(line_at(text, wrong.span().start))
}

/// The line of this byte.
pub fn line_at(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
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
