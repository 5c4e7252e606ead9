//! Parses segments, their options, and ICMP errors.

use crate::cursor::Cursor;
use crate::frame::option_bytes;
use crate::notation::{ACK, Endpoint, LETTERS, Segment, TcpOption};
use crate::script::{Action, Icmp, ScriptError};

/// Parses an inbound line after `<`.
pub fn inbound(cursor: &mut Cursor<'_>) -> Result<Action, ScriptError> {
    cursor.skip();
    if cursor.rest().starts_with("icmp ") {
        return icmp(cursor);
    }
    let (ports, segment) = segment(cursor)?;
    if segment.options.is_none() {
        return Err(cursor.wrong("an inbound segment cannot have any options, but those it says"));
    }
    Ok(Action::Inbound(ports, segment))
}

/// Parses an outbound line after `>`.
pub fn outbound(cursor: &mut Cursor<'_>) -> Result<Action, ScriptError> {
    let (ports, segment) = segment(cursor)?;
    Ok(Action::Outbound(ports, segment))
}

fn segment(cursor: &mut Cursor<'_>) -> Result<(Endpoint, Segment), ScriptError> {
    let mut segment = Segment { options: Some(Vec::new()), ..Segment::default() };
    cursor.skip();
    let ports = ports(cursor)?;
    while cursor.take("[") {
        for what in cursor.until("]")?.split(',') {
            ip_field(cursor, &mut segment, what.trim())?;
        }
    }
    cursor.skip();
    let letters = cursor.take_while(|c| !c.is_whitespace());
    for letter in letters.chars().filter(|c| *c != '-') {
        let (_, bit) =
            LETTERS.into_iter().find(|(l, _)| *l == letter).ok_or_else(|| cursor.wrong(format!("flag '{letter}'")))?;
        segment.flags |= bit;
    }
    let (seq, _, len) = range(cursor)?;
    (segment.seq, segment.len) = (seq, len);
    loop {
        cursor.take_while(|c| c == ' ' || c == '\t');
        let rest = cursor.rest();
        if rest.starts_with("ack ") {
            cursor.take("ack");
            segment.ack = Some(decimal(cursor)?);
            segment.flags |= ACK;
        } else if rest.starts_with("win ") {
            cursor.take("win");
            let wide = decimal(cursor)?;
            segment.win = Some(u16::try_from(wide).map_err(|_| cursor.wrong("the window field has 16 bits"))?);
        } else if rest.starts_with("urg ") {
            cursor.take("urg");
            segment.urgent = Some(decimal(cursor)? as u16);
        } else if rest.starts_with('<') {
            cursor.take("<");
            segment.options = options(cursor)?;
        } else {
            break;
        }
    }
    let left = cursor.rest_of_line();
    if left.is_empty() { Ok((ports, segment)) } else { Err(cursor.wrong(format!("'{left}' after a segment"))) }
}

/// Parses ports such as `33000>8080`, if they come next.
fn ports(cursor: &mut Cursor<'_>) -> Result<Endpoint, ScriptError> {
    if !cursor.rest().starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let from = decimal(cursor)?;
    cursor.expect(">")?;
    let to = decimal(cursor)?;
    match (u16::try_from(from), u16::try_from(to)) {
        (Ok(from), Ok(to)) => Ok(Some((from, to))),
        _ => Err(cursor.wrong("not a port")),
    }
}

/// Parses `ect0`, `ce`, `tos 0x10` or `ttl 64`.
fn ip_field(cursor: &Cursor<'_>, segment: &mut Segment, what: &str) -> Result<(), ScriptError> {
    let ecn = match what {
        "noecn" => Some(0),
        "ect1" => Some(1),
        "ect0" | "ect" => Some(2),
        "ce" => Some(3),
        _ => None,
    };
    if let Some(ecn) = ecn {
        (segment.tos, segment.ecn_only) = (Some(ecn), true);
        return Ok(());
    }
    let wrong = || cursor.wrong(format!("[{what}]"));
    let (name, number) = what.split_once(' ').ok_or_else(wrong)?;
    let number = match number.trim().strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16),
        None => number.trim().parse(),
    };
    let number = number.map_err(|_| wrong())?;
    match name {
        "tos" => segment.tos = Some(number),
        "ttl" => segment.ttl = Some(number),
        _ => return Err(wrong()),
    }
    Ok(())
}

/// Parses a range such as `1:1001(1000)`.
fn range(cursor: &mut Cursor<'_>) -> Result<(u32, u32, u32), ScriptError> {
    let from = decimal(cursor)?;
    cursor.expect(":")?;
    let to = decimal(cursor)?;
    cursor.expect("(")?;
    let len = decimal(cursor)?;
    cursor.expect(")")?;
    if from.wrapping_add(len) != to {
        return Err(cursor.wrong(format!("{from}:{to} is not {len} long")));
    }
    Ok((from, to, len))
}

fn decimal(cursor: &mut Cursor<'_>) -> Result<u32, ScriptError> {
    cursor.skip();
    let digits = cursor.take_while(|c| c.is_ascii_digit());
    digits.parse().map_err(|_| cursor.wrong(format!("a number expected before '{}'", cursor.ahead())))
}

/// Parses options after `<` up to `>`; `None` = any.
fn options(cursor: &mut Cursor<'_>) -> Result<Option<Vec<TcpOption>>, ScriptError> {
    let text = cursor.until(">")?;
    if text.trim() == "..." {
        return Ok(None);
    }
    let list: Result<Vec<TcpOption>, ScriptError> =
        text.split(',').filter(|item| !item.trim().is_empty()).map(|item| option(cursor, item)).collect();
    let list = list?;
    let bytes = option_bytes(&list).len();
    if !bytes.is_multiple_of(4) || bytes > 40 {
        return Err(
            cursor.wrong(format!("options of {bytes} bytes: nop and eol must fill up whole words, at most ten"))
        );
    }
    Ok(Some(list))
}

fn option(cursor: &Cursor<'_>, item: &str) -> Result<TcpOption, ScriptError> {
    let words: Vec<&str> = item.split_whitespace().collect();
    let wrong = || cursor.wrong(format!("option '{}'", item.trim()));
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    Ok(match words.as_slice() {
        ["nop"] => TcpOption::Nop,
        ["eol"] => TcpOption::End,
        ["mss", n] => TcpOption::Mss(number(n)? as u16),
        ["wscale", n] => TcpOption::WindowScale(number(n)? as u8),
        ["sackOK"] => TcpOption::SackPermitted,
        ["TS", "val", value, "ecr", echo] => TcpOption::Timestamps { value: number(value)?, echo: number(echo)? },
        ["sack", blocks @ ..] => {
            let block = |text: &&str| -> Result<(u32, u32), ScriptError> {
                let (from, to) = text.split_once(':').ok_or_else(wrong)?;
                Ok((number(from)?, number(to)?))
            };
            TcpOption::Sack(blocks.iter().map(block).collect::<Result<_, _>>()?)
        }
        ["FO"] => TcpOption::Other(34, Vec::new()),
        ["FO", cookie] => TcpOption::Other(34, hex(cookie).ok_or_else(wrong)?),
        ["md5", digest] => TcpOption::Other(19, hex(digest).ok_or_else(wrong)?),
        ["raw", bytes] => TcpOption::Raw(hex(bytes).ok_or_else(wrong)?),
        ["kind", kind] => TcpOption::Other(number(kind)? as u8, Vec::new()),
        ["kind", kind, body] => TcpOption::Other(number(kind)? as u8, hex(body).ok_or_else(wrong)?),
        _ => return Err(wrong()),
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|p| p.len() == 2)?, 16).ok()).collect()
}

/// Parses an ICMP error such as `icmp unreachable frag_needed mtu 1200 [1:1461(1460)]`.
fn icmp(cursor: &mut Cursor<'_>) -> Result<Action, ScriptError> {
    cursor.take("icmp");
    let (kind, code) = (cursor.name().to_string(), cursor.name().to_string());
    let (kind, code) = match (kind.as_str(), code.as_str()) {
        ("unreachable", "net_unreachable") => (3, 0),
        ("unreachable", "host_unreachable") => (3, 1),
        ("unreachable", "protocol_unreachable") => (3, 2),
        ("unreachable", "port_unreachable") => (3, 3),
        ("unreachable", "frag_needed") => (3, 4),
        ("unreachable", "source_route_failed") => (3, 5),
        ("unreachable", "communication_prohibited") => (3, 13),
        ("source_quench", _) => (4, 0),
        ("time_exceeded", _) => (11, 0),
        ("parameter_problem", _) => (12, 0),
        _ => return Err(cursor.wrong(format!("icmp {kind} {code}"))),
    };
    let mtu = if cursor.take("mtu") { decimal(cursor)? as u16 } else { 0 };
    cursor.expect("[")?;
    let (seq, _, len) = range(cursor)?;
    cursor.expect("]")?;
    Ok(Action::Icmp(Icmp { kind, code, mtu, seq, len }))
}
