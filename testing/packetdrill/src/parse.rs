//! The parser of scripts: times, system calls, commands. [`crate::segments`] parses segments.

use crate::constants;
use crate::cursor::Cursor;
use crate::script::{Action, Call, Event, Returns, Script, ScriptError, Value, When};
use crate::segments;

/// Parses a whole script.
pub fn script(text: &str) -> Result<Script, ScriptError> {
    let mut cursor = Cursor::new(text);
    let mut script = Script::default();
    loop {
        cursor.skip();
        if !cursor.rest().starts_with("--") {
            break;
        }
        let line = cursor.line();
        let option = cursor.rest_of_line();
        let (name, value) = option[2..].split_once('=').ok_or_else(|| cursor.wrong("--name=value expected"))?;
        script.options.push((line, name.trim().into(), value.trim().into()));
    }
    loop {
        cursor.skip();
        if cursor.done() {
            return Ok(script);
        }
        let line = cursor.line();
        let when = time(&mut cursor)?;
        let action = action(&mut cursor)?;
        script.events.push(Event { line, when, action });
    }
}

/// Parses a time: `*`, `1.2`, `+.3`, `+0~+.1`, `0...0.2`; nothing = at once.
fn time(cursor: &mut Cursor<'_>) -> Result<When, ScriptError> {
    if cursor.take("*") {
        return Ok(When::Any);
    }
    let relative = cursor.take("+");
    let Some(from) = seconds(cursor)? else {
        return Ok(When::At { relative: true, from: 0, to: 0 });
    };
    let mut to = from;
    cursor.skip();
    if cursor.take("~") || cursor.take("...") {
        cursor.take("+");
        to = seconds(cursor)?.ok_or_else(|| cursor.wrong("a time expected"))?;
    }
    if to < from {
        return Err(cursor.wrong("the range ends before it begins"));
    }
    Ok(When::At { relative, from, to })
}

/// Parses decimal seconds, as µs.
fn seconds(cursor: &mut Cursor<'_>) -> Result<Option<u64>, ScriptError> {
    cursor.skip();
    let whole = cursor.take_while(|c| c.is_ascii_digit());
    let rest = cursor.rest();
    let fraction = match rest.strip_prefix('.') {
        Some(after) if after.starts_with(|c: char| c.is_ascii_digit()) => {
            cursor.take(".");
            cursor.take_while(|c| c.is_ascii_digit())
        }
        // "1..." starts a range.
        Some(after) if !after.starts_with('.') && !whole.is_empty() => {
            cursor.take(".");
            ""
        }
        _ => "",
    };
    if whole.is_empty() && fraction.is_empty() {
        return Ok(None);
    }
    let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let parsed = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u64>() };
    match (parsed(whole), parsed(&digits)) {
        (Ok(whole), Ok(micros)) if whole < 1 << 40 => Ok(Some(whole * 1_000_000 + micros)),
        _ => Err(cursor.wrong("not a time")),
    }
}

fn action(cursor: &mut Cursor<'_>) -> Result<Action, ScriptError> {
    if cursor.take("`") {
        return Ok(Action::Command(cursor.until("`")?.to_string()));
    }
    if cursor.take("%{") {
        return Ok(Action::Code(cursor.until("}%")?.trim().to_string()));
    }
    if cursor.take("<") {
        return segments::inbound(cursor);
    }
    if cursor.take(">") {
        return segments::outbound(cursor);
    }
    let name = cursor.name().to_string();
    if name.is_empty() || !cursor.take("(") {
        return Err(cursor.wrong(format!("an event expected before '{}'", cursor.ahead())));
    }
    let args = values(cursor, ")")?;
    cursor.expect("=")?;
    let returns = returns(cursor)?;
    Ok(Action::Call(Call { name, args, returns }))
}

/// Parses a result: `3`, `-1 EAGAIN (Try again)`, `0x2 (flags O_RDWR)`, `...`.
fn returns(cursor: &mut Cursor<'_>) -> Result<Returns, ScriptError> {
    if cursor.take("...") || cursor.take("?") {
        return Ok(Returns::Any);
    }
    let number = number(cursor)?.ok_or_else(|| cursor.wrong("a result expected"))?;
    let line = cursor.line();
    cursor.take_while(|c| c == ' ' || c == '\t');
    let errno = cursor.take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    cursor.take_while(|c| c == ' ' || c == '\t');
    if cursor.rest().starts_with('(') {
        cursor.until(")")?;
    }
    match constants::errno(errno) {
        Some(errno) => Ok(Returns::Error(errno)),
        None if errno.is_empty() => Ok(Returns::Number(number)),
        None => Err(ScriptError::Unsupported { line, what: format!("errno {errno}") }),
    }
}

fn number(cursor: &mut Cursor<'_>) -> Result<Option<i64>, ScriptError> {
    cursor.skip();
    let negative = cursor.take("-");
    let parsed = if cursor.take("0x") {
        i64::from_str_radix(cursor.take_while(|c| c.is_ascii_hexdigit()), 16)
    } else {
        let digits = cursor.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return if negative { Err(cursor.wrong("a number expected")) } else { Ok(None) };
        }
        digits.parse()
    };
    let value = parsed.map_err(|_| cursor.wrong("not a number"))?;
    Ok(Some(if negative { -value } else { value }))
}

/// Parses a list of values up to `end`.
fn values(cursor: &mut Cursor<'_>, end: &str) -> Result<Vec<Value>, ScriptError> {
    let mut list = Vec::new();
    loop {
        if cursor.take(end) {
            return Ok(list);
        }
        if !list.is_empty() {
            cursor.expect(",")?;
        }
        list.push(value(cursor)?);
    }
}

fn value(cursor: &mut Cursor<'_>) -> Result<Value, ScriptError> {
    let mut all = operand(cursor)?;
    while cursor.take("|") {
        let right = operand(cursor)?;
        all = match (&all, &right) {
            (Value::Number(a), Value::Number(b)) => Value::Number(a | b),
            (Value::Name(name), _) | (_, Value::Name(name)) => Value::Name(name.clone()),
            _ => return Err(cursor.wrong("only numbers can be joined by |")),
        };
    }
    Ok(all)
}

fn operand(cursor: &mut Cursor<'_>) -> Result<Value, ScriptError> {
    if cursor.take("...") {
        return Ok(Value::Any);
    }
    if cursor.take("\"") {
        return Ok(Value::Text(cursor.until("\"")?.to_string()));
    }
    if cursor.take("[") {
        return Ok(Value::List(values(cursor, "]")?));
    }
    if cursor.take("{") {
        return structure(cursor);
    }
    if let Some(n) = number(cursor)? {
        return Ok(Value::Number(n));
    }
    let name = cursor.name().to_string();
    if name.is_empty() {
        return Err(cursor.wrong(format!("a value expected before '{}'", cursor.ahead())));
    }
    if cursor.take("(") {
        return Ok(Value::Call(name, values(cursor, ")")?));
    }
    Ok(constants::number(&name).map_or(Value::Name(name), Value::Number))
}

/// Parses a structure such as `a=1, msg_iov(1)=[...]}`.
fn structure(cursor: &mut Cursor<'_>) -> Result<Value, ScriptError> {
    let mut members = Vec::new();
    loop {
        if cursor.take("}") {
            return Ok(Value::Struct(members));
        }
        if !members.is_empty() {
            cursor.expect(",")?;
        }
        if cursor.take("...") {
            members.push((String::new(), Value::Any));
            continue;
        }
        // An iovec is {buffer, length} without names.
        if cursor.rest().starts_with(|c: char| c.is_ascii_digit()) {
            members.push(("len".into(), value(cursor)?));
            continue;
        }
        let name = cursor.name().to_string();
        if cursor.take("(") {
            cursor.until(")")?;
        }
        cursor.expect("=")?;
        members.push((name, value(cursor)?));
    }
}
