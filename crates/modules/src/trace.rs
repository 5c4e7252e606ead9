//! Lines that programs print (`bpf_printk`). A run leaves the format and its arguments in a ring; whoever reads them makes
//! the text.

use crate::clock::clock;
use crate::map::{Ring, copy};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the ring.
const RING: u32 = 64 << 10;
/// Most bytes of a format.
const MOST_FORMAT: usize = 256;
/// Most arguments of a line, as in the kernel.
pub const MOST_ARGUMENTS: usize = 12;
/// Bytes of a record before the arguments: the time, the flow group, and how many arguments and bytes of the format.
const HEAD: usize = 16;

/// What programs of a module have printed, and nobody has read.
#[derive(Debug)]
pub struct Trace {
    ring: Ring,
    lost: AtomicU64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it was printed, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Which flow group did.
    pub flow_group: u32,
    /// What.
    pub text: String,
}

impl Default for Trace {
    fn default() -> Self {
        Self { ring: Ring::new(RING), lost: AtomicU64::new(0) }
    }
}

impl Trace {
    /// Keeps a line, or counts it as lost.
    ///
    /// # Safety
    /// There are as many bytes of the format as it says, which may be read.
    pub unsafe fn print(&self, flow_group: u32, format: (*const u8, usize), arguments: &[u64]) {
        let (at, bytes) = (format.0, format.1.min(MOST_FORMAT));
        let arguments = &arguments[..arguments.len().min(MOST_ARGUMENTS)];
        let record = self.ring.reserve((HEAD + 8 * arguments.len() + bytes) as u64);
        if record.is_null() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut head = [0; HEAD + 8 * MOST_ARGUMENTS];
        head[..8].copy_from_slice(&clock(libc::CLOCK_MONOTONIC).to_ne_bytes());
        head[8..12].copy_from_slice(&flow_group.to_ne_bytes());
        head[12..14].copy_from_slice(&(arguments.len() as u16).to_ne_bytes());
        head[14..16].copy_from_slice(&(bytes as u16).to_ne_bytes());
        for (place, argument) in head[HEAD..].as_chunks_mut().0.iter_mut().zip(arguments) {
            *place = argument.to_ne_bytes();
        }
        let length = HEAD + 8 * arguments.len();
        // SAFETY: the record has room for all of it, and the format is as long as the caller promises.
        unsafe {
            copy(head.as_ptr(), record, length);
            copy(at, record.wrapping_add(length), bytes);
            Ring::finish(record, false);
        }
    }

    /// Takes the lines that are there, up to this many, and the number of those that found no room since the last call.
    pub fn take(&self, most: usize) -> (Vec<Line>, u64) {
        let records = std::iter::from_fn(|| self.ring.next()).take(most);
        let lines = records.filter_map(|record| line(&record)).collect();
        (lines, self.lost.swap(0, Ordering::Relaxed))
    }
}

fn line(record: &[u8]) -> Option<Line> {
    let (head, rest) = record.split_first_chunk::<HEAD>()?;
    let [time, flow_group, counts] = [&head[..8], &head[8..12], &head[12..]];
    let count = u16::from_ne_bytes([counts[0], counts[1]]).into();
    let (arguments, format) = (rest.as_chunks::<8>().0.get(..count)?, rest.get(8 * count..)?);
    let arguments: Vec<u64> = arguments.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let end = format.iter().position(|byte| *byte == 0).unwrap_or(format.len());
    let text = formatted(&String::from_utf8_lossy(&format[..end]), &arguments);
    Some(Line {
        time_ns: u64::from_ne_bytes(time.try_into().ok()?),
        flow_group: u32::from_ne_bytes(flow_group.try_into().ok()?),
        // A `%c` may be a byte of a packet, and the text goes to a terminal.
        text: text.trim_end_matches('\n').replace(char::is_control, "\u{fffd}"),
    })
}

/// The text of a format of printf(3), as far as the kernel lets programs use it. `%s` and `%p` are not filled in: the bytes
/// behind a pointer may be others by now.
fn formatted(format: &str, arguments: &[u64]) -> String {
    let (mut text, mut rest, mut arguments) = (String::new(), format, arguments.iter());
    while let Some((before, after)) = rest.split_once('%') {
        text += before;
        let (field, after) = field(after);
        rest = after;
        match field.conversion {
            Some('%') | None => text.push('%'),
            Some(conversion @ ('s' | 'p')) => {
                arguments.next();
                text += "(pointer)";
                // The kernel's kinds of pointers have more letters: %pI4, %pks.
                if conversion == 'p' {
                    rest = rest.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric());
                }
            }
            Some(conversion) => match arguments.next() {
                Some(value) => text += &field.number(conversion, *value),
                None => text += "(none)",
            },
        }
    }
    text + rest
}

/// What stands between `%` and the letter of the conversion.
#[derive(Default)]
struct Field {
    left: bool,
    zeros: bool,
    sign: bool,
    prefix: bool,
    width: usize,
    /// Bytes of the argument.
    bytes: u32,
    conversion: Option<char>,
}

fn field(text: &str) -> (Field, &str) {
    let mut field = Field { bytes: 4, ..Field::default() };
    let mut letters = text.char_indices().peekable();
    while let Some((_, flag)) = letters.next_if(|(_, letter)| "-0+# ".contains(*letter)) {
        match flag {
            '-' => field.left = true,
            '0' => field.zeros = true,
            '+' => field.sign = true,
            '#' => field.prefix = true,
            _ => {}
        }
    }
    while let Some((_, digit)) = letters.next_if(|(_, letter)| letter.is_ascii_digit()) {
        field.width = (field.width * 10 + digit as usize - '0' as usize).min(64);
    }
    while let Some((_, size)) = letters.next_if(|(_, letter)| "hlzjt".contains(*letter)) {
        field.bytes = if size == 'h' { field.bytes / 2 } else { 8 };
    }
    match letters.next() {
        Some((at, letter)) if "%sdiuxXocp".contains(letter) => {
            field.conversion = Some(letter);
            (field, &text[at + letter.len_utf8()..])
        }
        // Nothing that is known: it stays as it is.
        _ => (Field::default(), text),
    }
}

impl Field {
    fn number(&self, conversion: char, value: u64) -> String {
        let unused = 64 - 8 * self.bytes.clamp(1, 8);
        let (unsigned, signed) = (value << unused >> unused, (value.cast_signed() << unused) >> unused);
        let negative = matches!(conversion, 'd' | 'i') && signed < 0;
        let digits = match conversion {
            'd' | 'i' => signed.unsigned_abs().to_string(),
            'x' => format!("{unsigned:x}"),
            'X' => format!("{unsigned:X}"),
            'o' => format!("{unsigned:o}"),
            'c' => char::from(unsigned as u8).to_string(),
            _ => unsigned.to_string(),
        };
        let before = match conversion {
            _ if negative => "-",
            'd' | 'i' if self.sign => "+",
            'x' if self.prefix => "0x",
            'X' if self.prefix => "0X",
            _ => "",
        };
        let missing = self.width.saturating_sub(before.len() + digits.chars().count());
        match (self.left, self.zeros && conversion != 'c') {
            (true, _) => format!("{before}{digits}{}", " ".repeat(missing)),
            (false, true) => format!("{before}{}{digits}", "0".repeat(missing)),
            (false, false) => format!("{}{before}{digits}", " ".repeat(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_filled_in_as_printf_does() {
        let cases: &[(&str, &[u64], &str)] = &[
            ("plain\n", &[], "plain\n"),
            ("%d %u %i", &[u64::MAX, u64::MAX, 7], "-1 4294967295 7"),
            ("%ld %lu %llx", &[u64::MAX, u64::MAX, 0xfeed], "-1 18446744073709551615 feed"),
            ("%hd %hhu %hhx", &[0xffff, 0x1ff, 0x123], "-1 255 23"),
            ("[%5d|%-5d|%05d|%+d]", &[42, 42, -42i64 as u64, 42], "[   42|42   |-0042|+42]"),
            ("%x %X %#x %04x %o", &[0xab, 0xab, 0xab, 0xab, 8], "ab AB 0xab 00ab 10"),
            ("%c%c %%", &[0x54, 0x50], "TP %"),
            ("%s %pI4 %p %d", &[1, 2, 3, 4], "(pointer) (pointer) (pointer) 4"),
            ("%sfoo %p", &[1, 2], "(pointer)foo (pointer)"),
            ("%d %d", &[1], "1 (none)"),
            ("100%k %y %", &[1], "100%k %y %"),
        ];
        for (format, arguments, text) in cases {
            assert_eq!(formatted(format, arguments), *text, "{format}");
        }
    }

    #[test]
    fn fuzz_formats() {
        const LETTERS: &[u8] = b"%%%%0123456789-+# hlzsdiuxXocpk\n";
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let format: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % 32])).collect();
            // A conversion takes two letters at least, and makes 66 at most.
            assert!(formatted(&format, &[u64::MAX, 0, 1 << 40]).len() <= 40 * format.len());
        });
    }

    #[test]
    fn lines_come_in_their_order_and_those_without_room_are_counted() {
        let trace = Trace::default();
        let format = b"%d of %d\0";
        let print = |number: u64| {
            // SAFETY: the format is as long as is said.
            unsafe { trace.print(3, (format.as_ptr(), format.len()), &[number, 9, 0]) }
        };
        (0..5).for_each(print);
        let (first, _) = trace.take(2);
        assert_eq!(first.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["0 of 9", "1 of 9"]);
        assert_eq!((first[0].flow_group, first[0].time_ns <= first[1].time_ns), (3, true));
        (5..10_000).for_each(print);
        let (rest, lost) = trace.take(usize::MAX);
        assert_eq!(rest[0].text, "2 of 9");
        assert_eq!(rest.len() as u64 + lost, 10_000 - 2);
        assert!(lost > 0);
        print(7);
        let (last, lost) = trace.take(usize::MAX);
        assert_eq!((last.len(), last[0].text.as_str(), lost), (1, "7 of 9", 0));
        let format = b"a%c[2J\n\0";
        // SAFETY: the format is as long as is said.
        unsafe { trace.print(3, (format.as_ptr(), format.len()), &[0x1b]) };
        assert_eq!(trace.take(1).0[0].text, "a\u{fffd}[2J", "a packet sends nothing to a terminal");
    }
}
