//! The hosts that are served, and those that are not known yet.

use super::host_process::{HostProcess, Said};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};
use towpath_kernel::KernelConfig;
use towpath_remote::listener::{ConnectedHost, Listener};
use towpath_remote::waiting::{WaitingHost, WaitingHosts};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::affinity_guard::AffinityGuard;
use towpath_service::config::Config;

/// Of connections that come to nothing: strangers decide how often.
static LINES: LogThrottle = LogThrottle::new();

/// Most services that are served at a time.
const MAX_SERVICES: usize = 16;

/// Time between two looks at reserved CPUs.
const CHECK: Duration = Duration::from_secs(1);

/// See the module.
pub struct Hosts<'a> {
    config: &'a Config,
    kernel: KernelConfig,
    waiting: WaitingHosts,
    running: Vec<Host>,
    /// Processes that say nothing more.
    ending: Vec<HostProcess>,
    affinity: Option<AffinityGuard>,
}

struct Host {
    process: HostProcess,
    /// `None`: it is known, and served.
    place: Option<WaitingHost>,
    /// Is its end logged? Both lines are, or none.
    logged: bool,
}

impl<'a> Hosts<'a> {
    /// Without hosts.
    pub fn new(config: &'a Config, kernel: KernelConfig) -> Self {
        let affinity = config.cpus.is_empty().then(AffinityGuard::begin);
        let (waiting, running, ending) = (WaitingHosts::default(), Vec::new(), Vec::new());
        Self { config, kernel, waiting, running, ending, affinity }
    }

    /// Serves every host that connects, for ever.
    pub fn serve(&mut self, listener: &Listener) -> io::Result<()> {
        let mut checked = Instant::now();
        loop {
            let mut ready = vec![PollFd::new(listener, PollFlags::IN)];
            ready.extend(self.running.iter().map(|host| PollFd::new(host.process.said(), PollFlags::IN)));
            // Reserved CPUs and ending processes are looked for.
            let time = Timespec { tv_sec: CHECK.as_secs() as i64, tv_nsec: 0 };
            let timeout = (self.affinity.is_some() || !self.ending.is_empty()).then_some(&time);
            match poll(&mut ready, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let connects = !ready[0].revents().is_empty();
            self.hear();
            self.ending.retain(|process| !process.has_ended());
            if let Some(affinity) = self.affinity.as_mut().filter(|_| checked.elapsed() >= CHECK) {
                affinity.check();
                checked = Instant::now();
            }
            if connects && let Some(host) = listener.accept() {
                self.begin(host);
            }
        }
    }

    fn begin(&mut self, host: ConnectedHost) {
        let Some(place) = self.waiting.enter(&host) else {
            if LINES.allows() {
                tracing::warn!("a host is refused: too many connect at once, or descriptors have run out");
            }
            return;
        };
        match HostProcess::start(host, self.config, &self.kernel) {
            Ok(process) => self.running.push(Host { process, place: Some(place), logged: true }),
            Err(error) if LINES.allows() => {
                tracing::warn!("a service could not be served: no process for it: {error}");
            }
            Err(_) => {}
        }
    }

    /// Hears what the processes say.
    fn hear(&mut self) {
        let mut served = self.running.iter().filter(|host| host.place.is_none()).count();
        for mut host in std::mem::take(&mut self.running) {
            let goes_on = match host.process.hear() {
                None => true,
                Some(Said::Known(sandbox)) => is_known(&mut host, &mut served, &sandbox),
                Some(Said::Over(why)) => {
                    match &host.place {
                        None if host.logged => tracing::info!("a service has disconnected: {why}"),
                        Some(_) if LINES.allows() => tracing::warn!("a service could not be served: {why}"),
                        _ => {}
                    }
                    host.logged = false;
                    true
                }
                Some(Said::Ended) => {
                    if host.logged && (host.place.is_none() || LINES.allows()) {
                        tracing::error!("the process of a service has died");
                    }
                    false
                }
            };
            if goes_on {
                self.running.push(host);
            } else {
                host.process.end();
                self.ending.push(host.process);
            }
        }
    }
}

/// A host is known now. False if there is no place for it among those that are served.
fn is_known(host: &mut Host, served: &mut usize, sandbox: &str) -> bool {
    // It says so once.
    if host.place.take().is_none() {
        return false;
    }
    host.logged = LINES.allows();
    if *served >= MAX_SERVICES {
        if host.logged {
            tracing::warn!("{MAX_SERVICES} services are served already; one more is refused");
        }
        return false;
    }
    *served += 1;
    if host.logged {
        tracing::info!(sandbox, "a service has connected");
    }
    true
}
