//! `TOWPATH_LOG`: which log lines are written.

use crate::config::ConfigError;
use tracing_subscriber::EnvFilter;

/// Environment variable with the filter.
const VARIABLE: &str = "TOWPATH_LOG";
/// The filter where there is none.
const DEFAULT: &str = "info";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The crates that write log lines. A line's target begins with its crate.
const TARGETS: [&str; 9] = [
    "towpath_broker",
    "towpath_service",
    "towpath_towpathd",
    "towpath_runtime",
    "towpath_fast",
    "towpath_kernel",
    "towpath_forward",
    "towpath_guest",
    "towpath_remote",
];

/// The filter that the environment names, and its text.
pub fn from_environment() -> Result<(String, EnvFilter), ConfigError> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
    let (text, filter) = parse(&text).map_err(|why| ConfigError::Value(format!("{VARIABLE}: {why}")))?;
    Ok((text.to_owned(), filter))
}

/// Reads a filter. Its text is the default's if it names nothing. `tracing` takes any word for a target, so that a mistyped
/// level would silence the log.
pub fn parse(text: &str) -> Result<(&str, EnvFilter), String> {
    let directives: Vec<&str> = text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    match directives.iter().find(|directive| !is_known(directive)) {
        None if directives.is_empty() => Ok((DEFAULT, EnvFilter::new(DEFAULT))),
        None => EnvFilter::try_new(text).map(|filter| (text, filter)).map_err(|error| error.to_string()),
        Some(unknown) => Err(format!(
            "{unknown:?} selects no lines; write a level ({}), or TARGET=LEVEL with one of the targets {}",
            LEVELS.join(", "),
            TARGETS.join(", ")
        )),
    }
}

/// A level, a target, or a target and a level.
fn is_known(directive: &str) -> bool {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let is_target = |word: &str| TARGETS.contains(&word.split("::").next().unwrap_or_default());
    match directive.split_once('=') {
        Some((target, level)) => is_target(target.trim()) && is_level(level.trim()),
        None => is_level(directive) || is_target(directive),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    #[test]
    fn a_filter_that_selects_nothing_is_refused() {
        for good in ["", "debug", "INFO", "warn,towpath_service=debug", "towpath_fast", "towpath_service::policy=trace"]
        {
            assert_eq!(parse(good).unwrap().0, if good.is_empty() { DEFAULT } else { good });
        }
        assert_eq!(parse(" , ").unwrap().0, DEFAULT);
        for bad in ["verbos", "towpath_service=loud", "towpath_servce=debug", "debug,loud", "info=debug", "[span]=info"]
        {
            let why = parse(bad).unwrap_err();
            assert!(why.contains("selects no lines; write a level (off, error, warn, info, debug, trace)"), "{why}");
        }
    }

    #[test]
    fn every_crate_that_logs_can_be_named() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folders = std::fs::read_dir(crates).unwrap().chain(std::fs::read_dir(crates.join("stacks")).unwrap());
        let manifests =
            folders.filter_map(|folder| std::fs::read_to_string(folder.unwrap().path().join("Cargo.toml")).ok());
        let mut logging = 0;
        for manifest in manifests.filter(|text| text.contains("\ntracing.workspace = true")) {
            let name = manifest.split('"').nth(1).unwrap().replace('-', "_");
            assert!(TARGETS.contains(&name.as_str()), "{name}");
            logging += 1;
        }
        assert_eq!(logging, TARGETS.len());
    }
}
