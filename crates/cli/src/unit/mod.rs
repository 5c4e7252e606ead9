//! `towpath unit`: puts units of systemd under Towpath, and takes them off again, by a drop-in.

mod drop_in;

use self::drop_in::{Carrier, Facts, NAME};
use crate::{complain, exit, print};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where an operator's drop-ins lie.
const UNITS: &str = "/etc/systemd/system";

/// Puts a service of systemd under Towpath by a drop-in, or takes it off.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath unit enable nginx.service && systemctl restart nginx
  towpath unit list
  towpath unit disable nginx.service && systemctl restart nginx

`enable` writes UNIT.d/zz-towpath.conf below /etc/systemd/system. There ExecStart= is as it was, with `towpath run --` before it. Nothing
else of the unit changes, and what runs goes on as it is until you restart it. Without a service of the machine the
program has the kernel's TCP.")]
pub struct Arguments {
    /// One JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Put a unit under Towpath
    #[command(after_help = "Example:\n  towpath unit enable nginx.service && systemctl restart nginx")]
    Enable {
        /// The unit, with or without .service
        unit: UnitName,
        /// Let the service towpathd@NAME carry it, and not the machine's
        #[arg(long, value_name = "NAME")]
        instance: Option<Carrier>,
    },
    /// Take it off again
    #[command(after_help = "Example:\n  towpath unit disable nginx.service && systemctl restart nginx")]
    Disable {
        /// The unit, with or without .service
        unit: UnitName,
    },
    /// List the units that are under Towpath
    #[command(after_help = "Example:\n  towpath unit list")]
    List,
}

/// A service's name with its suffix.
#[derive(Clone, Debug)]
struct UnitName(String);

impl std::str::FromStr for UnitName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c);
        if text.is_empty() || text.starts_with(['.', '-']) || !text.chars().all(known) {
            return Err(format!("{text:?} is no name of a unit"));
        }
        match text.rsplit_once('.') {
            Some((name, "service")) if name.ends_with('@') => {
                Err(format!("{text} is a template; name an instance, as in {name}NAME.service"))
            }
            Some((_, "service")) => Ok(Self(text.to_owned())),
            Some((_, kind @ ("socket" | "timer" | "target" | "mount" | "path" | "slice" | "scope"))) => {
                Err(format!("a .{kind} starts no program; name the .service that it starts"))
            }
            _ => Ok(Self(format!("{text}.service"))),
        }
    }
}

impl UnitName {
    fn file(&self) -> PathBuf {
        Path::new(UNITS).join(format!("{}.d", self.0)).join(NAME)
    }
}

/// A unit that is under Towpath.
#[derive(Serialize)]
struct Unit {
    unit: String,
    /// As systemd says it: `active`, `inactive`, `failed` ...
    state: String,
    /// Its processes, and those of them that have begun under Towpath. `None`: whoever asks may not see that.
    processes: usize,
    under_towpath: Option<usize>,
}

/// Does it.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.action {
        Action::Enable { unit, instance } => enable(unit, &instance.clone().unwrap_or_default()),
        Action::Disable { unit } => disable(unit),
        Action::List => list().map(|units| if arguments.json { json(&units) } else { table(&units) }),
    };
    match done {
        Ok(text) if arguments.json && !matches!(arguments.action, Action::List) => {
            print(&crate::json::line(&serde_json::json!({ "done": text.trim_end() })))
        }
        Ok(text) => print(&text),
        Err(why) => crate::fail(&why, arguments.json, exit::FAILED),
    }
}

fn enable(unit: &UnitName, carrier: &Carrier) -> Result<String, String> {
    let facts = facts(unit)?;
    facts.check(&unit.0)?;
    let unit = UnitName(facts.id().to_owned());
    let file = unit.file();
    let own = |path: &PathBuf| *path != file;
    let read = |path: PathBuf| fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    let texts = facts.files().into_iter().filter(own).map(read).collect::<Result<Vec<_>, _>>()?;
    let towpath = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    let library = crate::run::library()?;
    let beside = library.parent().map(Path::to_owned);
    let executed: Vec<PathBuf> = [towpath].into_iter().chain(beside).collect();
    let text = drop_in::text(&unit.0, carrier, &texts, &facts, &executed)?;
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    fs::write(&file, text).map_err(failed)?;
    systemctl(&["daemon-reload"])?;
    for note in facts.notes() {
        complain(&note);
    }
    Ok(format!("{}: now `systemctl restart {}`\n", file.display(), unit.0))
}

/// What systemd says of a unit.
fn facts(unit: &UnitName) -> Result<Facts, String> {
    Ok(Facts::of(&systemctl(&["show", "--no-pager", "-p", &drop_in::PROPERTIES.join(","), "--", &unit.0])?))
}

fn disable(unit: &UnitName) -> Result<String, String> {
    let named = facts(unit).ok().map(|facts| UnitName(facts.id().to_owned()));
    let unit = &named.filter(|named| !named.0.is_empty()).unwrap_or_else(|| unit.clone());
    let file = unit.file();
    match fs::remove_file(&file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{} is not under Towpath; `towpath unit list` shows which are", unit.0));
        }
        Err(error) => return Err(format!("{}: {error}", file.display())),
    }
    // It stays if somebody else has something there.
    let _ = file.parent().map(fs::remove_dir);
    systemctl(&["daemon-reload"])?;
    Ok(format!("{} is removed: now `systemctl restart {}`\n", file.display(), unit.0))
}

fn list() -> Result<Vec<Unit>, String> {
    let entries = match fs::read_dir(UNITS) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{UNITS}: {error}")),
    };
    let directories = entries.flatten().map(|entry| entry.path());
    let with_ours = directories.filter(|path| path.join(NAME).is_file());
    let mut names: Vec<String> =
        with_ours.filter_map(|path| Some(path.file_name()?.to_str()?.strip_suffix(".d")?.to_owned())).collect();
    names.sort();
    let running = processes();
    let unit = |unit: String| {
        // It fails for a unit that is not active, and says what it is.
        let state = Command::new("systemctl").args(["is-active", "--", &unit]).output();
        let state = state.map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        let own: Vec<Option<bool>> = running.iter().filter(|(of, _)| *of == unit).map(|(_, under)| *under).collect();
        let under_towpath = own.iter().try_fold(0, |count, under| under.map(|under| count + usize::from(under)));
        Unit { unit, state, processes: own.len(), under_towpath }
    };
    Ok(names.into_iter().map(unit).collect())
}

/// The unit of each process of one, and whether it is under Towpath. `None`: we may not see that.
fn processes() -> Vec<(String, Option<bool>)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let unit = unit_of(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)?;
        Some((unit, fs::read_to_string(format!("/proc/{pid}/maps")).ok().map(|maps| maps.lines().any(is_ours))))
    })
    .collect()
}

/// Is it the mapping of a file of ours? After an upgrade the file has another name, or none.
fn is_ours(mapping: &str) -> bool {
    let path = mapping.strip_suffix(" (deleted)").unwrap_or(mapping);
    ["/libtowpath.so", "/towpath-loader"].iter().any(|end| path.ends_with(end))
}

/// The unit that control groups name.
fn unit_of(groups: &str) -> Option<String> {
    groups.lines().flat_map(|line| line.split('/')).rev().find(|part| part.ends_with(".service")).map(str::to_owned)
}

fn json(units: &[Unit]) -> String {
    crate::json::line(&serde_json::json!({ "units": units }))
}

fn table(units: &[Unit]) -> String {
    if units.is_empty() {
        return "no unit is under Towpath; `towpath unit enable UNIT` puts one there\n".into();
    }
    let mut text = String::new();
    for Unit { unit, state, processes, under_towpath } in units {
        let processes_of = processes_of(*processes);
        let _ = match under_towpath {
            None => write!(text, "{unit}  {state}  {processes_of}; root sees whether they are under Towpath"),
            Some(under) => write!(text, "{unit}  {state}  {under} of {processes_of} under Towpath"),
        };
        if under_towpath.is_some_and(|under| under < *processes) {
            let _ = write!(text, "; `systemctl restart {unit}` puts all there");
        }
        text.push('\n');
    }
    text
}

fn processes_of(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let ran = Command::new("systemctl").args(arguments).output();
    let ran = ran.map_err(|error| format!("systemctl: {error}; `towpath unit` is for hosts with systemd"))?;
    if !ran.status.success() {
        return Err(format!("systemctl {}: {}", arguments[0], String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_of_the_innermost_unit() {
        assert_eq!(unit_of("0::/system.slice/nginx.service\n").unwrap(), "nginx.service");
        let inner = "1:name=systemd:/user.slice/user@0.service/app.slice/x.service/y\n0::/\n";
        assert_eq!(unit_of(inner).unwrap(), "x.service");
        assert_eq!(unit_of("0::/init.scope\n"), None);
    }

    #[test]
    fn a_file_of_ours_is_known_also_after_an_upgrade() {
        let of = |path: &str| is_ours(&format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 42    {path}"));
        assert!(of("/usr/lib/towpath/libtowpath.so") && of("/usr/lib/towpath/libtowpath.so (deleted)"));
        assert!(of("/usr/lib/towpath/towpath-loader") && !of("/usr/lib/libtowpath.so.bak") && !of("[heap]"));
    }

    #[test]
    fn a_name_is_that_of_a_service() {
        let parsed = |text: &str| text.parse::<UnitName>().map(|unit| unit.0);
        assert_eq!(parsed("nginx").unwrap(), "nginx.service");
        assert_eq!(parsed("postgresql@15-main.service").unwrap(), "postgresql@15-main.service");
        assert_eq!(parsed("php8.2-fpm").unwrap(), "php8.2-fpm.service");
        assert!(parsed("nginx.socket").unwrap_err().contains("name the .service"));
        assert!(parsed("postgresql@.service").unwrap_err().contains("name an instance, as in postgresql@NAME.service"));
        for wrong in ["", "../../etc/passwd", "a b", "-x", ".service"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
