//! `towpath metrics`: a service and all its stacks for Prometheus.

pub mod exporter;
pub mod page;
mod service;

use self::exporter::{Address, Listener, OPENMETRICS};
use self::service::Reading;
use crate::locate::{NoService, Which};
use crate::{complain, exit, print};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_service::api::{self, Command, ModuleRequest, Status};

/// Services are asked once in this time at most, however many ask us.
const FRESH: Duration = Duration::from_secs(1);

/// Shows what a service and its other stacks count, as OpenMetrics.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath metrics                             once
  towpath metrics --listen 9464               for Prometheus, at http://127.0.0.1:9464/metrics
  towpath metrics --listen unix:/run/towpath-metrics/metrics.sock

A process of its own asks the service, at most once a second, so nobody who scrapes can disturb the service. While no service
answers, the page says `towpath_up 0`. It has no TLS and no password. It shows the names of programs and the numbers of their
users, so let it listen where you may show those. Counts of modules are there if you are the service's own user or root.
docs/guide/metrics.md has all names, a dashboard and alerts.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Serve them here until it is ended; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "[ADDR:]PORT|unix:PATH")]
    listen: Option<Address>,
}

/// Shows or serves them.
pub fn run(arguments: &Arguments) -> ExitCode {
    let Some(address) = &arguments.listen else {
        return match once(&arguments.which) {
            Ok(page) => print(&page),
            Err(error) => failed(&error.to_string(), exit::NO_SERVICE),
        };
    };
    let listener = match Listener::open(address) {
        Ok(listener) => listener,
        Err(why) => return failed(&why, exit::FAILED),
    };
    print(&format!("metrics at {}\n", listener.place(address)));
    let mut last: Option<(Instant, String)> = None;
    listener.serve(OPENMETRICS, || {
        if let Some((at, page)) = &last
            && at.elapsed() < FRESH
        {
            return page.clone();
        }
        let gone = |_| vec![Reading { stack: HOME.to_owned(), status: None, modules: None }];
        let page = service::page(&read(&arguments.which).unwrap_or_else(gone));
        last = Some((Instant::now(), page.clone()));
        page
    })
}

/// The page as it is now.
pub fn once(which: &Which) -> Result<String, NoService> {
    read(which).map(|readings| service::page(&readings))
}

fn failed(why: &str, code: u8) -> ExitCode {
    complain(why);
    ExitCode::from(code)
}

/// What the configuration calls a service's own stack.
const HOME: &str = "home";

/// Asks a service, and the stacks that it names.
fn read(which: &Which) -> Result<Vec<Reading>, NoService> {
    let socket = which.find()?;
    let status: Status = api::ask(&socket, Command::Status)?;
    // Others run only while somebody uses them. One that has failed is down.
    let others = status.stacks.iter().filter(|other| other.running || other.failed.is_some());
    let others = others.map(|other| Reading {
        stack: other.name.clone(),
        status: api::ask(&other.socket, Command::Status).ok(),
        modules: modules(&other.socket),
    });
    let mut readings: Vec<Reading> = others.collect();
    readings.insert(0, Reading { stack: HOME.to_owned(), modules: modules(&socket), status: Some(status) });
    Ok(readings)
}

fn modules(socket: &Path) -> Option<api::ModuleList> {
    api::ask(socket, Command::Module(ModuleRequest::List { name: None })).ok()
}
