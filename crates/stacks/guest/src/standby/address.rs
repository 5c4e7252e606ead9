//! The address of the connections, which one side has at a time.

use super::{Standby, StandbySide};
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};
use towpath_runtime::Stack;

/// How long to wait for closed connections that are still sending.
const SETTLE: Duration = Duration::from_millis(500);

/// True for a line of `/proc/net/tcp` whose socket still sends its FIN, and perhaps bytes before it.
fn is_sending_its_last(line: &str) -> bool {
    // FIN-WAIT-1, LAST-ACK, CLOSING.
    matches!(line.split_whitespace().nth(3), Some("04" | "09" | "0B"))
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Standby {
    /// The address without its prefix length. On this host it is a /32 or /128, because the network behind it is on
    /// another device.
    pub(super) fn bare_address(&self) -> &str {
        self.address.split('/').next().unwrap_or_default()
    }

    /// The guest's network interface.
    pub(super) fn guest_interface(&self) -> &'static str {
        crate::init::interface(self.guest.shared.kind())
    }
    /// Runs a program on a side.
    pub(super) fn run(&self, side: StandbySide, words: &[String]) -> io::Result<Vec<u8>> {
        let (program, rest) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (code, out, err) = match side {
            StandbySide::Host => {
                let done = Command::new(program).args(rest).output()?;
                (done.status.code(), done.stdout, done.stderr)
            }
            StandbySide::Guest => {
                let done = self.guest.execute(words)?;
                (Some(done.code), done.out, done.err)
            }
        };
        if code == Some(0) {
            return Ok(out);
        }
        Err(io::Error::other(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&err).trim())))
    }
    /// Sets the guest's network interface up.
    pub(super) fn raise_guest_interface(&self) -> io::Result<()> {
        self.run(StandbySide::Guest, &command(&["ip", "link", "set", self.guest_interface(), "up"])).map(drop)
    }
    /// The commands that give the guest the address and a route.
    pub(super) fn guest_address_commands(&self) -> Vec<Vec<String>> {
        let address = ["ip", "address", "replace", &self.address, "dev", self.guest_interface()];
        let mut lines = vec![command(&["ip", "link", "set", self.guest_interface(), "up"]), command(&address)];
        lines.extend(self.gateway.iter().map(|via| command(&["ip", "route", "replace", "default", "via", via])));
        lines
    }
    pub(super) fn give_address(&self, side: StandbySide) -> io::Result<()> {
        match side {
            StandbySide::Host => self
                .run(side, &command(&["ip", "address", "replace", self.bare_address(), "dev", &self.device]))
                .map(drop),
            StandbySide::Guest => {
                self.guest_address_commands().iter().try_for_each(|words| self.run(side, words).map(drop))
            }
        }
    }
    pub(super) fn take_address(&self, side: StandbySide) -> io::Result<()> {
        let words = match side {
            StandbySide::Host => command(&["ip", "address", "del", self.bare_address(), "dev", &self.device]),
            StandbySide::Guest => command(&["ip", "address", "del", &self.address, "dev", self.guest_interface()]),
        };
        self.run(side, &words).map(drop)
    }
    /// Waits a little for closed connections that are still sending. Those stay where they are.
    pub(super) fn settle(&self, side: StandbySide) {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until {
            match self.run(side, &command(&["cat", "/proc/net/tcp", "/proc/net/tcp6"])) {
                Ok(table) if String::from_utf8_lossy(&table).lines().any(is_sending_its_last) => {}
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_sending_its_last;

    #[test]
    fn sockets_that_are_not_over_are_told_from_those_that_are() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0207610A:1DD9 024D4D0A:A0B2 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 0207610A:1DD9 024D4D0A:A0B4 04 00001000:00000000 01:00000014 00000000     0        0 0 2 0 20 4 30 10 -1
   3: 0207610A:1DD9 024D4D0A:A0B6 06 00000000:00000000 03:00000A00 00000000     0        0 0 3 0";
        let last: Vec<bool> = table.lines().map(is_sending_its_last).collect();
        assert_eq!(last, [false, false, false, true, false]);
    }
}
