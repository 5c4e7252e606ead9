//! TCP options: MSS, window scale, SACK-permitted, SACK blocks, timestamps.

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The four bytes before the two values if timestamps are the only option (RFC 7323 appendix A).
pub(crate) const STAMPS_START: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];

/// The largest shift that may be used (RFC 7323 §2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The TCP options that the stack uses. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size in bytes (RFC 9293 §3.7.1); 0 on the wire counts as absent.
    pub mss: Option<u16>,
    /// Window scale shift; received values above 14 are taken as 14 (RFC 7323 §2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Timestamps (RFC 7323 §3).
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 §3). Only those that fit are written.
    pub sack: SackBlocks,
}

/// Most SACK blocks that fit in 40 bytes of options.
pub const MAX_SACK_BLOCKS: usize = 4;
/// Most bytes of options that a TCP header holds.
const MAX_OPTION_BYTES: usize = 40;

/// The blocks of a SACK option in wire order. The first holds the newest segment, or a duplicate (RFC 2883).
/// The sequence numbers are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
    len: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const NONE: Self = Self { blocks: [(0, 0); MAX_SACK_BLOCKS], len: 0 };

    /// Adds a block: its first sequence number, and the one after its last. A fifth block is ignored.
    #[inline]
    pub fn push(&mut self, start: u32, end: u32) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.len)) {
            *place = (start, end);
            self.len += 1;
        }
    }

    /// The blocks.
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        self.blocks.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// No block?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The timestamp option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the newest TSval that the sender has from us.
    pub echo: u32,
}

impl Options {
    /// No options.
    pub const NONE: Self =
        Self { mss: None, window_scale: None, sack_permitted: false, timestamps: None, sack: SackBlocks::NONE };

    /// Reads the option area of any segment's header, SYN or not (RFC 9293 MUST-5).
    ///
    /// A length of 0 or 1, or one beyond the header's end, ends the list (RFC 9293 MUST-7). The segment counts with the
    /// options before it, as in Linux. Dropped for an option that a middlebox has spoilt, it would come again with that
    /// option, for ever.
    /// A known option with the wrong length is skipped, as in Linux.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // The layout of established connections is read without a loop.
        match <&[u8; 12]>::try_from(bytes).ok().and_then(Timestamps::alone) {
            Some(stamps) => Self { timestamps: Some(stamps), ..Self::NONE },
            None => Self::parse_any(bytes),
        }
    }

    fn parse_any(mut bytes: &[u8]) -> Self {
        let mut found = Self::NONE;
        loop {
            match bytes {
                // RFC 9293 MUST-4: end of list, no-operation and MSS at least. MUST-64: at any alignment.
                [] | [END, ..] | [_] => return found,
                [NOP, rest @ ..] => bytes = rest,
                [kind, len, ..] => {
                    let len = usize::from(*len);
                    let Some(body) = bytes.get(2..len) else { return found };
                    found.take(*kind, body);
                    bytes = &bytes[len..];
                }
            }
        }
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])).filter(|&mss| mss > 0),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, body) => {
                if let Ok(body) = body.try_into() {
                    self.timestamps = Some(Timestamps::read(body));
                }
            }
            (SACK, body) => {
                let (blocks, rest) = body.as_chunks::<8>();
                if rest.is_empty() && !blocks.is_empty() {
                    self.sack = SackBlocks::default();
                    for &[a, b, c, d, e, f, g, h] in blocks {
                        self.sack.push(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                    }
                }
            }
            // RFC 9293 MUST-6.
            _ => {}
        }
    }

    /// Bytes that [`Options::write`] writes: a multiple of 4, at most 40.
    /// No end-of-list option is written, so there is no padding that would have to be zero (RFC 9293 MUST-69).
    #[inline]
    pub fn wire_bytes(&self) -> usize {
        let fixed = self.fixed_bytes();
        if self.sack.is_empty() { fixed } else { fixed + self.sack_bytes(fixed) }
    }

    /// Bytes of the SACK option after `fixed` bytes of others, with as many blocks as fit; 0 if none does.
    fn sack_bytes(&self, fixed: usize) -> usize {
        let fit = (MAX_OPTION_BYTES - fixed).saturating_sub(4) / 8;
        match self.sack.as_slice().len().min(fit) {
            0 => 0,
            blocks => 4 + 8 * blocks,
        }
    }

    /// Bytes of all options but SACK blocks.
    #[inline]
    fn fixed_bytes(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        // SACK-permitted takes the place of the two NOPs before timestamps.
        let rest = match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => 12,
            (None, true) => 4,
            (None, false) => 0,
        };
        mss + scale + rest
    }

    /// Writes the options in Linux's order: MSS, SACK-permitted and timestamps, window scale, SACK blocks.
    /// Each but NOP has its length (RFC 9293 MUST-68). `out` must be exactly [`Options::wire_bytes`] long.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8]) {
        debug_assert_eq!(out.len(), self.wire_bytes());
        // The layout of established connections, as in `parse`.
        if let (Self { mss: None, window_scale: None, sack_permitted: false, timestamps: Some(stamps), .. }, Ok(out)) =
            (self, <&mut [u8; 12]>::try_from(&mut *out))
        {
            let [a, b, c, d] = stamps.value.to_be_bytes();
            let [e, f, g, h] = stamps.echo.to_be_bytes();
            *out = [NOP, NOP, TIMESTAMPS, 10, a, b, c, d, e, f, g, h];
            return;
        }
        self.write_any(out);
    }

    fn write_any(&self, out: &mut [u8]) {
        let mut words = out.as_chunks_mut::<4>().0.iter_mut();
        let mut put = |word: [u8; 4]| {
            if let Some(place) = words.next() {
                *place = word;
            }
        };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            put([MSS, 4, a, b]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            let [a, b] = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
            put([a, b, TIMESTAMPS, 10]);
            put(value.to_be_bytes());
            put(echo.to_be_bytes());
        } else if self.sack_permitted {
            put([NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            put([NOP, WINDOW_SCALE, 3, shift]);
        }
        if !self.sack.is_empty() {
            let blocks = self.sack_bytes(self.fixed_bytes()) / 8;
            if blocks != 0 {
                put([NOP, NOP, SACK, 2 + 8 * blocks as u8]);
            }
            for (start, end) in &self.sack.as_slice()[..blocks] {
                put(start.to_be_bytes());
                put(end.to_be_bytes());
            }
        }
    }
}

impl Timestamps {
    /// Reads the layout of established connections: timestamps, and nothing else (RFC 7323 appendix A).
    #[inline(always)]
    pub(crate) fn alone(bytes: &[u8; 12]) -> Option<Self> {
        let (start, body) = bytes.split_first_chunk::<4>()?;
        if *start != STAMPS_START {
            return None;
        }
        <&[u8; 8]>::try_from(body).ok().map(Self::read)
    }

    #[inline]
    fn read(body: &[u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = *body;
        Self { value: u32::from_be_bytes([a, b, c, d]), echo: u32::from_be_bytes([e, f, g, h]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293 MUST-7.
    #[test]
    fn an_impossible_length_ends_the_list() {
        for bad in [
            &[MSS, 0, 5, 180][..],                   // length 0: a naive loop never ends
            &[MSS, 1, 5, 180],                       // shorter than kind and length
            &[MSS, 5, 5, 180],                       // beyond the header's end
            &[NOP, NOP, NOP, MSS],                   // the length byte itself is missing
            &[TIMESTAMPS, 10, 0, 0],                 // cut off
            &[254, 255, 0, 0],                       // unknown, beyond the end
            &[NOP, NOP, TIMESTAMPS, 10, 0, 0, 0, 0], // the fast layout, cut off
        ] {
            let before = [WINDOW_SCALE, 3, 7];
            let bytes = [&before[..], bad].concat();
            assert_eq!(Options::parse(bad), Options::NONE, "{bad:?}");
            assert_eq!(Options::parse(&bytes), Options::parse(&before), "{bytes:?}");
        }
    }

    #[test]
    fn unknown_and_misshapen_options_are_skipped() {
        let bytes = [254, 4, 1, 2, MSS, 3, 9, SACK_PERMITTED, 3, 0, WINDOW_SCALE, 3, 7, END, MSS, 0];
        let options = Options::parse(&bytes);
        assert_eq!(options, Options { window_scale: Some(7), ..Options::default() });
    }

    #[test]
    fn limits_of_the_rfcs() {
        assert_eq!(Options::parse(&[NOP, WINDOW_SCALE, 3, 200]).window_scale, Some(14));
        assert_eq!(Options::parse(&[MSS, 4, 0, 0]).mss, None);
    }

    #[test]
    fn as_many_sack_blocks_are_written_as_fit() {
        let mut sack = SackBlocks::default();
        for n in 0..6 {
            sack.push(n * 10, n * 10 + 5);
        }
        assert_eq!(sack.as_slice().len(), 4);
        let bare = Options { sack, ..Options::default() };
        let stamped = Options { timestamps: Some(Timestamps::default()), ..bare };
        for (options, blocks) in [(bare, 4), (stamped, 3), (Options { mss: Some(1), ..stamped }, 2)] {
            let mut out = vec![0; options.wire_bytes()];
            options.write(&mut out);
            assert!(out.len() <= 40);
            assert_eq!(Options::parse(&out).sack.as_slice(), &sack.as_slice()[..blocks]);
        }
    }

    #[test]
    fn sack_options_of_odd_lengths_are_skipped() {
        for len in [2, 3, 9, 11] {
            let mut bytes = vec![SACK, len];
            bytes.resize(12, 0);
            bytes[usize::from(len)..].fill(NOP);
            assert!(Options::parse(&bytes).sack.is_empty(), "{len}");
        }
    }

    #[test]
    fn fast_layout_reads_as_the_slow_one() {
        let bytes = [NOP, NOP, TIMESTAMPS, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        let fast = Options::parse(&bytes);
        assert_eq!(fast.timestamps, Some(Timestamps { value: 0x0102_0304, echo: 0x0506_0708 }));
        assert_eq!(fast, Options::parse_any(&bytes));
    }
}
