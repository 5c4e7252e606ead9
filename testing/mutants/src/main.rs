//! `towpath-mutants FROM TO < CHANGES > PLACES`: writes files of FROM into TO with many small changes in them, each behind a number.
//!
//! CHANGES is JSON: the list of cargo-mutants, where each change has a `number`, and `drop` if it is to be left out. PLACES is JSON:
//! per file the byte ranges of what was written, with the numbers that belong to each. It also has the changes that
//! have no place, with the reason. `scripts/mutants` compiles the result, and drops what the compiler objects to.

#![forbid(unsafe_code)]

mod find;
mod render;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A position as cargo-mutants says it: lines and columns from 1, columns in characters.
#[derive(Deserialize, Clone, Copy)]
struct Position {
    line: usize,
    column: usize,
}

#[derive(Deserialize, Clone, Copy)]
struct Span {
    start: Position,
    end: Position,
}

/// One change of the list.
#[derive(Deserialize)]
struct Change {
    number: u32,
    file: String,
    genre: String,
    replacement: String,
    span: Span,
    #[serde(default)]
    drop: bool,
}

/// What was written of a file, for whoever reads the compiler's errors about it.
#[derive(Serialize)]
struct Written {
    places: Vec<render::Place>,
    /// Changes without a place in the file, with the reason.
    left: BTreeMap<u32, &'static str>,
    /// Changes in functions that the compiler may run: such a change may never have a chance at run time.
    in_const_fn: Vec<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, from, to] = arguments.as_slice() else { return Err("usage: towpath-mutants FROM TO".into()) };
    let changes: Vec<Change> = serde_json::from_reader(std::io::stdin())?;
    let mut files: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
    for change in &changes {
        files.entry(&change.file).or_default().push(change);
    }
    let mut written = BTreeMap::new();
    for (name, changes) in files {
        let source = std::fs::read_to_string(Path::new(from).join(name))?;
        let (text, about) = changed(&source, &changes).map_err(|error| format!("{name}: {error}"))?;
        let path = Path::new(to).join(name);
        // cargo builds again what has a new time.
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            // A folder may have no other file than such as have changes.
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&path, text)?;
        }
        written.insert(name, about);
    }
    serde_json::to_writer(std::io::stdout(), &written)?;
    Ok(())
}

fn changed(source: &str, changes: &[&Change]) -> Result<(String, Written), syn::Error> {
    let found = find::sites(source, changes)?;
    let mut left = found.left;
    for change in changes {
        if !found.seen.contains(&change.number) {
            left.entry(change.number).or_insert("its form is unknown");
        }
    }
    let (text, places) = render::render(source, found.sites);
    Ok((text, Written { places, left, in_const_fn: found.in_const_fn }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u32, genre: &str, replacement: &str, (line, column): (usize, usize), end: usize) -> Change {
        let span = Span { start: Position { line, column }, end: Position { line, column: end } };
        Change { number, file: String::new(), genre: genre.into(), replacement: replacement.into(), span, drop: false }
    }

    /// The text without line ends, which are for whoever reads it.
    fn of(source: &str, changes: &[Change]) -> (String, Written) {
        let (text, written) = changed(source, &changes.iter().collect::<Vec<_>>()).expect("a program");
        (text.replace('\n', " "), written)
    }

    #[test]
    fn operands_of_a_chain_are_written_once() {
        let plus = [change(1, "BinaryOperator", "-", (1, 24), 25), change(2, "BinaryOperator", "+", (1, 28), 29)];
        let (text, written) = of("fn f(a: u8) -> u8 { a  + a * a }", &plus);
        assert_eq!(text.matches("::mutant_point::on(").count(), 2);
        assert_eq!(text.matches("(a)").count(), 3, "{text}");
        assert!(written.left.is_empty());
    }

    #[test]
    fn what_only_the_compiler_computes_is_left() {
        let (text, written) = of("const A: u8 = 1 + 2;", &[change(7, "BinaryOperator", "-", (1, 17), 18)]);
        assert_eq!(text, "const A: u8 = 1 + 2;");
        assert!(written.left.contains_key(&7));
    }

    #[test]
    fn a_dropped_change_leaves_no_text() {
        let mut dropped = change(3, "UnaryOperator", "", (1, 23), 24);
        dropped.drop = true;
        let source = "fn f(a: bool) -> bool {!a}";
        assert_eq!(of(source, &[dropped]).0, source);
    }

    #[test]
    fn the_text_is_a_program() {
        let source = "fn f(a: u8) -> u8 { match a { 1 if a < 3 => 2, 2 => 5, _ => 4 } }";
        let changes = [
            change(1, "FnValue", "0", (1, 21), 64),
            change(2, "MatchArmGuard", "true", (1, 36), 41),
            change(3, "MatchArm", "", (1, 48), 54),
            change(4, "MatchArm", "", (1, 31), 47),
            change(5, "BinaryOperator", ">", (1, 38), 39),
        ];
        let (text, written) = of(source, &changes);
        assert!(syn::parse_file(&text).is_ok(), "{text}");
        assert!(written.left.is_empty(), "{:?}", written.left);
        assert!((1..=5).all(|number| text.contains(&format!("on({number})"))), "{text}");
    }
}
