//! The table of socket options. Each row says where the option's value is stored, and so who acts on it. Setting,
//! reading, promotion and demotion all follow the table.

use crate::options::ranges::{
    any, deferral, hop_limit, linger2, not_negative, segment, time_to_live, traffic_class, type_of_service,
    window_clamp, within,
};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use libc::{IPPROTO_IP as IP, IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET, c_int};
use towpath_client::private::flag;
use towpath_client::sys::Sys;
use towpath_ring::OptionsLine;
use towpath_ring::lines::app_flags;
use towpath_ring::options::option_flags;

/// Names of Linux that libc lacks.
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
const SO_ATTACH_REUSEPORT_EBPF: c_int = 52;
const TCP_TX_DELAY: c_int = 37;
const TCP_RTO_MAX_MS: c_int = 44;
const IPV6_MINHOPCOUNT: c_int = 73;
/// The highest number of `IP_MTU_DISCOVER` (`IP_PMTUDISC_OMIT`).
const PMTUDISC_MAX: c_int = 5;
/// `TCP_MAXSEG` of a socket that is not connected and has set none (RFC 9293 MUST-15).
const DEFAULT_MSS: c_int = 536;

/// The bit of `TCP_INQ` in `Private::emulated`. Receiving acts on it.
pub const INQ: u32 = 1 << 3;

/// An option whose value is a number.
pub struct Row {
    /// Its level: `SOL_SOCKET` or a protocol.
    pub level: c_int,
    /// Its name.
    pub name: c_int,
    /// Where the value is stored.
    pub place: Place,
    /// When the value is copied from a kernel socket to its slot.
    pub import: Import,
}

/// Where an option's value is stored, and who acts on it.
#[derive(Clone, Copy)]
pub enum Place {
    /// In `app_flags`. The stack acts on it.
    AppFlag(u32),
    /// In [`flag`]. The library acts on it.
    OwnFlag(u32),
    /// In `option_flags`. The stack acts on it.
    StackFlag(u32),
    /// In a word of the options line. The stack acts on it, or a kernel behind the stack does.
    StackWord(Word),
    /// In a buffer size of the options line. The library acts on it, and so does a kernel behind the stack.
    Buffer(At),
    /// In the two words of the options line for `SO_MAX_PACING_RATE`. The stack acts on it.
    PacingRate,
    /// In `Private::peek`. The library acts on it.
    Peek,
    /// In the AF_UNIX socketpair behind the descriptor. It is emulated.
    Pair(Shown),
    /// In a bit of `Private::emulated`. It is emulated.
    Bit(Bit),
}

/// A field of the options line.
pub type At = fn(&OptionsLine) -> &AtomicU32;

/// An option whose number is in a word of the options line.
#[derive(Clone, Copy)]
pub struct Word {
    at: At,
    /// Checks and rounds a number that a program sets.
    pub accepts: fn(c_int) -> Sys<c_int>,
    /// How the word 0 reads.
    zero: Zero,
}

/// The meaning of 0 in a word of the options line.
#[derive(Clone, Copy)]
enum Zero {
    /// The program has set nothing, and the option reads as this number.
    Unset(c_int),
    /// This number. The word is the option's number XOR this one.
    Inverted(c_int),
}

impl Word {
    /// Stores a number that `accepts` has let through.
    pub fn store(&self, line: &OptionsLine, value: c_int) {
        let word = match self.zero {
            Zero::Unset(_) => value,
            Zero::Inverted(bits) => value ^ bits,
        };
        (self.at)(line).store(word.cast_unsigned(), Relaxed);
    }

    /// Has the program set a number other than the default?
    pub fn is_set(&self, line: &OptionsLine) -> bool {
        (self.at)(line).load(Relaxed) != 0
    }

    /// The number as it reads.
    pub fn load(&self, line: &OptionsLine) -> c_int {
        match ((self.at)(line).load(Relaxed).cast_signed(), self.zero) {
            (0, Zero::Unset(default)) => default,
            (word, Zero::Unset(_)) => word,
            (word, Zero::Inverted(bits)) => word ^ bits,
        }
    }
}

/// An emulated option that is on or off.
#[derive(Clone, Copy)]
pub struct Bit {
    /// The bit in `Private::emulated`.
    pub bit: u32,
    /// Only 0 and 1 are accepted.
    pub only_two: bool,
    /// The option is on by default, and the bit says that it is off.
    pub on_by_default: bool,
    /// How a kernel behind the stack learns of it.
    pub shown: Shown,
}

/// The part of the options line that shows an emulated option to a kernel behind the stack.
#[derive(Clone, Copy)]
pub enum Shown {
    /// Nothing.
    Nothing,
    /// This flag of `option_flags`.
    Flag(u32),
    /// The number, in this word.
    Number(At),
}

/// When a value is copied from the kernel socket to its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Import {
    /// If the program has set this option.
    IfSet,
    /// If the program has set any emulated option.
    IfEmulated,
    /// Never: another row has the same word. It counts as emulated.
    Alias,
    /// Always.
    Always,
}

const fn row(level: c_int, name: c_int, place: Place, import: Import) -> Row {
    Row { level, name, place, import }
}

/// An option on which the stack acts. The word 0 reads as `default`.
const fn word(level: c_int, name: c_int, at: At, accepts: fn(c_int) -> Sys<c_int>, default: c_int) -> Row {
    row(level, name, Place::StackWord(Word { at, accepts, zero: Zero::Unset(default) }), Import::IfSet)
}

/// A flag on which the stack acts.
const fn stack_flag(level: c_int, name: c_int, flag: u32) -> Row {
    row(level, name, Place::StackFlag(flag), Import::IfSet)
}

/// A number on which only a kernel behind the stack acts.
const fn kernels(level: c_int, name: c_int, at: At, accepts: fn(c_int) -> Sys<c_int>) -> Row {
    row(level, name, Place::StackWord(Word { at, accepts, zero: Zero::Unset(0) }), Import::IfEmulated)
}

const fn path_mtu(level: c_int, name: c_int, import: Import) -> Row {
    let word =
        Word { at: |line| &line.path_mtu_discovery, accepts: within::<0, PMTUDISC_MAX>, zero: Zero::Inverted(1) };
    row(level, name, Place::StackWord(word), import)
}

const fn least_hops(level: c_int, name: c_int, import: Import) -> Row {
    let word = Word { at: |line| &line.least_hops, accepts: within::<0, 255>, zero: Zero::Unset(0) };
    row(level, name, Place::StackWord(word), import)
}

/// An option of `SOL_SOCKET` that AF_UNIX sockets store and read as TCP sockets do.
const fn pair(name: c_int, shown: Shown) -> Row {
    row(SOCKET, name, Place::Pair(shown), Import::IfEmulated)
}

/// An emulated flag, which any number but 0 switches on.
const fn bit(place: u32, level: c_int, name: c_int) -> Row {
    row(
        level,
        name,
        Place::Bit(Bit { bit: 1 << place, only_two: false, on_by_default: false, shown: Shown::Nothing }),
        Import::IfEmulated,
    )
}

/// An emulated flag that accepts 0 and 1 only.
const fn switch(place: u32, level: c_int, name: c_int, shown: Shown) -> Row {
    row(
        level,
        name,
        Place::Bit(Bit { bit: 1 << place, only_two: true, on_by_default: false, shown }),
        Import::IfEmulated,
    )
}

/// An emulated flag that is on by default.
const fn switched_on(place: u32, level: c_int, name: c_int, only_two: bool) -> Row {
    let bit = Bit { bit: 1 << place, only_two, on_by_default: true, shown: Shown::Nothing };
    row(level, name, Place::Bit(bit), Import::IfEmulated)
}

/// All options whose value is one number. `TCP_CONGESTION`, `SO_LINGER`, the time limits and kTLS have other types.
pub static TABLE: [Row; 60] = [
    row(TCP, libc::TCP_NODELAY, Place::AppFlag(app_flags::NODELAY), Import::Always),
    row(TCP, libc::TCP_CORK, Place::AppFlag(app_flags::CORK), Import::Always),
    row(TCP, libc::TCP_QUICKACK, Place::AppFlag(app_flags::QUICKACK), Import::Always),
    row(SOCKET, libc::SO_REUSEADDR, Place::OwnFlag(flag::REUSEADDR), Import::Always),
    row(SOCKET, libc::SO_REUSEPORT, Place::OwnFlag(flag::REUSEPORT), Import::Always),
    row(SOCKET, libc::SO_OOBINLINE, Place::OwnFlag(flag::OOBINLINE), Import::Always),
    stack_flag(SOCKET, libc::SO_KEEPALIVE, option_flags::KEEPALIVE),
    stack_flag(IP, libc::IP_RECVERR, option_flags::RECVERR),
    stack_flag(IPV6, libc::IPV6_RECVERR, option_flags::RECVERR_SIX),
    word(TCP, libc::TCP_KEEPIDLE, |line| &line.keep_idle_s, within::<1, 32_767>, 7200),
    word(TCP, libc::TCP_KEEPINTVL, |line| &line.keep_interval_s, within::<1, 32_767>, 75),
    word(TCP, libc::TCP_KEEPCNT, |line| &line.keep_count, within::<1, 127>, 9),
    word(TCP, libc::TCP_USER_TIMEOUT, |line| &line.user_timeout_ms, not_negative, 0),
    word(TCP, libc::TCP_MAXSEG, |line| &line.max_segment, segment, DEFAULT_MSS),
    word(TCP, libc::TCP_SYNCNT, |line| &line.syn_retries, within::<1, 127>, 6),
    word(TCP, libc::TCP_LINGER2, |line| &line.linger2_s, linger2, 60),
    word(TCP, libc::TCP_DEFER_ACCEPT, |line| &line.defer_accept_s, deferral, 0),
    word(IP, libc::IP_TOS, |line| &line.tos, type_of_service, 0),
    word(IP, libc::IP_TTL, |line| &line.ttl, time_to_live, 64),
    word(IPV6, libc::IPV6_TCLASS, |line| &line.tclass, traffic_class, 0),
    word(IPV6, libc::IPV6_UNICAST_HOPS, |line| &line.hops, hop_limit, 64),
    row(SOCKET, libc::SO_MAX_PACING_RATE, Place::PacingRate, Import::IfSet),
    row(SOCKET, libc::SO_SNDBUF, Place::Buffer(|line| &line.send_buffer), Import::IfSet),
    row(SOCKET, libc::SO_RCVBUF, Place::Buffer(|line| &line.receive_buffer), Import::IfSet),
    pair(libc::SO_BROADCAST, Shown::Nothing),
    pair(libc::SO_DONTROUTE, Shown::Flag(option_flags::DONTROUTE)),
    pair(libc::SO_TIMESTAMP, Shown::Nothing),
    pair(libc::SO_TIMESTAMPNS, Shown::Nothing),
    pair(libc::SO_DEBUG, Shown::Nothing),
    pair(libc::SO_MARK, Shown::Number(|line| &line.mark)),
    pair(libc::SO_RXQ_OVFL, Shown::Nothing),
    row(SOCKET, libc::SO_PEEK_OFF, Place::Peek, Import::IfEmulated),
    pair(libc::SO_BUSY_POLL, Shown::Nothing),
    pair(libc::SO_PRIORITY, Shown::Number(|line| &line.priority)),
    switch(1, TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, Shown::Flag(option_flags::THIN)),
    switched_on(0, IP, libc::IP_MULTICAST_LOOP, false),
    switched_on(2, IPV6, libc::IPV6_MULTICAST_LOOP, true),
    switch(3, TCP, libc::TCP_INQ, Shown::Nothing),
    bit(4, IP, libc::IP_RECVTOS),
    bit(5, IP, libc::IP_RECVTTL),
    bit(6, IP, libc::IP_PKTINFO),
    bit(7, IP, libc::IP_FREEBIND),
    bit(8, IP, libc::IP_TRANSPARENT),
    bit(9, IP, libc::IP_BIND_ADDRESS_NO_PORT),
    bit(10, IPV6, libc::IPV6_RECVPKTINFO),
    bit(11, IPV6, libc::IPV6_RECVHOPLIMIT),
    bit(12, IPV6, libc::IPV6_RECVTCLASS),
    bit(13, IPV6, libc::IPV6_FREEBIND),
    bit(14, IPV6, libc::IPV6_TRANSPARENT),
    switch(15, TCP, libc::TCP_FASTOPEN_CONNECT, Shown::Nothing),
    switch(16, TCP, libc::TCP_THIN_DUPACK, Shown::Nothing),
    switch(17, TCP, libc::TCP_FASTOPEN_NO_COOKIE, Shown::Nothing),
    kernels(TCP, libc::TCP_NOTSENT_LOWAT, |line| &line.not_sent_low_water, any),
    kernels(TCP, TCP_TX_DELAY, |line| &line.send_delay_us, not_negative),
    kernels(TCP, libc::TCP_FASTOPEN, |line| &line.fast_open, not_negative),
    kernels(TCP, libc::TCP_WINDOW_CLAMP, |line| &line.window_clamp, window_clamp),
    path_mtu(IP, libc::IP_MTU_DISCOVER, Import::IfEmulated),
    path_mtu(IPV6, libc::IPV6_MTU_DISCOVER, Import::Alias),
    least_hops(IP, libc::IP_MINTTL, Import::IfEmulated),
    least_hops(IPV6, IPV6_MINHOPCOUNT, Import::Alias),
];

/// Is it an option that no slot can have and that a program does without? A pending socket refuses it too, with
/// ENOPROTOOPT as an old kernel. Otherwise a program would wait for completions, times or headers that never come, or
/// take connections for spread by its own program.
pub fn is_refused(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (SOCKET, libc::SO_ZEROCOPY | libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW | libc::SO_TXTIME)
            | (SOCKET, SO_ATTACH_REUSEPORT_CBPF | SO_ATTACH_REUSEPORT_EBPF)
            | (TCP, libc::TCP_SAVE_SYN | TCP_RTO_MAX_MS)
    )
}

/// The row of an option. `SO_SNDBUFFORCE` and `SO_RCVBUFFORCE` share the rows of the options that they force.
pub fn find(level: c_int, name: c_int) -> Option<&'static Row> {
    let name = match (level, name) {
        (SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        (SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        _ => name,
    };
    TABLE.iter().find(|row| (row.level, row.name) == (level, name))
}

/// The options that are imported if the program has set them, each with its bit in `Pending::steered`.
pub fn imported_if_set() -> impl Iterator<Item = (u32, &'static Row)> {
    TABLE.iter().filter(|row| row.import == Import::IfSet).enumerate().map(|(place, row)| (1 << place, row))
}

/// The options that are emulated, or on which only a kernel behind the stack acts.
pub fn emulated() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| row.import == Import::IfEmulated)
}

impl Row {
    /// The row's bit in `Pending::steered`; 0 = it has none.
    pub fn if_set_bit(&self) -> u32 {
        imported_if_set().find(|(_, row)| core::ptr::eq(*row, self)).map_or(0, |(bit, _)| bit)
    }

    /// Is it emulated, or does only a kernel behind the stack act on it?
    pub fn is_emulated(&self) -> bool {
        matches!(self.import, Import::IfEmulated | Import::Alias)
    }

    /// Is it this option?
    pub fn is(&self, level: c_int, name: c_int) -> bool {
        (self.level, self.name) == (level, name)
    }
}

impl Shown {
    /// Shows a number in the options line. False: this option is not shown there.
    pub fn show(&self, line: &OptionsLine, value: c_int) -> bool {
        match self {
            Self::Nothing => return false,
            Self::Flag(flag) => mark(line, *flag, value != 0),
            Self::Number(at) => at(line).store(value.cast_unsigned(), Relaxed),
        }
        true
    }
}

/// Switches one of `option_flags` on or off.
pub fn mark(line: &OptionsLine, flag: u32, on: bool) {
    let flags = line.flags.load(Relaxed);
    line.flags.store(if on { flags | flag } else { flags & !flag }, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_and_every_bit_stands_in_the_table_once() {
        for (place, row) in TABLE.iter().enumerate() {
            assert!(TABLE[..place].iter().all(|before| !before.is(row.level, row.name)), "{} {}", row.level, row.name);
        }
        let bits = TABLE.iter().filter_map(|row| if let Place::Bit(bit) = row.place { Some(bit.bit) } else { None });
        assert_eq!(bits.clone().fold(0, |all, bit| all | bit).count_ones() as usize, bits.count());
        // `Pending` has 18 bits for these.
        assert_eq!(imported_if_set().count(), 18);
    }
}
