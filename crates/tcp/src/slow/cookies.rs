//! SYN cookies (RFC 4987 §3.6). When a listener's half-open connections have reached their limit, a SYN is answered
//! without storing state. The peer's ACK returns the state: hash, minute and MSS in its acknowledgement number, other
//! options in its timestamp. So a flood uses no memory, and no slot of the application.

use super::SlowPath;
use super::connections::ConnectionEntry;
use super::host::{Host, Steered};
use super::isn::Secrets;
use super::listen::Listener;
use super::opening::{Opening, OpeningState};
use super::segments::{Arrival, Reply};
use crate::counters::Drop;
use crate::flow::FourTuple;
use crate::seq::Seq;
use crate::time::Micros;
use towpath_wire::flags;

/// Length of a period, the unit of a cookie's age, in µs (Linux: `TCP_SYNCOOKIE_PERIOD`).
const PERIOD_US: u64 = 60_000_000;
/// Number of periods in which a cookie is valid, its own included: at most two minutes (`MAX_SYNCOOKIE_AGE`).
const PERIODS: u32 = 2;
/// MSS values that a cookie can encode; the peer's is rounded down. They are Linux's `msstab`, from measurements.
const MSS: [u16; 4] = [536, 1300, 1440, 1460];
/// MSS values over IPv6: of its smallest MTU, of tunnels, of Ethernet, and of large frames.
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];
/// Bits of the cookie below the period's number.
const BITS: u32 = 24;

/// Bits of the timestamp that encode the agreed options, in Linux's layout.
const TS_BITS: u32 = 6;
/// The peer's window shift; [`NO_WINDOW_SCALE`] = none.
const TS_WINDOW_SCALE: u32 = 0xf;
const NO_WINDOW_SCALE: u32 = 0xf;
const TS_SACK: u32 = 1 << 4;
const TS_ECN: u32 = 1 << 5;

/// Makes the cookie for a peer's SYN to a listener of this user. It is our initial sequence number.
fn make(secrets: &Secrets, now: Micros, tuple: &FourTuple, user: u32, irs: Seq, peer_mss: u16) -> Seq {
    let (period, index) = (period(now), sizes(tuple).iter().rposition(|mss| *mss <= peer_mss).unwrap_or(0) as u32);
    let tail = secrets.cookie(tuple, user, irs, period).wrapping_add(index) & ((1 << BITS) - 1);
    Seq(base(secrets, tuple, irs).wrapping_add(period << BITS).wrapping_add(tail))
}

/// The MSS in a cookie; `None` if it is not ours, not for this peer, user and SYN, or too old.
fn check(secrets: &Secrets, now: Micros, tuple: &FourTuple, user: u32, irs: Seq, cookie: Seq) -> Option<u16> {
    let rest = cookie.0.wrapping_sub(base(secrets, tuple, irs));
    let age = period(now).wrapping_sub(rest >> BITS) & 0xff;
    if age >= PERIODS {
        return None;
    }
    let tail = secrets.cookie(tuple, user, irs, period(now).wrapping_sub(age));
    let index = rest.wrapping_sub(tail) & ((1 << BITS) - 1);
    sizes(tuple).get(index as usize).copied()
}

/// The part of a cookie that makes the numbers of one tuple rise, as RFC 9293 §3.4.1 requires.
fn base(secrets: &Secrets, tuple: &FourTuple, irs: Seq) -> u32 {
    secrets.cookie(tuple, 0, Seq(0), u32::MAX).wrapping_add(irs.0)
}

fn sizes(tuple: &FourTuple) -> [u16; 4] {
    if tuple.remote.is_ipv4() { MSS } else { MSS_V6 }
}

fn period(now: Micros) -> u32 {
    (now.0 / PERIOD_US) as u32
}

/// Our timestamp with the agreed options in its lowest bits. It is never later than the clock (RFC 7323 §4.1).
fn stamp(clock: u32, opening: &Opening) -> u32 {
    let bit = |agreed, bit| if agreed { bit } else { 0 };
    let shift = opening.peer_shift.map_or(NO_WINDOW_SCALE, u32::from);
    let said = shift | bit(opening.sack, TS_SACK) | bit(opening.ecn, TS_ECN);
    latest(clock, said)
}

/// The latest timestamp with these lowest bits that is not later than the clock.
fn latest(clock: u32, said: u32) -> u32 {
    let stamp = clock >> TS_BITS << TS_BITS | said;
    if stamp > clock { stamp.wrapping_sub(1 << TS_BITS) } else { stamp }
}

impl SlowPath {
    /// Answers a SYN with a cookie. `opening`: the negotiated options.
    pub(super) fn send_cookie(&mut self, now: Micros, arrival: &Arrival, mut opening: Opening, host: &mut dyn Host) {
        let secrets = self.secrets(host);
        if !self.config.syn_cookies || !self.cookies.allow(now, self.config.cookies_per_s, secrets.rate()) {
            return self.counters.drop(Drop::BacklogFull);
        }
        if let Some(listener) = opening.listener.and_then(|owner| self.listeners.of(owner)) {
            listener.overflow = Some(now);
        }
        if !opening.timestamps {
            // Without timestamps the peer's ACK cannot return these options.
            (opening.our_shift, opening.peer_shift) = (None, None);
            (opening.sack, opening.ecn) = (false, false);
        }
        let user = opening.listener.map_or(0, |listener| host.user(listener));
        let seq = make(&secrets, now, &arrival.tuple, user, opening.irs, opening.peer_mss);
        let mut syn = Reply::bare(seq, opening.irs.add(1), flags::SYN | flags::ACK);
        (syn.window, syn.options) = (opening.window(), opening.options(now));
        syn.flags |= opening.ecn_flags();
        syn.service = super::socket_options::service(&opening.options, opening.v6);
        if let Some(ours) = &mut syn.options.timestamps {
            let clock = ours.value.wrapping_sub(opening.ts_offset);
            ours.value = stamp(clock, &opening).wrapping_add(opening.ts_offset);
        }
        let Some(path) = opening.path else { return };
        if arrival.listener.is_some() {
            host.steer(&arrival.tuple, Steered::AnswerToCookie);
        }
        self.counters.cookies_sent += 1;
        self.transmit(arrival.flow_group, &arrival.tuple, &path.link, &syn, host);
    }

    /// Opens a connection if a segment to a listener answers a cookie. `Some` = it does not, and is returned.
    pub(super) fn hear_cookie(&mut self, now: Micros, arrival: Arrival, host: &mut dyn Host) -> Option<Arrival> {
        let tuple = arrival.tuple;
        let (irs, cookie) = (arrival.seq().sub(1), arrival.ack().sub(1));
        let answers = arrival.has(flags::ACK) && arrival.segment.flags & (flags::SYN | flags::RST) == 0;
        // Check only if a cookie may have been sent. Otherwise an attacker could try numbers.
        let recent = |at: Micros| now.since(at) < u64::from(PERIODS) * PERIOD_US;
        let sends = |listener: &&Listener| listener.overflow.is_some_and(recent);
        let secrets = self.secrets(host);
        let first = answers.then(|| self.listeners.candidates(&tuple).find(sends)).flatten();
        let Some(first) = first else { return Some(arrival) };
        let turned_away = first.turned_away.is_some_and(recent);
        // If the host has chosen the listener, it may be another one of a group, and so of the same user. A listener of
        // another user is one that listens no longer, though nobody has said so yet. It gets no connection.
        let mut tried = None;
        let found = self.listeners.candidates(&tuple).filter(sends).find_map(|listener| {
            let user = host.user(listener.owner);
            let fresh = tried.replace(user) != Some(user);
            let peer_mss = fresh.then(|| check(&secrets, now, &tuple, user, irs, cookie)).flatten()?;
            Some((listener.owner, listener.options, peer_mss))
        });
        let Some((parent, options, peer_mss)) = found else {
            // It may follow the first data of a peer that found the accept queue full. Only that first segment can be
            // checked, and the peer sends it again. A reset would end a connection that waits for room.
            if turned_away {
                self.counters.drop(Drop::BacklogFull);
                return None;
            }
            return Some(arrival);
        };
        // Ask again, as the policy may have changed since the SYN.
        let congestion = self.admitted(now, parent, &arrival, host)?;
        let path = self.way_back(&arrival, host)?;
        let Some(owner) = self.table.has_room().then(|| host.new_child(parent)).flatten() else {
            self.counters.drop(Drop::NoMemory);
            return None;
        };
        let mut opening = self.new_opening(now, Some(parent), tuple.remote, host.ring_bytes(owner), options);
        opening.ts_offset = secrets.timestamp_offset(&tuple);
        (opening.state, opening.path, opening.iss) = (OpeningState::SynReceived, Some(path), cookie);
        (opening.irs, opening.peer_mss) = (irs, peer_mss);
        recall(&mut opening, &arrival);
        let connection = ConnectionEntry {
            bound: true,
            congestion,
            ..ConnectionEntry::opening(owner, tuple, opening, host.flow_group_for(&tuple, None))
        };
        let Some(id) = self.table.insert(connection) else {
            host.drop_child(owner);
            return None;
        };
        self.in_syn_received(now, id, arrival, host);
        if self.table.opening(id).is_some() {
            // The accept queue is full. The peer's next segment returns the cookie again.
            self.discard_opening(id, host);
            if let Some(listener) = self.listeners.of(parent) {
                listener.turned_away = Some(now);
            }
        } else {
            self.counters.cookies_accepted += 1;
        }
        None
    }
}

/// Restores the SYN's options from the returned timestamp.
fn recall(opening: &mut Opening, arrival: &Arrival) {
    let theirs = arrival.segment.options.timestamps.filter(|_| opening.timestamps);
    let said = theirs.map_or(NO_WINDOW_SCALE, |stamps| stamps.echo.wrapping_sub(opening.ts_offset));
    opening.timestamps = theirs.is_some();
    opening.ts_recent = theirs.map_or(0, |stamps| stamps.value);
    opening.sack &= said & TS_SACK != 0;
    opening.ecn &= said & TS_ECN != 0;
    match said & TS_WINDOW_SCALE {
        NO_WINDOW_SCALE => opening.our_shift = None,
        shift => opening.peer_shift = Some((shift as u8).min(towpath_wire::options::MAX_WINDOW_SCALE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::RingBytes;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn tuple(remote_port: u16) -> FourTuple {
        let (local, remote) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
        FourTuple { local, local_port: 80, remote, remote_port }
    }

    fn secrets(mut n: u64) -> Secrets {
        Secrets::new(|| {
            n += 1;
            n
        })
    }

    #[test]
    fn a_cookie_is_good_for_its_peer_and_syn_and_up_to_two_minutes() {
        let (keys, made) = (secrets(1), Micros(1_000 * PERIOD_US + 59_000_000));
        for (peer_mss, said) in [(88, 536), (536, 536), (1299, 536), (1300, 1300), (1460, 1460), (9000, 1460)] {
            let cookie = make(&keys, made, &tuple(4000), 5, Seq(77), peer_mss);
            let at = |us| check(&keys, made.after(us), &tuple(4000), 5, Seq(77), cookie);
            assert_eq!([0, 60_000_000].map(at), [Some(said); 2]);
            assert_eq!([61_000_000, 120_000_000, 1 << 40].map(at), [None; 3]);
            assert_eq!(check(&keys, made, &tuple(4001), 5, Seq(77), cookie), None);
            assert_eq!(check(&keys, made, &tuple(4000), 6, Seq(77), cookie), None, "another user's listener");
            assert_eq!(check(&keys, made, &tuple(4000), 5, Seq(78), cookie), None);
            assert_eq!(check(&secrets(2), made, &tuple(4000), 5, Seq(77), cookie), None);
        }
    }

    /// A period is the highest byte of the sum, and the MSS's index is added to the hash (RFC 4987 §3.6). Computed by
    /// another program.
    #[test]
    fn a_cookie_is_a_base_and_a_period_and_a_hash_with_the_index_of_the_mss() {
        let keys = secrets(0);
        let (v4, one) = (tuple(4000), |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
        let v6 = FourTuple { local: one(1), remote: one(2), ..v4 };
        for (tuple, period, first, sizes) in [
            (v4, 0, 0x57b9_56bb, MSS),
            (v4, 1000, 0x3fab_1f4b, MSS),
            (v6, 0, 0x8d4d_af9d, MSS_V6),
            (v6, 1000, 0x7573_7e8b, MSS_V6),
        ] {
            for (index, mss) in (0..).zip(sizes) {
                let now = Micros(period * PERIOD_US + 59_999_999);
                assert_eq!(make(&keys, now, &tuple, 5, Seq(77), mss), Seq(first + index), "{mss} in period {period}");
                assert_eq!(check(&keys, now, &tuple, 5, Seq(77), Seq(first + index)), Some(mss));
            }
            // One below the first index, and one beyond the last.
            let now = Micros(period * PERIOD_US);
            let none = [first - 1, first + 4].map(|cookie| check(&keys, now, &tuple, 5, Seq(77), Seq(cookie)));
            assert_eq!(none, [None; 2]);
        }
    }

    /// Linux's layout: four bits of window scaling, one of SACK, one of ECN.
    #[test]
    fn a_stamp_says_the_window_shift_and_sack_and_ecn() {
        let mut opening =
            Opening::new(Micros(0), None, Ipv4Addr::new(10, 0, 0, 2).into(), RingBytes::fixed(1, 1), true);
        for (peer_shift, sack, ecn, said) in [
            (None, false, false, 0xf),
            (Some(0), false, false, 0),
            (Some(14), true, false, 0x1e),
            (Some(7), false, true, 0x27),
            (Some(9), true, true, 0x39),
            (None, true, true, 0x3f),
        ] {
            (opening.peer_shift, opening.sack, opening.ecn) = (peer_shift, sack, ecn);
            assert_eq!(stamp(0x1_0040 + 0x3f, &opening), 0x1_0040 + said);
            assert_eq!(stamp(0x1_0040, &opening), if said == 0 { 0x1_0040 } else { 0x1_0000 + said });
        }
    }

    #[test]
    fn hardly_any_other_number_is_a_cookie() {
        let (keys, now) = (secrets(1), Micros(5 * PERIOD_US));
        let good = (0..4_000_000u32)
            .filter(|i| check(&keys, now, &tuple(4000), 5, Seq(77), Seq(i.wrapping_mul(2_654_435_761))).is_some());
        assert!(good.count() <= 1, "8 of 2^32 are");
    }

    #[test]
    fn a_timestamp_is_the_latest_with_these_options_that_is_not_later_than_the_clock() {
        for clock in 1000..1200 {
            for said in 0..1 << TS_BITS {
                let stamp = latest(clock, said);
                assert_eq!(stamp & ((1 << TS_BITS) - 1), said);
                assert!(stamp <= clock && clock - stamp < 1 << TS_BITS, "{stamp} at {clock}");
            }
        }
    }
}
