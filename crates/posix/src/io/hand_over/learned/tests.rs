//! What calls teach, call by call.

use super::*;
use std::collections::BTreeSet;

const A: Key = (1, 1);
const B: Key = (2, 1);
const C: Key = (3, 1);
const P: Pipe = (9, 1);
const Q: Pipe = (9, 2);

/// A proxy that has both ends of a pair, and reads one after the other.
struct Proxy {
    learned: Learned,
    heads: BTreeMap<Key, u32>,
    /// Sockets of which the library learns that they are closed.
    marked: BTreeSet<Key>,
    now: Instant,
}

impl Proxy {
    fn new() -> Self {
        Self { learned: Learned::new(), heads: BTreeMap::new(), marked: BTreeSet::new(), now: Instant::now() }
    }

    fn head(&self, key: Key) -> u32 {
        self.heads.get(&key).copied().unwrap_or(0)
    }

    /// `splice` to a pipe, of which so many bytes move.
    fn read(&mut self, from: Key, pipe: Pipe, len: usize, moved: u32) -> Plan {
        let (head, heads, now) = (self.head(from), self.heads.clone(), self.now);
        let is_empty = self.learned.pipes.get(&pipe).is_none_or(|contents| contents.bytes == 0);
        let head_of = |key| Some(heads.get(&key).copied().unwrap_or(0));
        self.marked.insert(from);
        let plan = self.learned.plan((from, head), pipe, (len, is_empty), head_of, now);
        if matches!(plan, Plan::Move | Plan::Nudge(_)) {
            self.heads.insert(from, head.wrapping_add(moved));
            self.learned.moved_in(from, pipe, [head, head.wrapping_add(moved)], moved as usize);
        }
        plan
    }

    fn write(&mut self, pipe: Pipe, to: Key, moved: u32) {
        assert_eq!(self.learned.taken(pipe, to, moved as usize), Found::Bytes);
        if self.learned.moved_out(pipe, to, moved as usize) {
            self.marked.insert(to);
        }
    }

    /// A call of another thread, which has not returned yet.
    fn begin_to_read(&mut self, from: Key) -> Plan {
        let (head, heads) = (self.head(from), self.heads.clone());
        self.learned.plan((from, head), Q, (ALL, true), |key| heads.get(&key).copied(), self.now)
    }

    fn close(&mut self, keys: &[Key]) {
        keys.iter().filter(|key| self.marked.contains(key)).for_each(|key| self.learned.closed(*key));
    }

    /// Passes on from one to the other.
    fn pass(&mut self, from: Key, to: Key, bytes: u32) -> Plan {
        let plan = self.read(from, P, ALL, bytes);
        if matches!(plan, Plan::Move | Plan::Nudge(_)) {
            self.write(P, to, bytes);
        }
        plan
    }

    /// Both have passed on enough, and the last call has moved nothing.
    fn willing() -> Self {
        let mut proxy = Self::new();
        assert_eq!(proxy.pass(B, A, 10), Plan::Move);
        assert_eq!(proxy.pass(A, B, WORTH as u32), Plan::Move);
        proxy
    }

    fn expect_nothing(&self) {
        let Learned { sources, pipes, nudges } = &self.learned;
        assert!(sources.is_empty() && pipes.is_empty() && nudges.is_empty());
    }

    fn handed_over() -> Self {
        let mut proxy = Self::willing();
        assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B));
        proxy.learned.handed_over(A, B);
        proxy
    }
}

#[test]
fn a_pair_is_handed_over_when_all_of_both_goes_to_the_other_and_enough_has() {
    let mut proxy = Proxy::new();
    assert_eq!(proxy.pass(A, B, WORTH as u32 - 20), Plan::Move);
    assert_eq!(proxy.pass(B, A, 10), Plan::Move);
    assert_eq!(proxy.pass(A, B, 10), Plan::Move, "not enough yet");
    assert_eq!(proxy.pass(B, A, 10), Plan::Ask(A));
}

#[test]
fn who_asks_for_what_is_left_of_a_message_looks_at_it() {
    for which in [A, B] {
        let mut proxy = Proxy::willing();
        assert_eq!(proxy.read(which, P, ALL - 1, 0), Plan::Move);
        assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move);
        assert_eq!(proxy.read(B, P, ALL, 0), Plan::Move);
    }
    // But not if a call before it has put the rest into the pipe.
    let mut proxy = Proxy::willing();
    proxy.learned.moved_in(A, P, [WORTH as u32, WORTH as u32 + 5], 5);
    proxy.heads.insert(A, WORTH as u32 + 5);
    assert_eq!(proxy.read(A, P, ALL - 5, 0), Plan::Move);
    proxy.write(P, B, 5);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B));
}

#[test]
fn nothing_is_handed_over_while_bytes_are_in_a_pipe_or_were_read_otherwise() {
    let mut proxy = Proxy::willing();
    assert_eq!(proxy.read(B, Q, ALL, 7), Plan::Ask(A), "nothing is on its way");
    proxy.learned.not_yet(B, A, proxy.now);
    proxy.learned.moved_in(B, Q, [10, 17], 7);
    proxy.heads.insert(B, 17);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move, "bytes of the other one are in a pipe");
    assert_eq!(proxy.read(B, Q, ALL, 0), Plan::Move, "bytes of its own are in a pipe");
    proxy.write(Q, A, 7);
    // The program has received some: they may be in its memory.
    proxy.heads.insert(A, proxy.head(A) + 100);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B), "the next call says that they are gone");
    proxy.learned.not_yet(A, B, proxy.now);
    proxy.heads.insert(B, proxy.head(B) + 100);
    proxy.now += PROBE_PAUSE;
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Nudge(B), "how it reads from the other one is to be seen again");
}

#[test]
fn a_socket_from_which_nothing_was_spliced_is_called_readable_some_times() {
    let mut proxy = Proxy::new();
    proxy.pass(A, B, WORTH as u32);
    for _ in 0..PROBES {
        assert_eq!(proxy.read(A, P, ALL, 0), Plan::Nudge(B));
        assert!(proxy.learned.is_readable(B, || 0, proxy.now) && !proxy.learned.is_readable(A, || 0, proxy.now));
        proxy.learned.shown(B, READABLE, || 0, proxy.now);
        assert!(!proxy.learned.is_readable(B, || 0, proxy.now) && proxy.learned.nudges() == 0);
        assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move, "not at once again");
        proxy.now += PROBE_PAUSE;
    }
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move);
    // The program's own call shows it.
    assert_eq!(proxy.read(B, P, ALL, 0), Plan::Ask(A));
}

#[test]
fn whose_bytes_go_to_two_or_come_from_two_stays() {
    let mut proxy = Proxy::willing();
    proxy.pass(C, B, WORTH as u32);
    for key in [A, B, C] {
        assert_eq!(proxy.read(key, P, ALL, 0), Plan::Move);
    }
}

#[test]
fn a_pipe_with_bytes_of_two_or_of_the_program_counts_for_none() {
    let mut proxy = Proxy::willing();
    proxy.learned.moved_in(A, Q, [WORTH as u32, WORTH as u32 + 1], 1);
    proxy.learned.moved_in(B, Q, [10, 11], 1);
    proxy.learned.moved_out(Q, B, 2);
    assert!(proxy.learned.sources[&A].never && proxy.learned.sources[&B].never);
    let mut proxy = Proxy::willing();
    proxy.learned.moved_in(A, Q, [WORTH as u32, WORTH as u32 + 1], 1);
    proxy.learned.moved_out(Q, B, 2);
    assert!(proxy.learned.sources[&A].never, "one byte is the program's");
}

#[test]
fn attempts_are_bounded_and_each_is_begun_later() {
    let mut proxy = Proxy::willing();
    let mut attempts = Vec::new();
    for _ in 0..100_000 {
        if proxy.read(A, P, ALL, 0) == Plan::Ask(B) {
            let goes_on = proxy.learned.not_yet(A, B, proxy.now);
            if !proxy.learned.waits(A, proxy.now) {
                assert!(!goes_on);
                break;
            }
            attempts.push(proxy.now);
        }
        proxy.now += AGAIN_AT_MOST;
    }
    let pauses = attempts.windows(2).filter(|two| two[1] - two[0] > HELD).count();
    assert_eq!((pauses, proxy.read(A, P, ALL, 0)), (ATTEMPTS as usize - 1, Plan::Move));
}

#[test]
fn what_has_passed_is_owed_once_and_goes_to_the_partner_alone() {
    let mut proxy = Proxy::handed_over();
    let learned = &mut proxy.learned;
    assert_eq!((learned.partner(A), learned.partner(B), learned.partner(C)), (Some(B), Some(A), None));
    assert!(!learned.is_readable(A, || 0, proxy.now) && learned.is_readable(A, || 100, proxy.now));
    learned.shown(A, READABLE, || 100, proxy.now);
    assert!(!learned.is_readable(A, || 100, proxy.now) && learned.is_readable(A, || 101, proxy.now));
    assert_eq!(learned.owe(A, P, 100, 60), 60);
    assert!(learned.is_readable(A, || 100, proxy.now), "some are left");
    assert_eq!([60, 60].map(|len| learned.owe(A, P, 100, len)), [40, 0]);
    assert!(!learned.is_readable(A, || 100, proxy.now));
    assert_eq!(learned.taken(P, C, 100), Found::Elsewhere);
    assert_eq!(learned.taken(P, B, 30), Found::Owed(30));
    assert_eq!(learned.taken(P, B, 1000), Found::Owed(70));
    assert_eq!(learned.taken(P, B, 1000), Found::Bytes);
    assert!(learned.pipes.is_empty());
    // A number that goes back is a lie of the other side.
    assert_eq!(learned.owe(A, P, 50, 60), 0);
}

#[test]
fn bytes_that_come_behind_owed_ones_leave_behind_them_and_no_owed_one_comes_behind_bytes() {
    let mut proxy = Proxy::handed_over();
    assert_eq!(proxy.learned.owe(A, P, 5, 100), 5);
    proxy.read(C, P, ALL, 7);
    assert_eq!(proxy.learned.owe(B, P, 9, 100), 0, "the pipe has others'");
    assert_eq!(proxy.learned.taken(P, B, 100), Found::Owed(5));
    assert_eq!(proxy.learned.taken(P, B, 100), Found::Bytes);
    proxy.learned.moved_out(P, B, 7);
    assert!(proxy.learned.pipes.is_empty());
}

#[test]
fn a_socket_that_is_closed_leaves_nothing() {
    let mut proxy = Proxy::handed_over();
    proxy.learned.owe(A, P, 5, 100);
    proxy.read(C, Q, ALL, 5);
    proxy.write(Q, C, 5);
    proxy.close(&[A, B, C]);
    proxy.expect_nothing();
}

#[test]
fn sockets_that_are_not_handed_over_leave_nothing_either() {
    let mut proxy = Proxy::new();
    proxy.pass(A, B, 8);
    proxy.close(&[A, B]);
    proxy.expect_nothing();
    // Bytes are in the pipe, and a nudge is under way.
    let mut proxy = Proxy::new();
    proxy.pass(A, B, WORTH as u32);
    assert_eq!(proxy.read(A, P, ALL, 8), Plan::Nudge(B));
    proxy.close(&[A, B]);
    proxy.expect_nothing();
    // It is closed during a call.
    assert_eq!(proxy.begin_to_read(C), Plan::Move);
    proxy.learned.closed(C);
    proxy.learned.moved_in(C, Q, [0, 8], 8);
    proxy.expect_nothing();
}

#[test]
fn a_nudge_that_nobody_sees_ends_and_no_wait_spins_for_it() {
    let mut proxy = Proxy::new();
    proxy.pass(A, B, WORTH as u32);
    let begun = proxy.now;
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Nudge(B));
    let mut waits = 0;
    while let Some(at) = proxy.learned.next(proxy.now) {
        assert!(at >= proxy.now + LOOK && proxy.learned.is_readable(B, || 0, proxy.now));
        // Room is no sign that the program has been told of bytes.
        proxy.learned.shown(B, libc::EPOLLOUT as u32, || 0, proxy.now);
        (proxy.now, waits) = (at, waits + 1);
    }
    assert_eq!((waits, proxy.now), (100, begun + NUDGED));
    assert!(!proxy.learned.is_readable(B, || 0, proxy.now) && proxy.learned.nudges() == 0);
    // One that is not due yet has a wait end then.
    let mut proxy = Proxy::willing();
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B));
    assert!(proxy.learned.not_yet(A, B, proxy.now));
    assert_eq!(proxy.learned.next(proxy.now), Some(proxy.now + AGAIN));
}

#[test]
fn nothing_is_asked_while_another_thread_moves_bytes_and_nothing_moves_while_one_asks() {
    let mut proxy = Proxy::willing();
    proxy.learned.change(A, |source| source.never = true);
    assert_eq!(proxy.begin_to_read(B), Plan::Move);
    proxy.learned.change(A, |source| source.never = false);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move, "the other one's bytes are on their way");
    assert_eq!(proxy.read(B, P, ALL, 0), Plan::Move, "its own are");
    proxy.learned.moved_in(B, Q, [10, 10], 0);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B));
    for key in [A, B] {
        assert_eq!(proxy.begin_to_read(key), Plan::Wait);
        assert!(!proxy.learned.begin(key));
        proxy.learned.wait(key, proxy.now);
        assert!(proxy.learned.waits(key, proxy.now) && proxy.learned.is_readable(key, || 0, proxy.now + ASKED));
    }
    proxy.learned.not_yet(A, B, proxy.now);
    // The call that has asked moves bytes now.
    assert!(proxy.learned.begin(A));
    assert_eq!(proxy.read(B, Q, ALL, 0), Plan::Move);
    proxy.learned.moved_in(A, P, [WORTH as u32, WORTH as u32], 0);
    assert_eq!(proxy.read(B, Q, ALL, 0), Plan::Ask(A));
    proxy.learned.handed_over(B, A);
    assert_eq!((proxy.begin_to_read(A), proxy.learned.begin(A)), (Plan::Owe, false));
    // That asks for less than all does not matter any more.
    assert_eq!(proxy.read(A, P, 1, 0), Plan::Owe);
    assert!(!proxy.learned.stays(A));
}

#[test]
fn a_stack_with_too_many_questions_is_asked_later_however_often() {
    let mut proxy = Proxy::willing();
    for _ in 0..10 * ATTEMPTS {
        assert_eq!(proxy.read(A, P, ALL, 0), Plan::Ask(B));
        proxy.learned.busy(A, B, proxy.now);
        for key in [A, B] {
            assert_eq!(proxy.read(key, P, ALL, 0), Plan::Move);
        }
        proxy.now += BUSY;
    }
}

#[test]
fn a_stranger_who_reads_too_and_too_many_pipes_end_the_learning() {
    let mut proxy = Proxy::willing();
    proxy.learned.moved_in(A, P, [5, 9], 3);
    assert_eq!(proxy.read(A, P, ALL, 0), Plan::Move);
    let mut proxy = Proxy::new();
    for number in 0..MOST_PIPES as u64 + 1 {
        proxy.learned.plan((A, 0), (1, number), (ALL, true), |_| None, proxy.now);
        proxy.learned.moved_in(A, (1, number), [0, 1], 1);
    }
    assert!(proxy.learned.sources[&A].never && proxy.learned.pipes.len() == MOST_PIPES);
}
