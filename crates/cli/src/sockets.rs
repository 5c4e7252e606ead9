//! `towpath sockets`: like `ss -ti`.

mod dead;
mod filter;
mod kernel;
mod stacks;
mod table;

pub use self::filter::Filter;
use crate::json;
use crate::locate::{NoService, Which};
use crate::receive_cpus::screen::{Page, Size};
use crate::{complain, exit, fail};
use kernel::KernelSocket;
use serde::Serialize;
use stacks::Place;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use towpath_service::api::{self, Command, SocketStatus, Sockets};

/// Between two lists of `--watch`.
const PAUSE: Duration = Duration::from_secs(1);

/// Lists sockets with their queues, addresses, programs and TCP details.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath sockets                connections
  towpath sockets -l             listeners
  towpath sockets -a --json      everything, for a program
  towpath sockets state established '( sport = :6379 or dst 10.0.0.0/8 )'
  towpath sockets program nginx uid 33
  towpath sockets -mepO          with memory, numbers and processes, a line for each
  towpath sockets --dead         how the last connections have ended, and why
  towpath sockets --watch        again each second

FILTER is that of `ss`: state and exclude, then src, dst, sport, dport, with and, or, not and parentheses. As there, they hold from left
to right. program and uid are beside that; dev, fwmark, cgroup and autobound are not there.

Without --stack and --socket the list has all stacks of this host that admit you: the machine's service and your own, the stacks of
their configurations, and your kernel stacks. Beside them stand the sockets that their programs have with this host's kernel, as the stack
`kernel`: those that Towpath does not carry, and the kernel's halves of listeners. With --stack or --socket, --kernel adds them. You see
those that `ss -p` shows you with a process: in network namespaces that you may enter, of processes that are yours. A socket that no
process has any more (TIME-WAIT) is not among them. A line on standard error says what is left out.
--dead shows the last 1,024 ends of each stack, the newest first. Of more the oldest of the user who has most are forgotten. A service that
ends takes them with it. Kernel stacks do not know them.

A direct connection joins two programs of this host without the stack and has no details. Recv-Q and Send-Q are unread and unacknowledged bytes; of a listener the connections that wait to be accepted and
its backlog. You see your own programs' sockets; the service's user and root see all.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Only listeners
    #[arg(short, long)]
    listening: bool,
    /// Connections, listeners and TIME-WAIT
    #[arg(short, long)]
    all: bool,
    /// How the last connections have ended, and why
    #[arg(long, conflicts_with_all = ["listening", "all"])]
    dead: bool,
    /// Again each second, until a signal comes
    #[arg(short, long)]
    watch: bool,
    /// With --watch: end after this many lists
    #[arg(long, value_name = "N", requires = "watch")]
    times: Option<u64>,
    /// With --stack or --socket: also the sockets that their programs have with this host's kernel
    #[arg(short, long, conflicts_with = "dead")]
    kernel: bool,
    #[command(flatten)]
    shown: Shown,
    /// One JSON object; with --watch one for each list
    #[arg(long)]
    pub json: bool,
    /// Only these, in the words of `ss`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// What is shown of each, as `ss` has it. The JSON has all of it.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
struct Shown {
    /// User and slot; of the kernel's sockets inode, cookie and network namespace
    #[arg(short, long)]
    extended: bool,
    /// Memory: bytes in the rings; of the kernel's sockets what `ss -m` shows
    #[arg(short, long)]
    memory: bool,
    /// All processes that have it, with their descriptors of the kernel's sockets
    #[arg(short, long)]
    processes: bool,
    /// Each on one line
    #[arg(short = 'O', long = "oneline")]
    one_line: bool,
}

/// A socket, and its stack.
#[derive(Serialize)]
struct Row {
    stack: String,
    #[serde(flatten)]
    socket: SocketStatus,
    /// Of a socket of this host's kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelSocket>,
}

/// What `--json` shows.
#[derive(Serialize)]
struct Document<T> {
    sockets: Vec<T>,
}

/// Lists the sockets.
pub fn run(arguments: &Arguments) -> ExitCode {
    let filter = match Filter::parse(&arguments.filter) {
        Ok(filter) => filter,
        Err(why) => return fail(&why, arguments.json, exit::WRONG_LINE),
    };
    let times = if arguments.watch { arguments.times.unwrap_or(u64::MAX) } else { 1 };
    let drawn = arguments.watch && !arguments.json && std::io::stdout().is_terminal();
    for time in 0..times {
        if time > 0 {
            std::thread::sleep(PAUSE);
        }
        let text = match listed(arguments, &filter, time == 0) {
            Ok(text) if drawn => page(&text).drawn(Size::of(std::io::stdout())),
            Ok(text) => text,
            Err(error) => return fail(&error.to_string(), arguments.json, exit::NO_SERVICE),
        };
        // `towpath sockets --watch | head`
        if std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// The list as a page that is drawn over the last one.
fn page(text: &str) -> Page {
    Page { table: text.lines().map(|line| line.replace('\t', "    ")).collect(), ..Page::default() }
}

/// `complains`: says on standard error what is left out.
fn listed(arguments: &Arguments, filter: &Filter, complains: bool) -> Result<String, NoService> {
    let places = stacks::find(&arguments.which)?;
    if arguments.dead {
        let rows = dead::rows(&places, filter)?;
        return Ok(if arguments.json { json::line(&Document { sockets: rows }) } else { dead::table(&rows) });
    }
    let mut rows = Vec::new();
    for Place { name, socket } in &places {
        let found = match api::ask::<Sockets>(socket, Command::Sockets) {
            Ok(Sockets { sockets }) => sockets,
            // One of several may have ended in this moment.
            Err(_) if places.len() > 1 => continue,
            Err(error) => return Err(error.into()),
        };
        rows.extend(found.into_iter().map(|socket| Row { stack: name.clone(), socket, kernel: None }));
    }
    let all = !arguments.which.names_one();
    if all || arguments.kernel {
        let services: Vec<_> = places.iter().map(|place| &place.socket).collect();
        let found = kernel::of_programs(&services, !all)?;
        rows.extend(found.rows);
        found.missing.iter().filter(|_| complains).for_each(|why| complain(why));
    }
    rows.retain(|row| arguments.wants(filter, &row.socket.state) && filter.matches(&row.socket));
    rows.sort_by_key(|Row { socket: s, .. }| (s.state != "LISTEN", s.local, s.peer));
    Ok(if arguments.json { json::line(&Document { sockets: rows }) } else { table::table(&rows, arguments.shown) })
}

impl Arguments {
    fn wants(&self, filter: &Filter, state: &str) -> bool {
        let usual =
            || self.all || if self.listening { state == "LISTEN" } else { !matches!(state, "LISTEN" | "TIME-WAIT") };
        filter.wants_state(state).unwrap_or_else(usual)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_listed() {
        let arguments = |listening, all| Arguments {
            which: Which::default(),
            listening,
            all,
            dead: false,
            watch: false,
            times: None,
            json: false,
            kernel: false,
            shown: Shown::default(),
            filter: Vec::new(),
        };
        let none = Filter::default();
        let listed = |a: Arguments| ["LISTEN", "ESTAB", "TIME-WAIT"].map(|state| a.wants(&none, state));
        assert_eq!(listed(arguments(false, false)), [false, true, false]);
        assert_eq!(listed(arguments(true, false)), [true, false, false]);
        assert_eq!(listed(arguments(false, true)), [true, true, true]);
    }
}
