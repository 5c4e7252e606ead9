//! `towpathd --listen`: serves other services with this kernel's sockets. It is the other end of `stack = "remote"`.
//!
//! The process that is started accepts hosts, and reads nothing of theirs. Each host has a process of its own, in a
//! sandbox, from its first byte. So a host that takes its process over reaches no other host.

mod host_process;
mod hosts;

use self::hosts::Hosts;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use towpath_kernel::KernelConfig;
use towpath_remote::address::Address;
use towpath_remote::listener::Listener;
use towpath_remote::security::Security;
use towpath_remote::token::Token;
use towpath_runtime::OrphanLimits;
use towpath_service::config::{Config, ConfigError, CoresSetting, SandboxSetting};
use towpath_service::{background, cpus, log};

/// Listens at an address and serves every service that connects, until a signal ends the process. Returns the exit code
/// of a failure.
pub fn main(config: Result<Config, ConfigError>, address: &str) -> ExitCode {
    let done = match log::start().and(config).and_then(|config| cpus::check(&config).map(|()| config)) {
        Ok(config) => listen(&config, address).map_err(|why| (why, background::exit::FAILED)),
        Err(error) => Err((error.to_string(), background::exit::USAGE)),
    };
    ended(done)
}

/// Makes a token. Returns the exit code.
pub fn make_token(file: &Path) -> ExitCode {
    ended(Token::make(file).map_err(|why| (why.to_string(), background::exit::FAILED)))
}

fn ended(done: Result<(), (String, u8)>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((why, code)) => {
            let _ = writeln!(io::stderr(), "towpathd: {why}");
            ExitCode::from(code)
        }
    }
}

fn listen(config: &Config, address: &str) -> Result<(), String> {
    let address = address.parse::<Address>()?;
    let named = |error: io::Error| format!("{address}: {error}");
    let security = Security::of(config.token.as_deref(), config.trust_network).map_err(|why| why.to_string())?;
    let listener = Listener::new(&address, &security).map_err(named)?;
    let CoresSetting::Fixed(cores) = config.cores else {
        return Err(format!("{address}: cores: the server has a fixed number of them; write one"));
    };
    let kernel = KernelConfig {
        cores,
        spin_us: config.spin.as_micros(),
        cpus: config.cpus.clone(),
        orphans: OrphanLimits::default(),
    };
    tracing::info!(address = %listener.address().map_err(named)?, cores, "serving");
    if config.sandbox == SandboxSetting::Off {
        tracing::warn!("no sandbox: the configuration says sandbox = \"off\"");
    } else if matches!(listener, Listener::Unix(..)) {
        tracing::info!("no sandbox: root and this user may run programs here (`towpath exec`)");
    }
    Hosts::new(config, kernel).serve(&listener).map_err(named)
}
