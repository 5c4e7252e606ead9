//! Checks a configuration file before a service has it (`towpath check-config`).

use crate::admission::Admission;
use crate::config::{Config, ConfigError, SandboxSetting};
use crate::cpus;
use crate::policy::Entry;
use crate::policy::list::PROGRAM_IS_NO_BOUNDARY;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A configuration that a service would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Its file.
    pub file: PathBuf,
    /// Rules and limits of its policy.
    pub rules: usize,
    /// Other stacks that it names.
    pub stacks: Vec<String>,
    /// What an operator may not have meant.
    pub notes: Vec<String>,
}

/// Reads and checks a file as a start would, with the names and CPUs of this host. The error is what the start would say.
pub fn judge(file: &Path) -> Result<Judged, ConfigError> {
    let config = Config::load(file)?;
    of_this_host(&config)?;
    let mut notes = notes(&config);
    let stacks: Vec<String> = config.stacks.keys().cloned().collect();
    for name in &stacks {
        let stack = config.of_stack(name)?;
        of_this_host(&stack)?;
        notes.extend(self::notes(&stack).into_iter().map(|note| format!("stacks.{name}: {note}")));
    }
    let file = config.file.clone().unwrap_or_else(|| file.into());
    Ok(Judged { file, rules: config.policy.len(), stacks, notes })
}

fn of_this_host(config: &Config) -> Result<(), ConfigError> {
    let own = rustix::process::geteuid().as_raw();
    Admission::new(own, &config.admit).map_err(|why| config.error_at("admit", why.reason()))?;
    cpus::check(config)
}

fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for (at, entry) in config.policy.iter().enumerate() {
        if let Some(first) = config.policy[..at].iter().position(|earlier| earlier == entry) {
            notes.push(format!("policy: rule {} is never asked: rule {} is the same ({entry})", at + 1, first + 1));
        }
    }
    if config.policy.iter().any(Entry::names_a_program) {
        notes.push(format!("policy: {PROGRAM_IS_NO_BOUNDARY}"));
    }
    if config.sandbox == SandboxSetting::Off {
        notes.push("sandbox: \"off\" is for the search for an error".into());
    }
    if config.trust_network {
        notes.push("trust_network: everybody who reaches the network reads and changes what is sent".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn said(name: &str, text: &str) -> Result<Judged, String> {
        let file = std::env::temp_dir().join(format!("towpath-judge-{}-{name}.toml", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let judged = judge(&file).map_err(|why| why.to_string().replace(&*file.to_string_lossy(), "FILE"));
        std::fs::remove_file(&file).unwrap();
        judged
    }

    #[test]
    fn a_configuration_is_judged_with_the_names_of_this_host() {
        let good = said("good", "policy = [\"deny connect port 25\"]\n[stacks.red]\nstack = \"kernel\"\n").unwrap();
        assert_eq!((good.rules, good.stacks, good.notes), (1, vec!["red".to_owned()], vec![]));
        for (text, why) in [
            ("spinn = 1\n", "FILE:1: unknown key \"spinn\"; did you mean \"spin\"?"),
            (
                "cores = 1\nadmit = [\"group:no-such-group\"]\n",
                "FILE:2: admit: there is no group \"no-such-group\" on this machine (see `getent group`)",
            ),
            ("cpus = [1023]\n", "cpus: there is no CPU 1023 that this process may use"),
            ("[stacks.red]\nadmit = [\"user:no-such-user\"]\n", "FILE:2: admit: there is no user \"no-such-user\""),
        ] {
            let error = said("wrong", text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_may_not_be_meant_is_noted() {
        let text = "policy = [\"deny connect port 25\", \"limit program nginx rate 1gbit\", \"deny connect port 25\"]\n\
                    sandbox = \"off\"\n[stacks.red]\nstack = \"remote\"\nremote = \"tcp:a:1\"\ntrust_network = true\n";
        let notes = said("notes", text).unwrap().notes;
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert_eq!(notes[0], "policy: rule 3 is never asked: rule 1 is the same (deny connect port 25)");
        assert!(
            notes[1].contains("confines nobody") && notes[3].starts_with("stacks.red: trust_network: "),
            "{notes:?}"
        );
    }
}
