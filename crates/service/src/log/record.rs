//! A line of the log with its fields, on its way to systemd's journal: one JSON object in one line.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};
use std::sync::{OnceLock, PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// What the names of our own fields begin with.
const OURS: &str = "TOWPATH_";
/// Most bytes of the text, and of a field's value.
const MOST_TEXT: usize = 32 << 10;
const MOST_VALUE: usize = 1 << 10;
/// Most fields, and bytes of a name: what the journal takes.
const MOST_FIELDS: usize = 32;
const MOST_NAME: usize = 64;
/// Fields of the journal's own that a line may have.
const STANDARD: [&str; 4] = ["CODE_FILE", "CODE_LINE", PID, "TARGET"];
/// The process that wrote the line.
const PID: &str = "SYSLOG_PID";

/// A line.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// As of syslog.
    priority: u8,
    /// What the line without fields is.
    text: String,
    fields: BTreeMap<String, String>,
}

impl Record {
    /// A text that has come without fields, such as that of a panic. `<3>` before it is its priority.
    pub fn of_text(text: &str) -> Self {
        let priority = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let priority = priority.and_then(|(number, rest)| Some((number.parse().ok().filter(|n| *n <= 7)?, rest)));
        let (priority, text) = priority.unwrap_or((6, text));
        Self { priority, text: text.to_owned(), fields: BTreeMap::new() }
    }

    /// What a line says, if it is a record.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Who wrote it is not this process, and may not say so.
    pub fn not_of(mut self, process: u32) -> Self {
        self.fields.retain(|name, value| name != PID || value.parse::<u32>().is_ok_and(|pid| pid != process));
        self
    }

    /// The line for a stream to the journal, which takes no fields (sd-daemon(3)).
    pub fn line(&self) -> String {
        format!("<{}>{}\n", self.priority.min(7), self.text.replace('\n', "\n\t"))
    }

    /// In the journal's own form. Whoever wrote the record may have fallen: what it says of other services, and whatever
    /// the journal would take for anything but a line and its fields, is left out.
    pub fn of_journal(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let mut put = |name: &str, value: &str| {
            out.extend_from_slice(name.as_bytes());
            out.push(b'\n');
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
            out.extend_from_slice(value.as_bytes());
            out.push(b'\n');
        };
        put("MESSAGE", shortened(&self.text, MOST_TEXT));
        put("PRIORITY", &self.priority.min(7).to_string());
        put("SYSLOG_IDENTIFIER", "towpathd");
        for (name, value) in self.fields.iter().filter(|(name, _)| is_allowed(name)).take(MOST_FIELDS) {
            put(name, shortened(value, MOST_VALUE));
        }
        out
    }
}

fn is_allowed(name: &str) -> bool {
    let ours = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let ours = name.strip_prefix(OURS).is_some_and(|rest| !rest.is_empty() && ours(rest));
    name.len() <= MOST_NAME && (ours || STANDARD.contains(&name))
}

fn shortened(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// What holds for all lines of a process: its stack, and its interfaces.
static OF_SERVICE: OnceLock<RwLock<BTreeMap<String, String>>> = OnceLock::new();

/// All lines of this process have these fields from now on, and of its own name only those that are not empty.
pub fn of_service<const N: usize>(fields: [(&str, String); N]) {
    let all = OF_SERVICE.get_or_init(RwLock::default);
    let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
    all.extend(
        fields.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (field_name(name), value)),
    );
}

/// Writes each event as a record. The text has the fields, too, as in any other log.
pub struct AsRecord;

impl<S, N> FormatEvent<S, N> for AsRecord
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let about = event.metadata();
        let of_service = OF_SERVICE.get_or_init(RwLock::default).read().unwrap_or_else(PoisonError::into_inner);
        let mut record = Record { priority: priority(*about.level()), fields: of_service.clone(), ..Record::default() };
        drop(of_service);
        let mut own = |name: &str, value: String| record.fields.insert(name.to_owned(), value);
        own("TARGET", about.target().to_owned());
        own(PID, std::process::id().to_string());
        if let (Some(file), Some(line)) = (about.file(), about.line()) {
            own("CODE_FILE", file.to_owned());
            own("CODE_LINE", line.to_string());
        }
        own(&field_name("core"), rustix::thread::sched_getcpu().to_string());
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or_default();
        own(&field_name("thread"), thread.to_owned());
        if let Some(worker) = thread.rsplit_once('-').filter(|(_, number)| number.parse::<u32>().is_ok()) {
            own(&field_name("worker"), worker.1.to_owned());
        }
        let _ = write!(record.text, "{}: ", about.target());
        event.record(&mut record);
        record.text.truncate(record.text.floor_char_boundary(MOST_TEXT));
        let text = serde_json::to_string(&record).map_err(|_| fmt::Error)?;
        writeln!(to, "{text}")
    }
}

impl Record {
    fn put(&mut self, field: &Field, value: &str, shown: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value}");
            return;
        }
        let _ = write!(self.text, " {}={shown:?}", field.name());
        self.fields.insert(field_name(field.name()), shortened(value, MOST_VALUE).to_owned());
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value, &value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}"), value);
    }
}

/// The journal's name of a field. What goes wrong has one name there.
fn field_name(name: &str) -> String {
    match name {
        "error" | "why" | "reason" => format!("{OURS}REASON"),
        "cpu" => format!("{OURS}CORE"),
        name => format!("{OURS}{}", name.to_ascii_uppercase().replace('.', "_")),
    }
}

/// The level as of syslog.
pub fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fields(of: &[u8]) -> BTreeMap<String, String> {
        let mut rest = of;
        let mut found = BTreeMap::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
            let (name, length) = (String::from_utf8(rest[..end].to_vec()).unwrap(), &rest[end + 1..end + 9]);
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            let value = String::from_utf8(rest[end + 9..end + 9 + length].to_vec()).unwrap();
            assert_eq!(rest[end + 9 + length], b'\n');
            assert!(found.insert(name, value).is_none(), "a field twice");
            rest = &rest[end + 10 + length..];
        }
        found
    }

    #[test]
    fn levels_are_priorities_of_syslog() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(all.map(priority), [3, 4, 6, 7, 7]);
    }

    #[test]
    fn fields_that_are_not_ours_do_not_reach_the_journal() {
        let given = [
            ("TOWPATH_A7", "7"),
            ("CODE_LINE", "1"),
            ("COREDUMP_UNIT", "sshd.service"),
            ("UNIT", "sshd.service"),
            ("_PID", "1"),
            ("MESSAGE_ID", "fc2e22bc6ee647b6b90729ab34a250b1"),
            ("TOWPATH_", "x"),
            ("TOWPATH_A\nPRIORITY", "0"),
            ("TOWPATH_lower", "x"),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let found = fields(&Record { priority: 99, text: "said\nthis".into(), fields: given }.of_journal());
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["CODE_LINE", "MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "TOWPATH_A7"]);
        assert_eq!((&*found["PRIORITY"], &*found["MESSAGE"]), ("7", "said\nthis"));
    }

    #[test]
    fn what_is_long_is_shortened_at_a_character() {
        let many = (0..100).map(|number| (format!("TOWPATH_F{number}"), "ä".repeat(MOST_VALUE))).collect();
        let record = Record { priority: 6, text: "ä".repeat(MOST_TEXT), fields: many };
        let bytes = record.of_journal();
        assert!(bytes.len() < MOST_TEXT + MOST_FIELDS * (MOST_VALUE + 100), "{}", bytes.len());
        assert!(fields(&bytes)["MESSAGE"].len() <= MOST_TEXT);
    }

    #[test]
    fn a_text_without_fields_keeps_its_priority() {
        let of = |text: &str| Record::of_text(text).line();
        assert_eq!(of("<3>it panicked"), "<3>it panicked\n");
        assert_eq!(of("plain"), "<6>plain\n");
        assert_eq!(of("<9>odd"), "<6><9>odd\n");
        assert_eq!(Record::of_line(b"{\"priority\":3}"), None);
        assert_eq!(Record::of_line(b"plain"), None);
    }
}
