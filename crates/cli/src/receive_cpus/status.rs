//! `towpath cores status`.

use super::cpu_owners::{Known, OwnerTable, Times};
use super::decider_status::{DeciderStatus, RecentDecision};
use super::screen::{Page, Size};
use super::show::{plain, plain_lines};
use clap::Args;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use towpath_rxcpus::{Machine, Tree};
use towpath_service::background::exit;

/// Help after the options.
pub const HELP: &str = "Examples:
  towpath cores status
  towpath cores status --watch
  towpath cores status --json | jq '.cpus[] | select(.owner == \"receive\").cpu'

Exit codes: 0 nothing is wrong; 1 failed; 2 wrong command line; 4 there are alarms:
  saturated  the device and applications both want more CPUs: there is nothing to give
  fused      too many changes were for the worse: nothing is changed for a while
  drift      somebody else has changed what was set
  stalled    the process that decides has stopped to
  abandoned  it was killed, and its settings are still there: towpath cores restore
  overlap    a stack's thread is pinned to a CPU that is reserved for the device";
/// Exit code with alarms.
const ALARMS: u8 = 4;
/// The time over which busy shares are measured.
const WATCH: Duration = Duration::from_millis(500);

/// Shows the owner of each CPU, and why.
#[derive(Args)]
pub struct Arguments {
    /// Again every second, until a signal comes
    #[arg(long)]
    watch: bool,
    /// With --watch: end after this many
    #[arg(long, value_name = "N", requires = "watch")]
    times: Option<u64>,
    /// What an `observe --state PATH` writes, in place of what the running `enforce` does
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Shows it.
pub fn run(arguments: &Arguments) -> ExitCode {
    match look(arguments) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(ALARMS),
        Err(error) => crate::fail(&error, arguments.json, exit::FAILED),
    }
}

/// Returns whether there were alarms at the end.
fn look(arguments: &Arguments) -> Result<bool, String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    super::refuse_unknown(&machine)?;
    let boot_id = machine.boot_id;
    let place = arguments.state.clone().unwrap_or_else(towpath_rxcpus::state_place);
    let redraw = arguments.watch && !arguments.json && std::io::stdout().is_terminal();
    let times = if arguments.watch { arguments.times.unwrap_or(u64::MAX) } else { 1 };
    let mut before = Times::read(&tree);
    let mut alarms = false;
    for _ in 0..times {
        std::thread::sleep(if arguments.watch { Duration::from_secs(1) } else { WATCH });
        let status = DeciderStatus::read(&place, &tree, &boot_id)?;
        let known =
            Known { status: status.as_ref(), journal: towpath_rxcpus::journal_place().exists(), before: &before };
        let picture = OwnerTable::read(&tree, &known);
        before = Times::read(&tree);
        alarms = !picture.alarms.is_empty();
        let text = match arguments.json {
            true => crate::json::line(&picture),
            false if redraw => page(&picture, status.as_ref()).drawn(Size::of(std::io::stdout())),
            false => picture.text(),
        };
        if std::io::stdout().lock().write_all(text.as_bytes()).is_err() {
            // `towpath cores status --watch | head`
            break;
        }
    }
    Ok(alarms)
}

/// The page that is redrawn, with the last decisions below.
fn page(picture: &OwnerTable, status: Option<&DeciderStatus>) -> Page {
    let lines = |text: &str| plain_lines(text).lines().map(str::to_owned).collect();
    let last = status.map_or(&[][..], |status| &status.decisions[status.decisions.len().saturating_sub(5)..]);
    let first = |told: &RecentDecision| told.entry.text().lines().next().map(plain);
    Page { table: lines(&picture.table()), foot: lines(&picture.foot()), tail: last.iter().filter_map(first).collect() }
}
