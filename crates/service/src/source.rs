//! The flags and the file that a service was configured by.

use crate::config::Config;
use crate::options::Options;
use std::sync::Mutex;

/// What a running service was configured by.
#[derive(Debug, Default)]
pub struct Source {
    /// The flags.
    pub options: Options,
    /// The configuration in force. Keys that need a restart have their values of the start.
    pub in_force: Mutex<Config>,
}

impl Source {
    /// Flags, with the configuration that they and the file made.
    pub fn new(options: Options, config: Config) -> Self {
        Self { options, in_force: Mutex::new(config) }
    }
}
