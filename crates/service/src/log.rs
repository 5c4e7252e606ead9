//! The service's log, on standard error. Which lines are written can change while it runs (`towpath log-level`).
//!
//! Each process has its own: what is changed here does not reach the broker. So a process that was taken over cannot silence
//! the one that watches it.
//!
//! Where standard error leads to systemd's journal, lines have fields there: each has its name behind `TOWPATH_`.

mod record;
mod relay;

pub use self::record::of_service;
pub use self::relay::apart;

use self::record::{AsRecord, priority};
use crate::api::LogLevel;
use crate::config::ConfigError;
use crate::log_filter;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

/// Set by systemd: device and inode of the stream that leads to its journal.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Changes the filter of the log of this process.
type Change = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

/// The log of this process.
struct Log {
    change: Change,
    /// The filter of the start.
    first: String,
    now: Mutex<String>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log. `TOWPATH_LOG` filters it (`debug`, `towpath_service=debug`; default `info`).
pub fn start() -> Result<(), ConfigError> {
    let (text, filter) = log_filter::from_environment()?;
    let ansi = io::stderr().is_terminal();
    let to_journal = leads_to_journal(io::stderr());
    // A journal that takes no fields takes the lines, with their priorities.
    let with_fields = to_journal && relay::start().is_ok();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi);
    let change: Change = if with_fields {
        // Complaints on standard error would end the thread that complains when nobody reads there.
        let builder = builder.with_ansi(false).log_internal_errors(false).event_format(AsRecord);
        let builder = builder.with_filter_reloading();
        let handle = builder.reload_handle();
        let _ = builder.try_init();
        Box::new(move |filter| handle.reload(filter))
    } else if to_journal {
        // The journal has the time.
        let builder = builder.event_format(OfJournal(Format::default().without_time())).with_filter_reloading();
        let handle = builder.reload_handle();
        let _ = builder.try_init();
        Box::new(move |filter| handle.reload(filter))
    } else {
        let builder = builder.with_filter_reloading();
        let handle = builder.reload_handle();
        let _ = builder.try_init();
        Box::new(move |filter| handle.reload(filter))
    };
    let _ = LOG.set(Log { change, now: Mutex::new(text.clone()), first: text });
    Ok(())
}

/// The filter in force. It is changed to this one first, or to that of the start.
pub fn level(set: Option<&str>, reset: bool) -> Result<LogLevel, String> {
    let Some(log) = LOG.get() else { return Err("this process writes no log".into()) };
    let mut now = log.now.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = set.or(reset.then_some(&log.first)) {
        let (text, filter) = log_filter::parse(text)?;
        // The line is in the log before or after, whichever filter shows it.
        tracing::info!("log level: {text}");
        (log.change)(filter).map_err(|why| why.to_string())?;
        tracing::info!("log level: {text}");
        text.clone_into(&mut now);
    }
    Ok(LogLevel { filter: now.clone(), start: log.first.clone() })
}

/// Does this stream lead to systemd's journal?
fn leads_to_journal(stream: impl AsFd) -> bool {
    let Ok(variable) = std::env::var(JOURNAL) else { return false };
    let found = rustix::fs::fstat(stream).map(|found| format!("{}:{}", found.st_dev, found.st_ino));
    found.is_ok_and(|found| found == variable)
}

/// The usual format behind the priority of syslog, which the journal takes for its field PRIORITY (sd-daemon(3)).
struct OfJournal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for OfJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(to, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, to, event)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_stream_that_systemd_names_is_its_journal() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!leads_to_journal(&file), "tests have none");
    }
}
