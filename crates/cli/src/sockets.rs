//! `towpath sockets`: like `ss -ti`.

mod dead;
mod filter;
mod stacks;

pub use self::filter::Filter;
use crate::json;
use crate::locate::{NoService, Which};
use crate::receive_cpus::screen::{Page, Size};
use crate::{exit, fail};
use serde::Serialize;
use stacks::Place;
use std::fmt::Write;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use towpath_service::api::{self, Command, Halves, SocketStatus, Sockets, TcpStatus};

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
  towpath sockets --dead         how the last connections have ended, and why
  towpath sockets --watch        again each second

FILTER is that of `ss`: state and exclude, then src, dst, sport, dport, with and, or, not and parentheses. As there, they hold from left
to right. program and uid are beside that; dev, fwmark, cgroup and autobound are not there.

Without --stack and --socket the list has all stacks of this host that admit you: the machine's service and your own, the stacks of
their configurations, and your kernel stacks.
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
    /// One JSON object; with --watch one for each list
    #[arg(long)]
    pub json: bool,
    /// Only these, in the words of `ss`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// A socket, and its stack.
#[derive(Serialize)]
struct Row {
    stack: String,
    #[serde(flatten)]
    socket: SocketStatus,
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
        let text = match listed(arguments, &filter) {
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

fn listed(arguments: &Arguments, filter: &Filter) -> Result<String, NoService> {
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
        let wanted = found.into_iter().filter(|one| arguments.wants(filter, &one.state) && filter.matches(one));
        rows.extend(wanted.map(|socket| Row { stack: name.clone(), socket }));
    }
    rows.sort_by_key(|Row { socket: s, .. }| (s.state != "LISTEN", s.local, s.peer));
    Ok(if arguments.json { json::line(&Document { sockets: rows }) } else { table(&rows) })
}

impl Arguments {
    fn wants(&self, filter: &Filter, state: &str) -> bool {
        let usual =
            || self.all || if self.listening { state == "LISTEN" } else { !matches!(state, "LISTEN" | "TIME-WAIT") };
        filter.wants_state(state).unwrap_or_else(usual)
    }
}

/// An address as `ss` shows it.
fn address(of: SocketAddr, local: bool) -> String {
    let ip = match of.ip() {
        ip if ip.is_unspecified() && !local => "*".into(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    if of.port() == 0 { format!("{ip}:*") } else { format!("{ip}:{}", of.port()) }
}

/// The human form. The stacks are named if there are several.
fn table(rows: &[Row]) -> String {
    let several = rows.iter().any(|row| row.stack != rows[0].stack);
    let stack = |name: &str| if several { format!("{name:<10} ") } else { String::new() };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}{:<11}{:>8} {:>8} {:>22} {:>22}  Program",
        stack("Stack"),
        "State",
        "Recv-Q",
        "Send-Q",
        "Local Address:Port",
        "Peer Address:Port"
    );
    for Row { stack: name, socket: s } in rows {
        let program =
            if s.program.is_empty() { String::new() } else { format!("{} (pid {}, uid {})", s.program, s.pid, s.uid) };
        let line = format!(
            "{}{:<11}{:>8} {:>8} {:>22} {:>22}  {program}",
            stack(name),
            s.state,
            s.recv_q,
            s.send_q,
            address(s.local, true),
            address(s.peer, false)
        );
        let _ = writeln!(out, "{}", line.trim_end());
        if s.direct {
            let _ = writeln!(out, "\tdirect");
        }
        if let Some(Halves { accelerated, kernel, refused }) = s.halves {
            let refused = if refused > 0 { format!(" refused:{refused}") } else { String::new() };
            let _ = writeln!(out, "\taccepted:{accelerated} accepted_by_kernel:{kernel}{refused}");
        }
        if let Some(tcp) = &s.tcp {
            let _ = writeln!(out, "\t{}", details(tcp, s.flow_group));
        }
    }
    out
}

/// The detail line, in the words of `ss -ti`.
fn details(t: &TcpStatus, flow_group: Option<usize>) -> String {
    let mut words = Vec::new();
    for (on, word) in
        [(t.timestamps, "ts"), (t.sack, "sack"), (t.ecn, "ecn"), (t.wscale, "wscale"), (t.recovery, "recovery")]
    {
        if on {
            words.push(word.to_owned());
        }
    }
    if t.srtt_us > 0 {
        let ms = |us: u32| f64::from(us) / 1000.0;
        words.push(format!("rtt:{}/{}", ms(t.srtt_us), ms(t.rttvar_us)));
    }
    words.push(format!("mss:{} cwnd:{}", t.mss, t.cwnd / u32::from(t.mss.max(1))));
    // The initial threshold means "no limit known".
    if t.ssthresh < 1 << 30 {
        words.push(format!("ssthresh:{}", t.ssthresh / u32::from(t.mss.max(1))));
    }
    words.push(format!("bytes_acked:{} bytes_received:{}", t.bytes_acked, t.bytes_received));
    words.push(format!("segs_out:{} segs_in:{} snd_wnd:{}", t.segs_out, t.segs_in, t.snd_wnd));
    if t.unacked > 0 {
        words.push(format!("unacked:{}", t.unacked));
    }
    if t.retrans > 0 {
        words.push(format!("retrans:{}", t.retrans));
    }
    for (count, word) in [(t.backoff, "backoff"), (t.probes, "probes")] {
        if count > 0 {
            words.push(format!("{word}:{count}"));
        }
    }
    if let Some(flow_group) = flow_group {
        words.push(format!("flow_group:{flow_group}"));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::samples::listener;

    #[test]
    fn the_table() {
        let connection = SocketStatus {
            state: "ESTAB".into(),
            send_q: 3,
            local: "127.0.0.1:6379".parse().unwrap(),
            peer: "127.0.0.1:40000".parse().unwrap(),
            flow_group: Some(0),
            tcp: Some(TcpStatus {
                srtt_us: 1500,
                rttvar_us: 250,
                mss: 1448,
                cwnd: 14_480,
                ssthresh: u32::MAX,
                snd_wnd: 65_536,
                unacked: 3,
                bytes_received: 10,
                bytes_acked: 20,
                segs_in: 4,
                segs_out: 5,
                retrans: 0,
                backoff: 4,
                probes: 0,
                timestamps: true,
                wscale: true,
                sack: true,
                ecn: false,
                recovery: false,
            }),
            ..listener()
        };
        let expected = "\
State        Recv-Q   Send-Q     Local Address:Port      Peer Address:Port  Program
LISTEN            0      511           0.0.0.0:6379                    *:*  redis-server (pid 42, uid 1000)
ESTAB             0        3         127.0.0.1:6379        127.0.0.1:40000  redis-server (pid 42, uid 1000)
\tts sack wscale rtt:1.5/0.25 mss:1448 cwnd:10 bytes_acked:20 bytes_received:10 segs_out:5 segs_in:4 snd_wnd:65536 unacked:3 backoff:4 flow_group:0
";
        let row = |stack: &str, socket| Row { stack: stack.into(), socket };
        let table = |sockets: Vec<SocketStatus>| {
            table(&sockets.into_iter().map(|socket| row("home", socket)).collect::<Vec<_>>())
        };
        assert_eq!(table(vec![listener(), connection]), expected);
        let halves = Some(Halves { accelerated: 5, kernel: 2, refused: 0 });
        let both = SocketStatus { halves, ..listener() };
        assert!(table(vec![both]).ends_with("redis-server (pid 42, uid 1000)\n\taccepted:5 accepted_by_kernel:2\n"));
        let halves = Some(Halves { accelerated: 5, kernel: 2, refused: 7 });
        let refusing = SocketStatus { halves, ..listener() };
        assert!(table(vec![refusing]).ends_with("\taccepted:5 accepted_by_kernel:2 refused:7\n"));
        let direct = SocketStatus { state: "ESTAB".into(), direct: true, ..listener() };
        assert!(table(vec![direct]).ends_with("redis-server (pid 42, uid 1000)\n\tdirect\n"));
        let two = super::table(&[row("home", listener()), row("blue", listener())]);
        assert!(two.starts_with("Stack      State ") && two.contains("\nblue       LISTEN "), "{two}");
    }

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
            filter: Vec::new(),
        };
        let none = Filter::default();
        let listed = |a: Arguments| ["LISTEN", "ESTAB", "TIME-WAIT"].map(|state| a.wants(&none, state));
        assert_eq!(listed(arguments(false, false)), [false, true, false]);
        assert_eq!(listed(arguments(true, false)), [true, false, false]);
        assert_eq!(listed(arguments(false, true)), [true, true, true]);
    }
}
