//! Parsers of texts that people and programs write: configuration, commands, rules, units. Each file of the corpus is
//! replayed as it is and with changes. The files are written by hand; findings of a fuzzer belong there, too.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use towpath_service::admission::Admit;
use towpath_service::api::parse_command;
use towpath_service::config::Config;
use towpath_service::policy::cidr::Cidr;
use towpath_service::policy::limit::parse_rate;
use towpath_service::policy::{Entry, parse};
use towpath_service::units::{Bytes, Duration};

fn corpus(target: &str) -> Vec<String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Runs the target on every file, then on files in which pieces are replaced by pieces of others or by any bytes.
fn fuzz(name: &str, target: impl Fn(&str) + std::panic::RefUnwindSafe) {
    let files = corpus(name);
    files.iter().for_each(|text| target(text));
    type Edit = (u8, u8, u8, Option<char>);
    bolero::check!().with_type::<(u8, Vec<Edit>)>().with_iterations(5_000).for_each(|(nth, edits)| {
        let mut text: Vec<char> = files[usize::from(*nth) % files.len()].chars().collect();
        for &(at, len, from, with) in edits.iter().take(5) {
            let at = usize::from(at) % (text.len() + 1);
            let end = (at + usize::from(len % 16)).min(text.len());
            let other: Vec<char> = files[usize::from(from) % files.len()].chars().collect();
            let start = usize::from(len) % (other.len() + 1);
            let piece = with.map_or_else(|| other[start..(start + 12).min(other.len())].to_vec(), |with| vec![with]);
            text.splice(at..end, piece);
        }
        target(&text.iter().collect::<String>());
    });
}

#[test]
fn fuzz_configuration() {
    fuzz("config", |text| {
        if let Ok(config) = Config::parse(Path::new("test.toml"), text) {
            config.check().expect("what is read has been checked");
        }
    });
}

#[test]
fn fuzz_commands() {
    fuzz("command", |text| {
        if let Ok(command) = parse_command(text) {
            let again = serde_json::to_string(&command).unwrap();
            assert_eq!(parse_command(&again), Ok(command), "{again}");
        }
    });
}

#[test]
fn fuzz_rules_and_questions() {
    fuzz("rule", |text| {
        let _ = parse::question(text);
        if let Ok(entry) = text.parse::<Entry>() {
            let shown = entry.to_string();
            assert_eq!(shown.parse::<Entry>().map(|again| again.to_string()), Ok(shown.clone()), "{text:?}");
        }
    });
}

#[test]
fn fuzz_units_and_addresses() {
    fuzz("unit", |text| {
        let _ = (text.parse::<Duration>(), text.parse::<Bytes>(), text.parse::<Admit>(), parse_rate(text));
        if let Ok(cidr) = text.parse::<Cidr>() {
            assert_eq!(cidr.to_string().parse::<Cidr>().map(|again| again.to_string()), Ok(cidr.to_string()));
        }
    });
}
