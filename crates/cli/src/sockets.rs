//! `towpath sockets`: like `ss -ti`.

mod filter;

pub use self::filter::Filter;
use crate::locate::{NoService, Which};
use crate::{exit, fail, report};
use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use towpath_service::api::{self, Command, Halves, SocketStatus, Sockets, TcpStatus};

/// Lists sockets with their queues, addresses, programs and TCP details.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath sockets                connections
  towpath sockets -l             listeners
  towpath sockets -a --json      everything, for a program
  towpath sockets state established '( sport = :6379 or dst 10.0.0.0/8 )'
  towpath sockets program nginx uid 33

FILTER is that of `ss`: state and exclude, then src, dst, sport, dport, with and, or, not and parentheses. As there, they hold from left
to right. program and uid are beside that; dev, fwmark, cgroup and autobound are not there.

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
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// Only these, in the words of `ss`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Lists the sockets.
pub fn run(arguments: &Arguments) -> ExitCode {
    match Filter::parse(&arguments.filter) {
        Ok(filter) => report(listed(arguments, &filter), arguments.json),
        Err(why) => fail(&why, arguments.json, exit::WRONG_LINE),
    }
}

fn listed(arguments: &Arguments, filter: &Filter) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let mut answer: Sockets = api::ask(&socket, Command::Sockets)?;
    answer.sockets.retain(|socket| arguments.wants(filter, &socket.state) && filter.matches(socket));
    answer.sockets.sort_by_key(|s| (s.state != "LISTEN", s.local, s.peer));
    if arguments.json {
        return Ok(serde_json::to_string(&answer).unwrap_or_default() + "\n");
    }
    Ok(table(&answer.sockets))
}

impl Arguments {
    fn wants(&self, filter: &Filter, state: &str) -> bool {
        let usual =
            || self.all || if self.listening { state == "LISTEN" } else { !matches!(state, "LISTEN" | "TIME-WAIT") };
        filter.wants_state(state).unwrap_or_else(usual)
    }
}

/// The human form.
fn table(sockets: &[SocketStatus]) -> String {
    let mut out = String::new();
    let address = |s: &SocketStatus, local: bool| {
        let of = if local { s.local } else { s.peer };
        let ip = match of.ip() {
            ip if ip.is_unspecified() && !local => "*".into(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        if of.port() == 0 { format!("{ip}:*") } else { format!("{ip}:{}", of.port()) }
    };
    let _ = writeln!(
        out,
        "{:<11}{:>8} {:>8} {:>22} {:>22}  Program",
        "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"
    );
    for s in sockets {
        let program =
            if s.program.is_empty() { String::new() } else { format!("{} (pid {}, uid {})", s.program, s.pid, s.uid) };
        let line = format!(
            "{:<11}{:>8} {:>8} {:>22} {:>22}  {program}",
            s.state,
            s.recv_q,
            s.send_q,
            address(s, true),
            address(s, false)
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
        assert_eq!(table(&[listener(), connection]), expected);
        let halves = Some(Halves { accelerated: 5, kernel: 2, refused: 0 });
        let both = SocketStatus { halves, ..listener() };
        assert!(table(&[both]).ends_with("redis-server (pid 42, uid 1000)\n\taccepted:5 accepted_by_kernel:2\n"));
        let halves = Some(Halves { accelerated: 5, kernel: 2, refused: 7 });
        let refusing = SocketStatus { halves, ..listener() };
        assert!(table(&[refusing]).ends_with("\taccepted:5 accepted_by_kernel:2 refused:7\n"));
        let direct = SocketStatus { state: "ESTAB".into(), direct: true, ..listener() };
        assert!(table(&[direct]).ends_with("redis-server (pid 42, uid 1000)\n\tdirect\n"));
    }

    #[test]
    fn what_is_listed() {
        let arguments =
            |listening, all| Arguments { which: Which::default(), listening, all, json: false, filter: Vec::new() };
        let none = Filter::default();
        let listed = |a: Arguments| ["LISTEN", "ESTAB", "TIME-WAIT"].map(|state| a.wants(&none, state));
        assert_eq!(listed(arguments(false, false)), [false, true, false]);
        assert_eq!(listed(arguments(true, false)), [true, false, false]);
        assert_eq!(listed(arguments(false, true)), [true, true, true]);
    }
}
