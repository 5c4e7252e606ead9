//! The list for people, in the words of `ss -ti`.

use super::kernel::{Holder, Memory};
use super::{Row, Shown};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use towpath_service::api::{Halves, SocketStatus, TcpStatus};

/// An address as `ss` shows it.
pub fn address(of: SocketAddr, local: bool) -> String {
    let ip = match of.ip() {
        ip if ip.is_unspecified() && !local => "*".into(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    if of.port() == 0 { format!("{ip}:*") } else { format!("{ip}:{}", of.port()) }
}

/// The human form. The stacks are named if there are several.
pub fn table(rows: &[Row], shown: Shown) -> String {
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
    let between = if shown.one_line { " " } else { "\n\t" };
    for row @ Row { stack: name, socket: s, .. } in rows {
        let program =
            if s.program.is_empty() { String::new() } else { format!("{} (pid {}, uid {})", s.program, s.pid, s.uid) };
        let mut line = format!(
            "{}{:<11}{:>8} {:>8} {:>22} {:>22}  {program}",
            stack(name),
            s.state,
            s.recv_q,
            s.send_q,
            address(s.local, true),
            address(s.peer, false)
        );
        for more in [shown.processes.then(|| users(row)), shown.extended.then(|| extended(row))].into_iter().flatten() {
            line = format!("{} {more}", line.trim_end());
        }
        line.truncate(line.trim_end().len());
        for below in below(row, shown) {
            line += between;
            line += &below;
        }
        let _ = writeln!(out, "{line}");
    }
    out
}

/// What stands below a socket's line.
fn below(row: &Row, shown: Shown) -> Vec<String> {
    let s = &row.socket;
    let mut lines = Vec::new();
    if s.direct {
        lines.push("direct".to_owned());
    }
    if let Some(Halves { accelerated, kernel, refused }) = s.halves {
        let refused = if refused > 0 { format!(" refused:{refused}") } else { String::new() };
        lines.push(format!("accepted:{accelerated} accepted_by_kernel:{kernel}{refused}"));
    }
    if let Some(memory) = shown.memory.then(|| memory(row)).flatten() {
        lines.push(memory);
    }
    lines.extend(s.tcp.as_ref().map(|tcp| details(tcp, s.flow_group)));
    lines
}

/// All that have the socket. Of a stack's socket the client: the stack does not know its descriptors.
fn users(row: &Row) -> String {
    let one = |Holder { program, pid, fd }: &Holder| format!("(\"{program}\",pid={pid},fd={fd})");
    let SocketStatus { program, pid, .. } = &row.socket;
    match &row.kernel {
        Some(kernel) => format!("users:({})", kernel.processes.iter().map(one).collect::<Vec<_>>().join(",")),
        None if program.is_empty() => String::new(),
        None => format!("users:((\"{program}\",pid={pid}))"),
    }
}

/// By which numbers it is known. A stack knows its sockets by the client's slot.
fn extended(row: &Row) -> String {
    let SocketStatus { uid, slot, .. } = row.socket;
    match &row.kernel {
        Some(kernel) => format!("uid:{uid} ino:{} sk:{:x} netns:{}", kernel.inode, kernel.cookie, kernel.namespace),
        None => format!("uid:{uid} slot:{slot}"),
    }
}

/// Its memory. Of a stack's connection the bytes in its two rings; a listener has none there.
fn memory(row: &Row) -> Option<String> {
    let SocketStatus { recv_q, send_q, state, .. } = &row.socket;
    match &row.kernel {
        Some(kernel) => kernel.memory.map(|of| {
            let Memory { received, received_most, under_way, sent_most, reserved, queued, options, backlog, drops } = of;
            format!(
                "skmem:(r{received},rb{received_most},t{under_way},tb{sent_most},f{reserved},w{queued},o{options},bl{backlog},d{drops})"
            )
        }),
        None => (*state != "LISTEN").then(|| format!("rings:(r{recv_q},t{send_q})")),
    }
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
    use crate::sockets::kernel::KernelSocket;

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
        let row = |stack: &str, socket| Row { stack: stack.into(), socket, kernel: None };
        let table = |sockets: Vec<SocketStatus>| {
            table(&sockets.into_iter().map(|socket| row("home", socket)).collect::<Vec<_>>(), Shown::default())
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
        let two = super::table(&[row("home", listener()), row("blue", listener())], Shown::default());
        assert!(two.starts_with("Stack      State ") && two.contains("\nblue       LISTEN "), "{two}");
    }

    #[test]
    fn more_is_shown_in_the_words_of_ss() {
        let connection = SocketStatus {
            state: "ESTAB".into(),
            recv_q: 7,
            local: "127.0.0.1:6379".parse().unwrap(),
            peer: "127.0.0.1:40000".parse().unwrap(),
            ..listener()
        };
        let holder = |pid, fd| Holder { pid, fd, program: "redis-server".into() };
        let memory = Memory { received: 1, received_most: 131_072, sent_most: 87_040, drops: 2, ..Memory::default() };
        let kernel = KernelSocket {
            inode: 99,
            cookie: 0xab,
            namespace: 4_026_531_840,
            processes: vec![holder(42, 7), holder(43, 7)],
            memory: Some(memory),
        };
        let rows = [
            Row { stack: "home".into(), socket: connection.clone(), kernel: None },
            Row { stack: "kernel".into(), socket: connection, kernel: Some(kernel) },
        ];
        let all = Shown { extended: true, memory: true, processes: true, one_line: true };
        let [_, home, kernel] = table(&rows, all).lines().map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        let end = "(pid 42, uid 1000) users:((\"redis-server\",pid=42)) uid:1000 slot:0 rings:(r7,t511)";
        assert!(home.starts_with("home       ESTAB") && home.ends_with(end), "{home}");
        let users = "users:((\"redis-server\",pid=42,fd=7),(\"redis-server\",pid=43,fd=7))";
        let end =
            format!("{users} uid:1000 ino:99 sk:ab netns:4026531840 skmem:(r1,rb131072,t0,tb87040,f0,w0,o0,bl0,d2)");
        assert!(kernel.starts_with("kernel     ESTAB") && kernel.ends_with(&end), "{kernel}");
        let lines = table(&rows, Shown { memory: true, ..Shown::default() });
        assert!(lines.contains("uid 1000)\n\trings:(r7,t511)\n") && lines.contains("\n\tskmem:(r1,"), "{lines}");
        assert!(!table(&rows, Shown::default()).contains("mem:"));
    }
}
