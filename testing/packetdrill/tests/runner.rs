//! The runner detects differences: a script passes only if all its events match.

use towpath_packetdrill::{ScriptError, run};

const OPEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 65535 <mss 1460>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.01 < . 1:1(0) ack 1 win 65535
+0 accept(3, ..., ...) = 4
";

/// The result of a connection's script with these lines added.
fn ends(lines: &str) -> Result<(), ScriptError> {
    run(&format!("{OPEN}{lines}")).result
}

/// The message of a failure, which names the line.
#[track_caller]
fn failure(lines: &str, line: usize) -> String {
    match ends(lines) {
        Err(ScriptError::Failed { line: at, what }) => {
            assert_eq!(at, line, "{what}");
            what
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_that_differs_is_shown_beside_the_expected_one() {
    assert_eq!(ends("+0 write(4, ..., 100) = 100\n+0 > P. 1:101(100) ack 1\n"), Ok(()));
    let what = failure("+0 write(4, ..., 100) = 100\n+0 > P. 1:102(101) ack 1 win 65535\n", 9);
    assert!(what.contains("expected > P. 1:102(101) ack 1 win 65535"), "{what}");
    assert!(what.contains("actual   > P. 1:101(100) ack 1 win 65535 (length)"), "{what}");
    for wrong in [
        "> . 1:101(100) ack 1",
        "> P. 2:102(100) ack 1",
        "> P. 1:101(100) ack 2",
        "> P. 1:101(100) ack 1 win 1",
        "> P. 1:101(100) ack 1 <nop,nop,TS val 1 ecr 1>",
        "> [ce] P. 1:101(100) ack 1",
        "> [ttl 63] P. 1:101(100) ack 1",
        "> 8080>33001 P. 1:101(100) ack 1",
    ] {
        failure(&format!("+0 write(4, ..., 100) = 100\n+0 {wrong}\n"), 9);
    }
}

#[test]
fn a_segment_too_early_too_late_missing_or_unexpected_is_noticed() {
    let what = failure("+0 write(4, ..., 100) = 100\n+.1 > P. 1:101(100) ack 1\n", 9);
    assert!(what.contains("was sent at 0.010000, expected between 0.110000 and 0.110000"), "{what}");
    assert_eq!(ends("+0 write(4, ..., 100) = 100\n+0 > P. 1:101(100) ack 1\n+.2~+.25 > P. 1:101(100) ack 1\n"), Ok(()));
    failure("+0 write(4, ..., 100) = 100\n+0 > P. 1:101(100) ack 1\n+.1 > P. 1:101(100) ack 1\n", 10);
    let what = failure("+0 > P. 1:101(100) ack 1\n", 8);
    assert!(what.contains("nothing was sent"), "{what}");
    let what = failure("+0 write(4, ..., 100) = 100\n", 8);
    assert!(what.contains("not in the script: 0.010000 > P. 1:101(100) ack 1"), "{what}");
}

#[test]
fn results_of_calls_are_compared() {
    let what = failure("+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n+0 read(4, ..., 10) = 10\n", 9);
    assert_eq!(what, "read() returned -1 EAGAIN");
    failure("+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n+0 read(4, ..., 10) = -1 ECONNRESET (reset)\n", 9);
    failure("+0 read(9, ..., 10) = 0\n", 8);
    failure("+0 < P. 1:11(10) ack 1 win 65535\n+.001 > . 1:1(0) ack 11\n+0 ioctl(4, FIONREAD, [11]) = 0\n", 10);
    assert_eq!(
        ends("+0 < P. 1:11(10) ack 1 win 65535\n+.001 > . 1:1(0) ack 11\n+0 ioctl(4, FIONREAD, [10]) = 0\n"),
        Ok(())
    );
}

#[test]
fn a_blocking_call_returns_at_its_moment() {
    let data = "+.2 < P. 1:11(10) ack 1 win 65535\n+.001 > . 1:1(0) ack 11\n";
    assert_eq!(ends(&format!("+0...0.2 read(4, ..., 10) = 10\n{data}")), Ok(()));
    failure(&format!("+0...0.3 read(4, ..., 10) = 10\n{data}+.5 close(4) = 0\n"), 8);
    failure(&format!("+0...0.1 read(4, ..., 10) = 10\n{data}"), 8);
    failure("+0...0.1 read(4, ..., 10) = 10\n", 8);
}

#[test]
fn poll_and_epoll_report_readiness() {
    let data = "+0 < P. 1:11(10) ack 1 win 65535\n+.001 > . 1:1(0) ack 11\n";
    let poll =
        |events: &str, result: i32| format!("+0 poll([{{fd=4, events=POLLIN, revents={events}}}], 1, 0) = {result}\n");
    assert_eq!(ends(&format!("{}{data}{}", poll("0", 0), poll("POLLIN", 1))), Ok(()));
    failure(&format!("{data}{}", poll("0", 0)), 10);
    let epoll = "+0 epoll_create(1) = 5\n+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN, fd=4}) = 0\n";
    let wait = "+0...0.1 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 1000) = 1\n";
    assert_eq!(ends(&format!("{epoll}{wait}+.1 < P. 1:11(10) ack 1 win 65535\n+.001 > . 1:1(0) ack 11\n")), Ok(()));
}

#[test]
fn what_is_not_understood_is_refused_with_its_line() {
    for (lines, line) in [
        ("+0 frobnicate(4) = 0\n", 8),
        ("+0 `iptables -A INPUT`\n", 8),
        ("+0 `sysctl -q net.ipv4.tcp_timestamps=0`\n", 8),
        ("+0 %{ import os }%\n", 8),
        ("+0 setsockopt(4, SOL_TCP, TCP_MD5SIG, [1], 4) = 0\n", 8),
    ] {
        assert!(
            matches!(ends(lines), Err(ScriptError::Unsupported { line: at, .. }) if at == line),
            "{:?}",
            ends(lines)
        );
    }
    for lines in
        ["+0 < Q. 1:1(0) ack 1\n", "+0 < . 1:2(0) ack 1\n", "+0 > . 1:1(0) ack 1 hello\n", "+0 read(4, ... = 1\n"]
    {
        assert!(matches!(ends(lines), Err(ScriptError::Syntax { .. })), "{:?}", ends(lines));
    }
}

#[test]
fn assertions_about_the_connection_can_fail() {
    assert_eq!(ends("+0 %{ assert tcpi_state == TCP_ESTABLISHED and tcpi_snd_cwnd == 10, tcpi_snd_cwnd }%\n"), Ok(()));
    let what = failure("+0 %{ assert tcpi_state == TCP_CLOSE }%\n", 8);
    assert_eq!(what, "'tcpi_state == TCP_CLOSE' is false: tcpi_state is TCP_ESTABLISHED");
}
