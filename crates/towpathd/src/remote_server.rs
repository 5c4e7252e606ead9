//! `towpathd --listen`: serves other services with this kernel's sockets. It is the other end of `stack = "remote"`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_kernel::KernelConfig;
use towpath_remote::Link;
use towpath_remote::address::Address;
use towpath_remote::listener::Listener;
use towpath_remote::security::Security;
use towpath_remote::server::{ServerConfig, serve};
use towpath_remote::token::Token;
use towpath_remote::waiting::WaitingHosts;
use towpath_ring::wake;
use towpath_runtime::OrphanLimits;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::affinity_guard::AffinityGuard;
use towpath_service::config::{Config, ConfigError, CoresSetting};
use towpath_service::{background, cpus, daemon};

/// Of connections that come to nothing: strangers decide how often.
static LINES: LogThrottle = LogThrottle::new();

/// Most services that are served at a time.
const MAX_SERVICES: usize = 16;

/// Listens at an address and serves every service that connects, until a signal ends the process. Returns the exit code
/// of a failure.
pub fn main(config: Result<Config, ConfigError>, address: &str) -> ExitCode {
    let done = match daemon::start_log().and(config).and_then(|config| cpus::check(&config).map(|()| config)) {
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
    if config.cpus.is_empty() {
        // Nothing notifies this doorbell, so the guard stays for the life of the process.
        let never = wake::doorbell().map_err(|error| error.to_string())?;
        AffinityGuard::begin().start(never).map_err(|error| error.to_string())?;
    }
    let named = |error: io::Error| format!("{address}: {error}");
    let security = Security::of(config.token.as_deref(), config.trust_network).map_err(|why| why.to_string())?;
    let listener = Listener::new(&address, &security).map_err(named)?;
    accept(config, &listener).map_err(named)
}

fn accept(config: &Config, listener: &Listener) -> io::Result<()> {
    let CoresSetting::Fixed(cores) = config.cores else {
        let why = "cores: the server has a fixed number of them; write one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let kernel = KernelConfig {
        cores,
        spin_us: config.spin.as_micros(),
        cpus: config.cpus.clone(),
        orphans: OrphanLimits::default(),
    };
    tracing::info!(address = %listener.address()?, cores, "serving");
    let (services, waiting) = (Arc::new(AtomicUsize::new(0)), WaitingHosts::default());
    loop {
        let host = listener.accept();
        let Some(place) = waiting.enter(&host) else {
            if LINES.allows() {
                tracing::warn!("a host is refused: too many connect at once, or descriptors have run out");
            }
            continue;
        };
        let config = ServerConfig { kernel: kernel.clone(), may_run: host.known() };
        let services = Arc::clone(&services);
        let spawned = std::thread::Builder::new().name("server".into()).spawn(move || {
            let link = host.link();
            // Now it is known, and the next may wait.
            drop(place);
            match link {
                Ok(link) => admit(link, &config, &services),
                Err(why) if LINES.allows() => tracing::warn!("a service could not be served: {why}"),
                Err(_) => {}
            }
        });
        if let Err(error) = spawned
            && LINES.allows()
        {
            tracing::warn!("a service could not be served: no thread for it: {error}");
        }
    }
}

/// Serves a service, if there is a place for it.
fn admit(link: Arc<dyn Link>, config: &ServerConfig, services: &AtomicUsize) {
    // Both lines or none.
    let says = LINES.allows();
    if services.fetch_add(1, Ordering::Relaxed) < MAX_SERVICES {
        if says {
            tracing::info!("a service has connected");
        }
        let why = serve(link, config);
        if says {
            tracing::info!("a service has disconnected: {why}");
        }
    } else if says {
        tracing::warn!("{MAX_SERVICES} services are served already; one more is refused");
    }
    services.fetch_sub(1, Ordering::Relaxed);
}
