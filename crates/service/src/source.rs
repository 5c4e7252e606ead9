//! The flags and the file that a service was configured by.

use crate::api::ConfigurationStatus;
use crate::config::Config;
use crate::fingerprint::first_generation;
use crate::options::Options;
use std::sync::{Mutex, PoisonError};

/// What a running service was configured by.
#[derive(Debug, Default)]
pub struct Source {
    /// The flags.
    pub options: Options,
    /// The configuration in force. Keys that need a restart have their values of the start.
    pub in_force: Mutex<Config>,
    /// What is shown of it, also while a reload takes its time.
    shown: Mutex<ConfigurationStatus>,
}

impl Source {
    /// Flags, with the configuration that they and the file made.
    pub fn new(options: Options, config: Config) -> Self {
        let shown = Mutex::new(status(&config, first_generation()));
        Self { options, in_force: Mutex::new(config), shown }
    }

    /// This is in force now.
    pub fn show(&self, config: &Config) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = shown.hash != config.hash;
        *shown = status(config, shown.generation + u64::from(changed));
    }

    /// For `towpath status`.
    pub fn status(&self) -> ConfigurationStatus {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn status(config: &Config, generation: u64) -> ConfigurationStatus {
    let restart = config.waiting.iter().map(|key| (*key).to_owned()).collect();
    ConfigurationStatus { file: config.file.clone(), generation, hash: config.hash.clone(), restart }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    #[test]
    fn a_file_with_another_text_has_the_next_generation() {
        let of = |text: &str| Config::of_text(Path::new("/t.toml"), text).unwrap();
        let source = Source::new(Options::default(), of("cores = 1\n"));
        let first = source.status();
        assert_eq!(first.hash, Some(crate::fingerprint::hash("cores = 1\n")));
        source.show(&of("cores = 1\n"));
        assert_eq!(source.status(), first);
        let next = of("cores = 1\n").with_changeable_of(&of("cores = 2 # a second one\n"));
        source.show(&next);
        let second = source.status();
        assert_eq!((second.generation, &second.restart[..]), (first.generation + 1, &["cores".to_owned()][..]));
        assert_eq!(second.hash, Some(crate::fingerprint::hash("cores = 2 # a second one\n")));
        source.show(&next.with_changeable_of(&of("cores = 1\n")));
        assert!(source.status().restart.is_empty(), "the file is as it was at the start");
    }
}
