//! The far side of `stack = "far"`: serves, with this kernel's sockets, the services that connect to it.

use crate::background;
use crate::config::{Config, ConfigError};
use crate::cores::{Aside, Cores};
use crate::daemon;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_card::mirror::address::{Address, Listener};
use towpath_card::mirror::far::{FarConfig, serve};
use towpath_kernel::KernelConfig;
use towpath_ring::wake;

/// Services that are served at a time.
const SERVICES: usize = 16;

/// Listens at an address and serves whoever connects, until a signal ends the process; the exit code if it cannot. `trusted`: whoever
/// reaches the address may use this kernel's network.
pub fn main(config: Result<Config, ConfigError>, address: &Address, trusted: bool) -> ExitCode {
    daemon::start_log();
    let served = config.map_err(|error| error.to_string()).and_then(|config| {
        if config.cpus.is_empty() {
            // For as long as the process lives: nobody strikes this bell.
            wake::doorbell().and_then(|bell| Aside::begin().start(bell)).map_err(|error| error.to_string())?;
        }
        let listener = address.listen(trusted).map_err(|error| format!("{address}: {error}"))?;
        run(&config, &listener).map_err(|error| format!("{address}: {error}"))
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(io::stderr(), "towpath: {why}");
            ExitCode::from(background::exit::FAILED)
        }
    }
}

fn run(config: &Config, listener: &Listener) -> io::Result<()> {
    let Cores::Fixed(cores) = config.cores else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "cores: the far side has a fixed number of them; write one",
        ));
    };
    let kernel = KernelConfig { cores, spin_us: config.spin.as_micros(), cpus: config.cpus.clone() };
    tracing::info!(address = %listener.address()?, cores, "serving");
    let services = Arc::new(AtomicUsize::new(0));
    loop {
        let guest = listener.accept()?;
        if services.fetch_add(1, Ordering::Relaxed) >= SERVICES {
            services.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("{SERVICES} services are served already; one more is refused");
            continue;
        }
        let config = FarConfig { kernel: kernel.clone(), may_run: guest.known };
        let services = Arc::clone(&services);
        std::thread::Builder::new().name("far".into()).spawn(move || {
            match guest.link() {
                Ok(link) => {
                    tracing::info!("a service has come");
                    let why = serve(link, &config);
                    tracing::info!("a service has gone: {why}");
                }
                Err(why) => tracing::warn!("a service could not come: {why}"),
            }
            services.fetch_sub(1, Ordering::Relaxed);
        })?;
    }
}
