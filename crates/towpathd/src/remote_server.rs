//! `towpathd --listen`: serves other services with this kernel's sockets. It is the other end of `stack = "remote"`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_kernel::KernelConfig;
use towpath_remote::address::{Address, Listener};
use towpath_remote::server::{ServerConfig, serve};
use towpath_ring::wake;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::affinity_guard::AffinityGuard;
use towpath_service::config::{Config, ConfigError, CoresSetting};
use towpath_service::{background, cpus, daemon};

/// Of connections that come to nothing: strangers decide how often.
static LINES: LogThrottle = LogThrottle::new();

/// Most services that are served at a time.
const MAX_SERVICES: usize = 16;

/// Listens at an address and serves every service that connects, until a signal ends the process. Returns the exit code
/// of a failure. If `trusted`, any host that reaches the address may use this kernel's network.
pub fn main(config: Result<Config, ConfigError>, address: &str, trusted: bool) -> ExitCode {
    let done = match daemon::start_log().and(config).and_then(|config| cpus::check(&config).map(|()| config)) {
        Ok(config) => listen(&config, address, trusted).map_err(|why| (why, background::exit::FAILED)),
        Err(error) => Err((error.to_string(), background::exit::USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((why, code)) => {
            let _ = writeln!(io::stderr(), "towpathd: {why}");
            ExitCode::from(code)
        }
    }
}

fn listen(config: &Config, address: &str, trusted: bool) -> Result<(), String> {
    let address = address.parse::<Address>()?;
    if config.cpus.is_empty() {
        // Nothing notifies this doorbell, so the guard stays for the life of the process.
        let never = wake::doorbell().map_err(|error| error.to_string())?;
        AffinityGuard::begin().start(never).map_err(|error| error.to_string())?;
    }
    let named = |error: io::Error| format!("{address}: {error}");
    let listener = address.listen(trusted).map_err(named)?;
    accept(config, &listener).map_err(named)
}

fn accept(config: &Config, listener: &Listener) -> io::Result<()> {
    let CoresSetting::Fixed(cores) = config.cores else {
        let why = "cores: the server has a fixed number of them; write one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let kernel = KernelConfig { cores, spin_us: config.spin.as_micros(), cpus: config.cpus.clone() };
    tracing::info!(address = %listener.address()?, cores, "serving");
    let services = Arc::new(AtomicUsize::new(0));
    loop {
        let peer = listener.accept();
        if services.fetch_add(1, Ordering::Relaxed) >= MAX_SERVICES {
            services.fetch_sub(1, Ordering::Relaxed);
            if LINES.allows() {
                tracing::warn!("{MAX_SERVICES} services are served already; one more is refused");
            }
            continue;
        }
        let config = ServerConfig { kernel: kernel.clone(), may_run: peer.known };
        let count = Arc::clone(&services);
        let spawned = std::thread::Builder::new().name("server".into()).spawn(move || {
            match peer.link() {
                Ok(link) => {
                    // Both lines or none.
                    let says = LINES.allows();
                    if says {
                        tracing::info!("a service has connected");
                    }
                    let why = serve(link, &config);
                    if says {
                        tracing::info!("a service has disconnected: {why}");
                    }
                }
                Err(why) if LINES.allows() => tracing::warn!("a service could not be served: {why}"),
                Err(_) => {}
            }
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            services.fetch_sub(1, Ordering::Relaxed);
            if LINES.allows() {
                tracing::warn!("a service could not be served: no thread for it: {error}");
            }
        }
    }
}
