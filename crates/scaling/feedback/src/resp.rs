//! Redis' protocol (RESP 2), as far as answers need it.

use crate::stream::line;
use std::io::{self, BufRead, ErrorKind, Read};

/// Longest line that is no bulk string.
const LINE: u64 = 64 << 10;
/// Longest bulk string.
const BULK: u64 = 4 << 20;
/// Arrays in arrays.
const DEPTH: u32 = 8;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A string of either kind.
    Text(String),
    /// A number.
    Number(i64),
    /// An array.
    Many(Vec<Reply>),
    /// Null.
    Nothing,
    /// An error, in the server's words.
    Error(String),
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// The next answer. Nothing is taken for as long as it says that it is before it is there.
pub fn reply_of(from: &mut impl BufRead) -> io::Result<Reply> {
    nested(from, DEPTH)
}

fn nested(from: &mut impl BufRead, depth: u32) -> io::Result<Reply> {
    let line = line(from, LINE)?;
    let mut rest = line.chars();
    let kind = rest.next().ok_or_else(|| invalid("an empty answer"))?;
    let rest = rest.as_str();
    let number = || rest.parse::<i64>().map_err(|_| invalid("a length that is no number"));
    match kind {
        '+' => Ok(Reply::Text(rest.to_owned())),
        '-' => Ok(Reply::Error(rest.to_owned())),
        ':' => number().map(Reply::Number),
        '$' => match number()? {
            -1 => Ok(Reply::Nothing),
            len => bulk(from, u64::try_from(len).map_err(|_| invalid("a length below zero"))?),
        },
        '*' => match number()? {
            -1 => Ok(Reply::Nothing),
            count if count < 0 || depth == 0 => Err(invalid("arrays that cannot be")),
            // Every element takes bytes, and those have a bound.
            count => (0..count).map(|_| nested(from, depth - 1)).collect::<io::Result<_>>().map(Reply::Many),
        },
        _ => Err(invalid("no answer of Redis")),
    }
}

fn bulk(from: &mut impl BufRead, len: u64) -> io::Result<Reply> {
    if len > BULK {
        return Err(invalid("a string that is too long"));
    }
    let mut bytes = Vec::new();
    from.take(len + 2).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len + 2 || !bytes.ends_with(b"\r\n") {
        return Err(invalid("a string without its end"));
    }
    bytes.truncate(bytes.len() - 2);
    String::from_utf8(bytes).map(Reply::Text).map_err(|_| invalid("a string that is no text"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(bytes: &[u8]) -> io::Result<Reply> {
        reply_of(&mut &*bytes)
    }

    #[test]
    fn answers_are_read() {
        let text = |text: &str| Reply::Text(text.into());
        assert_eq!(of(b"+OK\r\n").unwrap(), text("OK"));
        assert_eq!(of(b"-NOAUTH\r\n").unwrap(), Reply::Error("NOAUTH".into()));
        assert_eq!(of(b"$5\r\na\r\nbc\r\n").unwrap(), text("a\r\nbc"));
        assert_eq!(of(b"$-1\r\n").unwrap(), Reply::Nothing);
        let nested = of(b"*2\r\n$3\r\nget\r\n*2\r\n:1\r\n:-2\r\n").unwrap();
        assert_eq!(nested, Reply::Many(vec![text("get"), Reply::Many(vec![Reply::Number(1), Reply::Number(-2)])]));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let deep = b"*1\r\n".repeat(1000);
        let answers: [&[u8]; 12] = [
            b"",
            b"\r\n",
            b"+OK",
            b"?x\r\n",
            b":x\r\n",
            b"$5\r\nabc\r\n",
            b"$3\r\nabcd\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"*-7\r\n",
            b"*9999999999\r\n:1\r\n",
            &deep,
        ];
        for bytes in answers {
            assert!(of(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
