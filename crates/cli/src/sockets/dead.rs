//! `towpath sockets --dead`: how the last connections have ended.

use super::Filter;
use super::stacks::Place;
use super::table::address;
use crate::locate::NoService;
use crate::status::age;
use nix::errno::Errno;
use serde::Serialize;
use std::fmt::Write;
use towpath_service::api::{self, AskError, Command, Ended, EndedSocket, SocketStatus};

/// A connection that has ended, and its stack.
#[derive(Serialize)]
pub struct Row {
    /// The stack's name.
    pub stack: String,
    /// The connection.
    #[serde(flatten)]
    pub socket: EndedSocket,
}

/// All that the filter wants, the last one first. A stack that does not know is passed over, unless it is the only one.
pub fn rows(places: &[Place], filter: &Filter) -> Result<Vec<Row>, NoService> {
    let mut rows = Vec::new();
    for Place { name, socket } in places {
        let ended = match api::ask::<Ended>(socket, Command::Ended) {
            Ok(Ended { ended }) => ended,
            Err(AskError::Refused(_)) if places.len() > 1 => continue,
            Err(error) => return Err(error.into()),
        };
        let wanted = ended.into_iter().filter(|one| filter.matches(&as_socket(one)));
        rows.extend(wanted.map(|socket| Row { stack: name.clone(), socket }));
    }
    rows.sort_by_key(|row| row.socket.ago_us);
    Ok(rows)
}

/// As the filter knows sockets.
fn as_socket(ended: &EndedSocket) -> SocketStatus {
    SocketStatus {
        state: "UNCONN".into(),
        recv_q: 0,
        send_q: 0,
        local: ended.local,
        peer: ended.peer,
        program: ended.program.clone(),
        pid: ended.pid,
        uid: ended.uid,
        client: None,
        slot: 0,
        flow_group: None,
        direct: ended.direct,
        tcp: None,
        halves: None,
    }
}

/// The human form.
pub fn table(rows: &[Row]) -> String {
    let several = rows.iter().any(|row| row.stack != rows[0].stack);
    let stack = |name: &str| if several { format!("{name:<10} ") } else { String::new() };
    let mut out = String::new();
    let (local, peer) = ("Local Address:Port", "Peer Address:Port");
    let _ = writeln!(out, "{}{:<12}{:>12} {local:>22} {peer:>22}  Program", stack("Stack"), "Ended", "Ago");
    for Row { stack: name, socket: one } in rows {
        let (local, peer) = (address(one.local, true), address(one.peer, false));
        let EndedSocket { ended, program, pid, uid, why, .. } = one;
        let (stack, ago) = (stack(name), age(one.ago_us));
        let _ = writeln!(out, "{stack}{ended:<12}{ago:>12} {local:>22} {peer:>22}  {program} (pid {pid}, uid {uid})");
        let errno = one.errno.map_or_else(String::new, |errno| format!(" ({})", errno_name(errno)));
        let direct = if one.direct { ", direct" } else { "" };
        let _ = writeln!(out, "\t{why}{errno}{direct}");
    }
    out
}

/// `ETIMEDOUT`, or the number of an error that has no name here.
fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => errno.to_string(),
        known => format!("{known:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn row(stack: &str, errno: Option<i32>) -> Row {
        let socket = EndedSocket {
            ended: "no-answer".into(),
            why: "the peer did not answer any more".into(),
            errno,
            ago_us: 303_000_000,
            local: "127.0.0.1:6379".parse().unwrap(),
            peer: "127.0.0.1:40000".parse().unwrap(),
            program: "redis-server".into(),
            pid: 42,
            uid: 1000,
            direct: false,
        };
        Row { stack: stack.into(), socket }
    }

    #[test]
    fn the_table() {
        let head = "Ended                Ago     Local Address:Port      Peer Address:Port  Program\n";
        let line =
            "no-answer      5 min 3 s         127.0.0.1:6379        127.0.0.1:40000  redis-server (pid 42, uid 1000)\n";
        let why = "\tthe peer did not answer any more (ETIMEDOUT)\n";
        assert_eq!(table(&[row("home", Some(libc::ETIMEDOUT))]), format!("{head}{line}{why}"));
        assert_eq!(table(&[]), head);
        let two = table(&[row("home", None), row("blue", Some(9999))]);
        assert!(two.starts_with("Stack      Ended") && two.contains("\nblue       no-answer"), "{two}");
        assert!(two.ends_with("any more (9999)\n"), "{two}");
    }

    #[test]
    fn a_filter_chooses_among_them() {
        let filter = |words: &str| Filter::parse(&[words.to_owned()]).unwrap();
        let one = as_socket(&row("home", None).socket);
        assert!(filter("sport = :6379").matches(&one) && !filter("dport = :6379").matches(&one));
        assert!(filter("program redis-server uid 1000").matches(&one));
    }
}
