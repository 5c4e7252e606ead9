//! Sideband commands: parts of files, TLS records that are not application data, and TLS keys, which go out between the
//! bytes of a send ring. A sideband command is posted in a connection's slot and names a position in its send ring.
//! While it is unanswered, nothing is put into the ring behind that position.

use crate::command::{Command, op};
use core::net::Ipv6Addr;

/// Most bytes of a file that one command names.
pub const FILE_MOST: u32 = 64 << 20;
/// Most bytes of a TLS record (RFC 8446 §5.1).
pub const RECORD_MOST: u32 = 1 << 14;
/// Most bytes of the value of an option.
pub const VALUE_MOST: u32 = 128;

/// A sideband command. `at` is a position in the send ring. The bytes before it go out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidebandCommand {
    /// A part of a file. The bytes of the ring from `at` on follow it.
    File {
        /// See the enum.
        at: u32,
        /// The file's number ([`crate::control::Reply::File`]).
        file: u32,
        /// Where the part begins, bytes.
        offset: u64,
        /// Its length, bytes, 1 to [`FILE_MOST`].
        length: u32,
    },
    /// The `length` bytes from `at` on, which are in the ring but not before `tx_tail` yet, are one TLS record.
    Record {
        /// See the enum.
        at: u32,
        /// Bytes, up to [`RECORD_MOST`].
        length: u32,
        /// Its content type (RFC 8446 §5.1).
        kind: u8,
    },
    /// An option that holds from `at` on. Its value stands in the ring there and is not sent. Everything before `at`
    /// must have been taken.
    Secure {
        /// See the enum.
        at: u32,
        /// Bytes of the value, up to [`VALUE_MOST`].
        length: u32,
        /// Which option.
        what: Secure,
    },
}

/// Options of kTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secure {
    /// `TCP_ULP`, by name.
    Protocol,
    /// `TLS_TX`.
    Send,
    /// `TLS_RX`. Refused if there are unread bytes in the receive ring.
    Receive,
}

impl Secure {
    const ALL: [Self; 3] = [Self::Protocol, Self::Send, Self::Receive];
}

impl SidebandCommand {
    /// It, as a command.
    pub fn command(&self) -> Command {
        let none = Command::default();
        match *self {
            Self::File { at, file, offset, length } => {
                let offset = Ipv6Addr::from(u128::from(offset));
                Command {
                    op: op::FILE,
                    local_port: at,
                    backlog: length,
                    remote_port: file,
                    remote_addr: offset,
                    ..none
                }
            }
            Self::Record { at, length, kind } => {
                Command { op: op::RECORD, local_port: at, backlog: length, remote_port: kind.into(), ..none }
            }
            Self::Secure { at, length, what } => {
                Command { op: op::SECURE, local_port: at, backlog: length, remote_port: what as u32, ..none }
            }
        }
    }

    /// The sideband command in a command; `None` = it is another command, or a length is too large.
    pub fn of(command: &Command) -> Option<Self> {
        let Command { op, local_port: at, backlog: length, remote_port: number, remote_addr, .. } = *command;
        let up_to = |most| (1..=most).contains(&length).then_some(());
        Some(match op {
            op::FILE => {
                up_to(FILE_MOST)?;
                let offset = u64::try_from(u128::from(remote_addr)).ok()?;
                i64::try_from(offset.checked_add(length.into())?).ok()?;
                Self::File { at, file: number, offset, length }
            }
            op::RECORD => {
                up_to(RECORD_MOST)?;
                Self::Record { at, length, kind: number.try_into().ok()? }
            }
            op::SECURE => {
                up_to(VALUE_MOST)?;
                Self::Secure { at, length, what: *Secure::ALL.get(number as usize)? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sideband_commands_are_commands_and_back() {
        let all = [
            SidebandCommand::File { at: 7, file: 3, offset: 1 << 40, length: FILE_MOST },
            SidebandCommand::Record { at: u32::MAX, length: 2, kind: 21 },
            SidebandCommand::Secure { at: 0, length: 56, what: Secure::Send },
            SidebandCommand::Secure { at: 0, length: 3, what: Secure::Protocol },
        ];
        for command in all {
            assert_eq!(SidebandCommand::of(&command.command()), Some(command));
        }
    }

    #[test]
    fn the_longest_and_the_shortest_are_sideband_commands() {
        let last = i64::MAX as u64;
        for length in [1, 2] {
            let file = |offset| SidebandCommand::File { at: 0, file: 1, offset, length };
            let fits = file(last - u64::from(length));
            assert_eq!(SidebandCommand::of(&fits.command()), Some(fits), "it ends with the last byte of a file");
            assert_eq!(SidebandCommand::of(&file(last - u64::from(length) + 1).command()), None);
            let record = SidebandCommand::Record { at: 0, length, kind: 255 };
            assert_eq!(SidebandCommand::of(&record.command()), Some(record));
        }
        for all in [
            SidebandCommand::Record { at: 0, length: RECORD_MOST, kind: 0 },
            SidebandCommand::Secure { at: 0, length: VALUE_MOST, what: Secure::Receive },
        ] {
            assert_eq!(SidebandCommand::of(&all.command()), Some(all));
        }
        assert_eq!((FILE_MOST, RECORD_MOST), (67_108_864, 16_384));
    }

    #[test]
    fn what_there_is_not_is_none() {
        let record = SidebandCommand::Record { at: 0, length: 1, kind: 255 }.command();
        assert_eq!(SidebandCommand::of(&Command { remote_port: 256, ..record }), None);
        let secure = SidebandCommand::Secure { at: 0, length: 1, what: Secure::Receive }.command();
        assert_eq!(SidebandCommand::of(&Command { remote_port: 3, ..secure }), None);
        let file = SidebandCommand::File { at: 0, file: 1, offset: 0, length: 1 }.command();
        assert_eq!(SidebandCommand::of(&Command { remote_addr: Ipv6Addr::from(1u128 << 64), ..file }), None);
    }

    #[test]
    fn what_is_too_long_is_none() {
        assert_eq!(
            SidebandCommand::of(&SidebandCommand::File { at: 0, file: 1, offset: 0, length: FILE_MOST + 1 }.command()),
            None
        );
        assert_eq!(
            SidebandCommand::of(&SidebandCommand::File { at: 0, file: 1, offset: 0, length: 0 }.command()),
            None
        );
        assert_eq!(
            SidebandCommand::of(&SidebandCommand::File { at: 0, file: 1, offset: u64::MAX, length: 1 }.command()),
            None
        );
        assert_eq!(
            SidebandCommand::of(&SidebandCommand::Record { at: 0, length: RECORD_MOST + 1, kind: 21 }.command()),
            None
        );
        assert_eq!(
            SidebandCommand::of(
                &SidebandCommand::Secure { at: 0, length: VALUE_MOST + 1, what: Secure::Send }.command()
            ),
            None
        );
        assert_eq!(SidebandCommand::of(&Command::default()), None);
    }
}
