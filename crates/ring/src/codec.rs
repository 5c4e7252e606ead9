//! The words that cross where the two sides do not share memory. Each side keeps a copy of a region, and a forwarder
//! carries the words that one writes to the other's copy.
//!
//! A writer publishes words one after the other, and a reader that sees one must see those before it. So they are read
//! here in the opposite order of their publication, because a later load is at least as new. They are stored in the
//! order of their publication. Dirty sets, futex words and doorbells do not cross; each copy has its own.

use crate::options::WORDS;
use crate::{AppLine, CommandLine, CountsLine, InfoLine, OptionsLine, StackLine};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words of [`AppLine`] that cross: `tx_tail`, `rx_head`, `urgent`, `flush`, `record`, `flags`, `generation`.
pub type AppLineWords = [u32; 7];
/// Words of [`CommandLine`]: `holder`, the command, `seq`.
pub type CommandLineWords = [u32; 15];
/// Words of [`OptionsLine`]: `linger2_s`, the others, `seq`.
pub type OptionsLineWords = [u32; WORDS + 1];
/// Words of [`StackLine`]: `tx_head`, `rx_tail`, `urgent`, `error`, `soft_error`, `status`, `flow_group`, `generation`,
/// `state`, `command_result`, `command_done`.
pub type StackLineWords = [u32; 11];
/// Words of [`InfoLine`]; a word of 64 bits is two of these, the low half first.
pub type InfoLineWords = [u32; 47];
/// Words of [`CountsLine`], likewise.
pub type CountsLineWords = [u32; 25];

/// Place of `linger2_s` in [`OptionsLine::words`].
const LINGER2: usize = 10;

/// Places in [`AppLineWords`].
pub mod app_word {
    /// `tx_tail`.
    pub const TX_TAIL: usize = 0;
    /// `rx_head`.
    pub const RX_HEAD: usize = 1;
    /// `flags`.
    pub const FLAGS: usize = 5;
    /// `generation`.
    pub const GENERATION: usize = 6;
}

/// Places in [`StackLineWords`].
pub mod stack_word {
    /// `tx_head`.
    pub const TX_HEAD: usize = 0;
    /// `rx_tail`.
    pub const RX_TAIL: usize = 1;
    /// `urgent`.
    pub const URGENT: usize = 2;
    /// `status`.
    pub const STATUS: usize = 5;
    /// `generation`.
    pub const GENERATION: usize = 7;
    /// `state`.
    pub const STATE: usize = 8;
    /// `command_result`, and behind it `command_done`.
    pub const RESULT: usize = 9;
}

/// Reads words that are published in this order.
fn read<const N: usize>(words: [&AtomicU32; N]) -> [u32; N] {
    let mut values = [0; N];
    for (value, word) in values.iter_mut().zip(words).rev() {
        *value = word.load(Ordering::Acquire);
    }
    values
}

/// Publishes words in this order.
fn write<const N: usize>(words: [&AtomicU32; N], values: &[u32; N]) {
    for (word, value) in words.into_iter().zip(values) {
        word.store(*value, Ordering::Release);
    }
}

impl AppLine {
    fn carried(&self) -> [&AtomicU32; 7] {
        let (flush, record) = (self.flush(), self.record());
        [&self.tx_tail, &self.rx_head, &self.urgent, flush, record, &self.flags, &self.generation]
    }
    /// Reads the words that cross.
    pub fn load(&self) -> AppLineWords {
        read(self.carried())
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &AppLineWords) {
        write(self.carried(), words);
    }
}

impl CommandLine {
    fn carried(&self) -> [&AtomicU32; 15] {
        let Self { seq, op, remote_addr: [r0, r1, r2, r3], remote_port, local_addr, local_port, .. } = self;
        let [l0, l1, l2, l3] = local_addr;
        let (backlog, flags, holder) = (&self.backlog, &self.flags, &self.holder);
        [holder, op, r0, r1, r2, r3, remote_port, l0, l1, l2, l3, local_port, backlog, flags, seq]
    }
    /// Reads the words that cross.
    pub fn load(&self) -> CommandLineWords {
        read(self.carried())
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &CommandLineWords) {
        write(self.carried(), words);
    }
}

impl OptionsLine {
    fn carried(&self) -> [&AtomicU32; WORDS + 1] {
        let mut all = [&self.seq; WORDS + 1];
        all[..WORDS].copy_from_slice(&self.words());
        // `linger2_s` crosses first.
        all[..=LINGER2].rotate_right(1);
        all
    }
    /// Reads the words that cross.
    pub fn load(&self) -> OptionsLineWords {
        read(self.carried())
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &OptionsLineWords) {
        write(self.carried(), words);
    }
}

impl StackLine {
    fn before_result(&self) -> [&AtomicU32; 9] {
        [
            &self.tx_head,
            &self.rx_tail,
            &self.urgent,
            &self.error,
            &self.soft_error,
            &self.status,
            &self.flow_group,
            &self.generation,
            &self.state,
        ]
    }
    /// Reads the words that cross.
    pub fn load(&self) -> StackLineWords {
        let done = self.command_done.load(Ordering::Acquire);
        let result = self.command_result.load(Ordering::Acquire);
        let mut all = [0; 11];
        all[..9].copy_from_slice(&read(self.before_result()));
        (all[9], all[10]) = (result as u32, done);
        all
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &StackLineWords) {
        let [before @ .., result, done] = words;
        write(self.before_result(), before);
        self.command_result.store(*result as i32, Ordering::Release);
        self.command_done.store(*done, Ordering::Release);
    }
}

impl InfoLine {
    /// Its words of 32 bits, and those of 64.
    fn all(&self) -> ([&AtomicU32; 35], [&AtomicU64; 6]) {
        let ([l0, l1, l2, l3], [r0, r1, r2, r3]) = (&self.local_addr, &self.remote_addr);
        let small = [
            l0,
            l1,
            l2,
            l3,
            r0,
            r1,
            r2,
            r3,
            &self.ports,
            &self.tcp_state,
            &self.mss,
            &self.congestion,
            &self.retransmits,
            &self.agreed,
            &self.srtt_us,
            &self.rttvar_us,
            &self.min_rtt_us,
            &self.cwnd,
            &self.ssthresh,
            &self.send_window,
            &self.unacked,
            &self.unsent,
            &self.segments_in,
            &self.segments_out,
            &self.timeouts,
            &self.probes,
            &self.ca_state,
            &self.window_shifts,
            &self.receive_mss,
            &self.marked,
            &self.sacked,
            &self.lost,
            &self.observed,
            &self.silent_ms,
            &self.held,
        ];
        let large = [
            &self.pacing_rate,
            &self.bytes_acked,
            &self.bytes_received,
            &self.delivery_rate,
            &self.busy_us,
            &self.window_limited_us,
        ];
        (small, large)
    }
    /// Reads the words that cross.
    pub fn load(&self) -> InfoLineWords {
        let (small, large) = self.all();
        let mut all = [0; 47];
        all[..35].copy_from_slice(&read(small));
        load_large(&mut all[35..], large);
        all
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &InfoLineWords) {
        let (small, large) = self.all();
        for (word, value) in small.into_iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        store_large(large, &words[35..]);
    }
}

impl CountsLine {
    /// Its words of 32 bits, and those of 64.
    fn all(&self) -> ([&AtomicU32; 19], [&AtomicU64; 3]) {
        let small = [
            &self.generation,
            &self.resent,
            &self.data_segments_in,
            &self.data_segments_out,
            &self.delivered,
            &self.duplicates,
            &self.reorderings,
            &self.out_of_order,
            &self.receive_window,
            &self.receive_threshold,
            &self.receive_space,
            &self.receive_rtt_us,
            &self.ack_delay_us,
            &self.reordering,
            &self.timeouts_total,
            &self.timeout_series,
            &self.timeout_ms,
            &self.data_silent_ms,
            &self.heard_ms,
        ];
        (small, [&self.bytes_sent, &self.bytes_resent, &self.buffer_limited_us])
    }
    /// Reads the words that cross.
    pub fn load(&self) -> CountsLineWords {
        let (small, large) = self.all();
        let mut all = [0; 25];
        all[..19].copy_from_slice(&read(small));
        load_large(&mut all[19..], large);
        all
    }
    /// Stores words that have crossed.
    pub fn store(&self, words: &CountsLineWords) {
        let (small, large) = self.all();
        for (word, value) in small.into_iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        store_large(large, &words[19..]);
    }
}

/// Reads words of 64 bits, each into two of 32, the low half first.
fn load_large<const N: usize>(values: &mut [u32], words: [&AtomicU64; N]) {
    for (value, word) in values.chunks_exact_mut(2).zip(words) {
        let word = word.load(Ordering::Relaxed);
        value.copy_from_slice(&[word as u32, (word >> 32) as u32]);
    }
}

/// Stores what [`load_large`] has read.
fn store_large<const N: usize>(words: [&AtomicU64; N], values: &[u32]) {
    for (word, value) in words.into_iter().zip(values.chunks_exact(2)) {
        word.store(u64::from(value[1]) << 32 | u64::from(value[0]), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that stored some words loads the same words, and all of them differ from each other.
    fn there_and_back<const N: usize>(store: impl Fn(&[u32; N]), load: impl Fn() -> [u32; N]) {
        let words = core::array::from_fn(|n| n as u32 * 0x0101_0101 + 1);
        store(&words);
        assert_eq!(load(), words);
    }

    #[test]
    fn words_that_cross_come_out_as_they_went_in() {
        let (app, command, options) = (AppLine::default(), CommandLine::default(), OptionsLine::default());
        let (stack, info, counts) = (StackLine::default(), InfoLine::default(), CountsLine::default());
        there_and_back(|words| app.store(words), || app.load());
        there_and_back(|words| command.store(words), || command.load());
        there_and_back(|words| options.store(words), || options.load());
        there_and_back(|words| stack.store(words), || stack.load());
        there_and_back(|words| info.store(words), || info.load());
        there_and_back(|words| counts.store(words), || counts.load());
        assert_eq!(stack.state.load(Ordering::Relaxed), stack.load()[stack_word::STATE]);
        assert_eq!(stack.generation.load(Ordering::Relaxed), stack.load()[stack_word::GENERATION]);
        assert_eq!(app.generation.load(Ordering::Relaxed), app.load()[app_word::GENERATION]);
    }
}
