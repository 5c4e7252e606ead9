//! `towpath doctor --bundle`: one file with all that a report of an error needs.

use super::anonymous::Names;
use super::host::Check;
use super::{host, nics, page};
use crate::clock::utc;
use crate::locate::Which;
use crate::{events, exit, fail, json, metrics, print, private_file};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};
use towpath_service::api::{self, Command, Events, ModuleRequest, Status};
use towpath_service::paths;
use towpath_service::policy::PolicyRequest;

/// Lines of the log.
const LOG_LINES: usize = 500;
/// Bytes of a log that are looked at, from its end.
const LOG_BYTES: u64 = 256 << 10;

/// Files that tell of the host, and their names in the bundle.
const HOST: [(&str, &str); 7] = [
    ("host/version.txt", "/proc/version"),
    ("host/os-release.txt", "/etc/os-release"),
    ("host/cpuinfo.txt", "/proc/cpuinfo"),
    ("host/meminfo.txt", "/proc/meminfo"),
    ("host/interfaces.txt", "/proc/net/dev"),
    ("host/reserved_ports.txt", "/proc/sys/net/ipv4/ip_local_reserved_ports"),
    ("host/limits.txt", "/proc/self/limits"),
];

/// What goes into the bundle.
#[derive(Default)]
struct Bundle {
    /// Name and text of each file.
    files: Vec<(String, String)>,
    /// What could not be had, and why.
    missing: Vec<(String, String)>,
}

/// What the file `manifest.json` says.
#[derive(Serialize)]
struct Manifest<'a> {
    version: &'static str,
    made: &'a str,
    anonymous: bool,
    files: Vec<&'a str>,
    missing: Vec<Missing<'a>>,
}

#[derive(Serialize)]
struct Missing<'a> {
    file: &'a str,
    why: &'a str,
}

impl Bundle {
    fn add(&mut self, name: impl Into<String>, text: Result<String, String>) {
        match text {
            Ok(text) => self.files.push((name.into(), text)),
            Err(why) => self.missing.push((name.into(), why)),
        }
    }

    /// An answer of a service, as it is.
    fn answer(&mut self, name: String, socket: &Path, command: Command) {
        let answer = api::ask::<Value>(socket, command).map_err(|error| error.to_string());
        self.add(name, answer.map(|answer| format!("{answer:#}\n")));
    }

    /// All that a service says of itself. Its files are below `folder`.
    fn service(&mut self, folder: &str, socket: &Path) {
        let modules = Command::Module(ModuleRequest::List { name: None });
        for (name, command) in [
            ("hello", Command::Hello { hold: false }),
            ("status", Command::Status),
            ("sockets", Command::Sockets),
            ("configuration", Command::Configuration),
            ("policy", Command::Policy(PolicyRequest::List)),
            ("cores", Command::Cores { set: None }),
            ("modules", modules),
        ] {
            self.answer(format!("{folder}/{name}.json"), socket, command);
        }
        match api::ask::<Events>(socket, Command::Events) {
            Ok(all) => {
                self.add(format!("{folder}/events.txt"), Ok(events::page(&all.threads)));
                self.add(format!("{folder}/events_before.txt"), Ok(events::page(&all.before)));
                self.add(format!("{folder}/events.json"), serde_json::to_string(&all).map_err(|e| e.to_string()));
            }
            Err(error) => self.add(format!("{folder}/events.txt"), Err(error.to_string())),
        }
        let status = api::ask::<Status>(socket, Command::Status);
        let log = status.as_ref().map_err(ToString::to_string).and_then(|status| log(socket, status.pid));
        self.add(format!("{folder}/log.txt"), log);
        if let Ok(Status { pid, .. }) = status {
            for file in ["status", "limits", "cgroup"] {
                self.add(format!("{folder}/process_{file}.txt"), read(Path::new(&format!("/proc/{pid}/{file}"))));
            }
        }
    }

    fn gather(which: &Which, checks: &[Check]) -> Self {
        let mut bundle = Self::default();
        let nics = host::nics(which);
        bundle.add("doctor.txt", Ok(page::host(checks, host::CheckState::Ok) + &nics::table(&nics)));
        bundle.add("doctor.json", Ok(page::host_json(checks, &nics)));
        bundle.add("towpath.json", Ok(crate::version::json()));
        for (name, file) in HOST {
            bundle.add(name, read(Path::new(file)));
        }
        let socket = match which.find() {
            Ok(socket) => socket,
            Err(error) => {
                bundle.add("service/status.json", Err(error.to_string()));
                return bundle;
            }
        };
        bundle.service("service", &socket);
        bundle.add("service/metrics.txt", metrics::once(which).map_err(|error| error.to_string()));
        if let Ok(status) = api::ask::<Status>(&socket, Command::Status) {
            for other in status.stacks.iter().filter(|other| other.running) {
                bundle.service(&format!("stacks/{}", other.name), &other.socket);
            }
        }
        bundle
    }

    fn anonymise(&mut self) {
        let mut names = Names::default();
        for (name, text) in &mut self.files {
            let is_json = Path::new(name).extension().is_some_and(|extension| extension == "json");
            *text = if is_json { names.replace_in_json(text) } else { names.replace(text) };
        }
        for (_, why) in &mut self.missing {
            *why = names.replace(why);
        }
    }

    fn write(&self, to: impl Write, manifest: &str, folder: &str, seconds: u64) -> io::Result<()> {
        let mut tar = tar::Builder::new(GzEncoder::new(to, Compression::default()));
        let manifest = [("manifest.json", manifest)];
        let files = self.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        for (name, text) in manifest.into_iter().chain(files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(seconds);
            tar.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
        }
        tar.into_inner()?.finish()?.flush()
    }
}

/// The text of a file of the host. Bytes that are no text are replaced.
fn read(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines that a service has logged: to the file beside its socket if it runs in the background, else to the journal.
fn log(socket: &Path, pid: u32) -> Result<String, String> {
    let file = paths::log_file(socket);
    let why = match log_of(pid, &file) {
        Ok(text) => return Ok(text),
        Err(why) => why,
    };
    let lines = LOG_LINES.to_string();
    // Numbers of processes come again: other programs had them, and before this boot others of this name. The lines of processes that
    // have ended are there, too: a child of the first one has sent all to the journal.
    let processes = family(pid).into_iter().map(|pid| format!("_PID={pid}"));
    let journal = Program::new("journalctl")
        .args(["--no-pager", "--output", "short-iso-precise", "--boot", "--lines", &lines])
        .args(["_COMM=towpathd", "_COMM=towpathd-log"])
        .args(processes)
        .output();
    match journal {
        // Without lines it says so in one.
        Ok(journal) if journal.status.success() && journal.stdout.iter().filter(|byte| **byte == b'\n').count() > 1 => {
            Ok(String::from_utf8_lossy(&journal.stdout).into_owned())
        }
        Ok(journal) => {
            let said = String::from_utf8_lossy(&journal.stderr);
            let said = said.lines().next().unwrap_or("it has no lines of these processes");
            Err(format!("{why}, and the journal says: {said}"))
        }
        Err(error) => Err(format!("{why}, and journalctl cannot be run: {error}")),
    }
}

/// The end of a file, if the process logs there. Else it is an old one, or another service's.
fn log_of(pid: u32, file: &Path) -> Result<String, String> {
    let (name, stream) = (file.display(), format!("/proc/{pid}/fd/2"));
    let (found, text) = tail(file).map_err(|error| format!("{name}: {error}"))?;
    let logged = fs::metadata(&stream).map_err(|error| format!("{stream}: {error}"))?;
    if (found.dev(), found.ino()) != (logged.dev(), logged.ino()) {
        return Err(format!("{name} is not where process {pid} logs"));
    }
    Ok(text)
}

/// The process that stands for a service, and those that it has started: the one that serves is among them.
fn family(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut family = vec![pid];
    children.for_each(|text| family.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok())));
    family
}

/// What a file is, and its last lines.
fn tail(file: &Path) -> io::Result<(Metadata, String)> {
    use std::io::{Read, Seek, SeekFrom};
    // Another user's service may have put anything in its place.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = found.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(LOG_BYTES)))?;
    let mut text = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    Ok((found, lines[lines.len().saturating_sub(LOG_LINES)..].join("\n") + "\n"))
}

/// Writes the bundle to a file that a user names. It is for nobody but this user.
fn place(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is there and is no file; name another, or - for standard output"));
    }
    private_file::replace(path, write).map(drop)
}

/// Makes the bundle, and says what is in it. `file`: where to; `None`: a new file here; `-`: standard output.
pub fn run(which: &Which, file: Option<&Path>, anonymous: bool, as_json: bool) -> ExitCode {
    let to_output = file == Some(Path::new("-"));
    if as_json && to_output {
        // Standard output is the file, so the reason is on standard error alone.
        let why = "--json prints the manifest on standard output, where --bundle - has the archive; name a file, or leave out \
                   --json: manifest.json is in the archive";
        return fail(why, false, exit::WRONG_LINE);
    }
    let mut bundle = Bundle::gather(which, &host::checks(which));
    if anonymous {
        bundle.anonymise();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let made = utc(now.as_micros() as u64);
    let stamp: String = made.chars().take(19).map(|c| if c == ' ' { '-' } else { c }).filter(|c| *c != ':').collect();
    let folder = format!("towpath-{stamp}");
    let manifest = Manifest {
        version: env!("CARGO_PKG_VERSION"),
        made: &made,
        anonymous,
        files: bundle.files.iter().map(|(name, _)| name.as_str()).collect(),
        missing: bundle.missing.iter().map(|(file, why)| Missing { file, why }).collect(),
    };
    let text = json::line(&manifest);
    let path = file.map_or_else(|| PathBuf::from(format!("{folder}.tar.gz")), Path::to_path_buf);
    let written = if to_output {
        bundle.write(io::stdout().lock(), &text, &folder, now.as_secs())
    } else {
        let write = |to: &File| bundle.write(to, &text, &folder, now.as_secs());
        if file.is_some() { place(&path, write) } else { private_file::create_new(&path).and_then(|to| write(&to)) }
    };
    if let Err(error) = written {
        return fail(&format!("{}: {error}", path.display()), as_json, exit::FAILED);
    }
    match (to_output, as_json) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => print(&text),
        (false, false) => print(&told(&bundle, &path, anonymous)),
    }
}

/// What is in it, for people.
fn told(bundle: &Bundle, path: &Path, anonymous: bool) -> String {
    let mut out = format!("{}: {} files, no payload", path.display(), bundle.files.len());
    out += if anonymous { ", addresses under other names\n" } else { "; --anonymous gives addresses other names\n" };
    for (name, text) in &bundle.files {
        let _ = writeln!(out, "  {name:<32} {:>8} bytes", text.len());
    }
    if !bundle.missing.is_empty() {
        let _ = writeln!(out, "not in it:");
    }
    for (name, why) in &bundle.missing {
        let _ = writeln!(out, "  {name:<32} {why}");
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::private_file::tests::{Folder, anybodys, is_private};
    use flate2::read::GzDecoder;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn a_bundle_is_a_compressed_archive_with_a_manifest_and_names_what_is_missing() {
        let mut bundle = Bundle::default();
        bundle.add("service/status.json", Ok("{\"peer\":\"10.0.0.1:7\",\"said\":\"\\u000a10.0.0.1\"}".into()));
        bundle.add("service/events.txt", Err("only the service's own user and root may see its events".into()));
        bundle.anonymise();
        let mut bytes = Vec::new();
        bundle.write(&mut bytes, "{}", "towpath-x", 7).unwrap();
        let mut archive = tar::Archive::new(GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((name, text));
        }
        let file = |name: &str, text: &str| (format!("towpath-x/{name}"), text.to_owned());
        let status = file("service/status.json", "{\"peer\":\"address-1:7\",\"said\":\"\\naddress-1\"}");
        assert_eq!(found, [file("manifest.json", "{}"), status]);
        let told = told(&bundle, Path::new("x.tar.gz"), true);
        assert!(told.contains("not in it:\n  service/events.txt") && told.contains("only the service's own user"));
    }

    #[test]
    fn a_bundle_is_for_its_user_alone_also_where_a_file_was() {
        let folder = Folder::new("bundle");
        let path = folder.0.join("report.tar.gz");
        let before = anybodys(&path);
        place(&path, |mut to| to.write_all(b"all")).unwrap();
        is_private(&path, "all", &before);
        std::os::unix::fs::symlink("/dev/null", folder.0.join("link")).unwrap();
        for wrong in ["link", ""] {
            let why = place(&folder.0.join(wrong), |_| Ok(())).unwrap_err().to_string();
            assert!(why.contains("is no file; name another"), "{why}");
        }
    }

    #[test]
    fn the_log_is_the_file_to_which_the_process_writes_and_no_other() {
        let folder = Folder::new("log");
        let [own, other] = ["own.log", "other.log"].map(|name| folder.0.join(name));
        for file in [&own, &other] {
            fs::write(file, "serving\n").unwrap();
        }
        let to = OpenOptions::new().append(true).open(&own).unwrap();
        let mut child = Program::new("cat").stdin(Stdio::piped()).stderr(to).spawn().unwrap();
        let (said, refused) = (log_of(child.id(), &own), log_of(child.id(), &other));
        let listed = family(std::process::id());
        drop(child.stdin.take());
        let number = child.id();
        child.wait().unwrap();
        assert_eq!(said.unwrap(), "serving\n");
        assert_eq!(refused.unwrap_err(), format!("{} is not where process {number} logs", other.display()));
        assert!(listed.starts_with(&[std::process::id()]) && listed.contains(&number), "{listed:?}");
    }
}
