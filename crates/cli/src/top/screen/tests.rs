#![allow(clippy::unwrap_used)]
use super::*;
use crate::samples;
use crate::sockets::Filter;
use crate::top::readings::view;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::{Duration, Instant};
use towpath_service::api::{FlowGroupStatus, NumberedFlowGroup, SocketStatus, Status, Tally, TcpStatus, WorkerStatus};

fn status(busy_us: u64, dropped: u64, again: u64) -> Status {
    let tally = Tally { drops: [("paws", dropped)].into_iter().collect(), retransmits: again, ..Tally::default() };
    let status = FlowGroupStatus { tally, ..FlowGroupStatus::default() };
    Status {
        uptime_us: 3_723_000_000,
        flow_groups: vec![NumberedFlowGroup { flow_group: 0, status, ports: Vec::new() }],
        workers: vec![WorkerStatus { busy_us, idle_us: 3 * busy_us, ..WorkerStatus::default() }],
        ..samples::status()
    }
}

fn socket(program: &str, peer: &str, bytes: u64) -> SocketStatus {
    SocketStatus {
        state: "ESTAB".into(),
        send_q: 300,
        local: "10.0.0.1:6379".parse().unwrap(),
        peer: peer.parse().unwrap(),
        program: program.into(),
        tcp: Some(TcpStatus { srtt_us: 1500, bytes_received: bytes, bytes_acked: 2 * bytes, ..TcpStatus::default() }),
        ..samples::listener()
    }
}

/// Two readings, two seconds apart.
fn readings() -> [Reading; 2] {
    let at = Instant::now();
    let direct = SocketStatus { tcp: None, direct: true, ..socket("nginx", "10.0.0.9:80", 0) };
    let listener = SocketStatus { state: "LISTEN".into(), tcp: None, ..socket("nginx", "0.0.0.0:0", 0) };
    let before = vec![socket("redis-server", "10.0.0.2:4000", 1000), socket("a\x1b[2Jb", "10.0.0.3:1", 0)];
    let now = vec![
        socket("a\x1b[2Jb", "10.0.0.3:1", 200),
        socket("redis-server", "10.0.0.2:4000", 5000),
        socket("redis-server", "10.0.0.2:4001", 1_000_000),
        direct,
        listener,
    ];
    [
        Reading { at, status: status(0, 5, 0), sockets: before },
        Reading { at: at + Duration::from_secs(2), status: status(1_000_000, 25, 6), sockets: now },
    ]
}

fn shown(choice: &Choice, filter: &str) -> String {
    let [before, now] = readings();
    let filter = Filter::parse(&[filter.to_owned()]).unwrap();
    let view = view(&before, &now, &filter, choice.order);
    let mut terminal = Terminal::new(TestBackend::new(110, 10)).unwrap();
    terminal.draw(|frame| draw(frame, Some(&now), &view, choice)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(110).map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn programs_stand_in_the_order_of_their_bytes() {
    let page = shown(&Choice::default(), "");
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines[0], "towpath 1.2.3 fast, no interface, up 1:02:03: 0 clients, 5 sockets");
    assert_eq!(lines[1], "worker 0  [||||||||                      ]  25 %");
    assert_eq!(lines[2], "each second: 3 segments sent again; frames dropped: paws 10");
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(3), ["PROGRAM", "UID", "SOCKETS", "WAITING", "RECEIVED/s", "ACKED/s", "AGAIN/s"]);
    // Half of 4,000 and of a million.
    assert_eq!(words(4), ["redis-server", "1000", "2", "600", "502k", "1.0M", "0"]);
    assert_eq!(words(5)[1..], ["1000", "1", "300", "100", "200", "0"]);
    assert!(!page.contains('\x1b'), "a program's name moves no cursor");
    assert_eq!(words(6), ["nginx", "1000", "2", "300", "0", "0", "0"]);
    assert!(lines[9].starts_with("q quit") && lines[9].contains("s sort (bytes)"));
}

#[test]
fn connections_are_filtered_sorted_and_scrolled() {
    let connections = Choice { connections: true, filter: "dst 10.0.0.2".into(), ..Choice::default() };
    let page = shown(&connections, "dst 10.0.0.2");
    let lines: Vec<&str> = page.lines().collect();
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(4)[..3], ["10.0.0.1:6379", "10.0.0.2:4001", "redis-server"]);
    assert_eq!(words(4)[3..], ["ESTAB", "300", "500k", "1M", "0", "1.50"]);
    assert_eq!(words(5)[1], "10.0.0.2:4000");
    assert_eq!(words(6).len(), 0);
    assert!(lines[9].contains("[dst 10.0.0.2]"));
    let scrolled = shown(&Choice { above: 1, order: Order::Name, connections: true, ..Choice::default() }, "");
    let first = scrolled.lines().nth(4).unwrap();
    assert!(first.contains("10.0.0.2:4001"), "{first}");
    let direct = shown(&Choice { connections: true, ..Choice::default() }, "dst 10.0.0.9");
    assert!(direct.contains(" direct "), "{direct}");
}

#[test]
fn a_filter_is_typed_and_what_is_wrong_is_said() {
    let typing = Choice { typing: Some("sport = :8".into()), frozen: true, ..Choice::default() };
    assert!(shown(&typing, "").contains("filter (as ss has them): sport = :8_"));
    let frozen = Choice { frozen: true, trouble: Some("no service".into()), ..Choice::default() };
    assert!(shown(&frozen, "").contains("space freeze FROZEN  no service"));
}

#[test]
fn numbers_are_short() {
    for (number, text) in [
        (0.0, "0"),
        (0.5, "0.5"),
        (12.0, "12"),
        (999.0, "999"),
        (999.9, "1.0k"),
        (1500.0, "1.5k"),
        (2.5e7, "25M"),
        (3e12, "3.0T"),
    ] {
        assert_eq!(short(number), text);
    }
}
