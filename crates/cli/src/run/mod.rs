//! `towpath run`: a program with its TCP sockets on Towpath.

mod hook;
pub mod profile;
mod report;
mod service;

use crate::locate::Which;
use crate::{complain, print};
pub use hook::HookChoice;

use hook::Hook;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use towpath_hook::program;
use towpath_ring::ports;
use towpath_ring::stats::VARIABLE as AUTO_VARIABLE;

/// Environment variable that names the library, if it is not beside the command.
const LIBRARY_VARIABLE: &str = "TOWPATH_LIBRARY";
/// The library's name.
const LIBRARY: &str = "libtowpath.so";

/// Exit codes of `towpath run` itself, the same as those of `env` and `timeout`.
pub mod exit {
    /// Towpath failed.
    pub const TOWPATH: u8 = 125;
    /// The program cannot be executed.
    pub const CANNOT_EXECUTE: u8 = 126;
    /// There is no such program.
    pub const NO_PROGRAM: u8 = 127;
}

/// Runs a program with its TCP sockets on Towpath. Nothing about the program is changed.
///
/// Without --socket (or TOWPATH_SOCKET) the machine's service is used if there is one that admits you, else your own.
/// Your own is started if need be, and ends by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath run -- redis-server --port 7000
  towpath run -- redis-benchmark -p 7000
  towpath run -v -- ./my-server          say what is done
  towpath run --require -- ./my-server   fail rather than use the kernel's TCP
  towpath run --stack kernel -- nginx    on this kernel's TCP, but through the rings
  towpath run --auto -- ./my-server      only what gains by it; `towpath status` says what does
  towpath run --profile list             settings for programs that are known, each with its reason
  towpath run --hook inject -- ./my-jit  catch system calls, not libc's functions
  towpath run --splice 7000 -- haproxy -f haproxy.cfg   what haproxy's port 7000 passes on skips haproxy

A setuid or foreign program, and any program if there is no service, runs on the kernel's TCP, whole and unchanged; -v
says so, --require makes it an error (exit code 125). So does --stack: a program never gets another network than the one
that was named. What the program executes is treated alike, by the same choice.
TOWPATH_IDLE_EXIT=5min is how long a service started this way stays without programs [default: 30s].")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// How the program's calls are caught
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    hook: HookChoice,
    /// Measure its connections on the stack and on the kernel, and leave those to the kernel that do not gain (see
    /// `towpath status`)
    #[arg(long)]
    auto: bool,
    /// Ports of listeners whose connections the program only passes on by splice(2), such as haproxy's in `mode tcp`: the
    /// stack takes them over (see docs/guide/splicing.md). A list like 7000,8000-8009
    #[arg(long, value_name = "PORTS", value_parser = ports_of)]
    splice: Option<String>,
    /// Settings for a program that is known: redis, nginx, haproxy, memcached or postgresql. `list` shows what each sets, and
    /// why
    #[arg(long, value_name = "NAME")]
    profile: Option<profile::Choice>,
    /// Fail if the program cannot be served; --stack implies it
    #[arg(long)]
    require: bool,
    /// Say what is done
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "profile",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// A list of ports, as it was given.
fn ports_of(list: &str) -> Result<String, String> {
    let remedy = "name ports and ranges of them, like 7000,8000-8009";
    ports::ranges(list).map(|_| list.to_owned()).ok_or_else(|| remedy.to_owned())
}

impl Arguments {
    /// Is the kernel's TCP of this network namespace wrong for the program?
    fn requires(&self) -> bool {
        self.require || self.which.stack.is_some()
    }

    /// The profile of the program.
    fn profile(&self) -> Option<profile::Profile> {
        match self.profile {
            Some(profile::Choice::Of(profile)) => Some(profile),
            Some(profile::Choice::List) | None => None,
        }
    }

    /// The program and its arguments.
    #[cfg(test)]
    pub fn program(&self) -> Vec<&str> {
        self.program.iter().filter_map(|word| word.to_str()).collect()
    }
}

/// Becomes the program. It returns only if that fails.
pub fn run(arguments: Arguments) -> ExitCode {
    if arguments.profile == Some(profile::Choice::List) {
        return print(&profile::list());
    }
    let Some((name, rest)) = arguments.program.split_first() else {
        complain("--profile is for a program; name it behind --");
        return ExitCode::from(exit::TOWPATH);
    };
    let Some(path) = program::find(name) else {
        complain(&format!("{}: no such program", name.display()));
        return ExitCode::from(exit::NO_PROGRAM);
    };
    let mut command = Command::new(&path);
    command.arg0(name);
    match prepare(&arguments, &path) {
        Ok(prepared) => {
            if arguments.verbose {
                let how = prepared.hook.describe();
                complain(&format!("{} {how}, on the service at {}", name.display(), prepared.socket.display()));
                if let Some(profile) = arguments.profile() {
                    complain(&format!("the profile {}", profile.words().trim_end()));
                }
            }
            if let Hook::Inject { loader, .. } = &prepared.hook {
                command = Command::new(loader);
                // Absolute, because other programs read the program's name from this argument.
                command.arg(std::path::absolute(&path).unwrap_or(path.clone())).arg(name);
            }
            command.env("LD_PRELOAD", preload(&prepared.library, std::env::var_os("LD_PRELOAD").as_deref()));
            command.env(towpath_service::paths::SOCKET_VARIABLE, &prepared.socket);
            command.env(towpath_hook::exec::VARIABLE, arguments.hook.name());
            let auto = arguments.profile().is_some_and(|profile| profile.auto.is_some());
            if arguments.auto || auto || prepared.auto {
                command.env(AUTO_VARIABLE, "1");
            }
            if let Some(list) = &arguments.splice {
                command.env(ports::VARIABLE, list);
            }
            if arguments.requires() {
                command.env("TOWPATH_REQUIRE", "1");
            }
        }
        Err(why) if arguments.requires() => {
            report::not_served(&path, &why.text);
            complain(&why.text);
            return ExitCode::from(exit::TOWPATH);
        }
        Err(why) => {
            report::not_served(&path, &why.text);
            if arguments.verbose || why.unexpected {
                complain(&format!("{}; it runs on the kernel's TCP", why.text));
            }
        }
    }
    command.args(rest);
    let error = command.exec();
    complain(&format!("{}: {error}", path.display()));
    ExitCode::from(exit::CANNOT_EXECUTE)
}

/// The set-up of a served program.
struct Prepared {
    socket: PathBuf,
    /// The service measures all programs.
    auto: bool,
    library: PathBuf,
    hook: Hook,
}

/// Why it is not served.
struct NotServed {
    text: String,
    /// True if it is worth a line even without -v: the user could have expected it to work.
    unexpected: bool,
}

fn prepare(arguments: &Arguments, program: &Path) -> Result<Prepared, NotServed> {
    let unexpected = |text| NotServed { text, unexpected: true };
    let library = library().map_err(unexpected)?;
    let hook = hook::choose(arguments.hook, program, &library);
    // An explicit choice that is not possible is worth a line.
    let hook = hook.map_err(|text| NotServed { text, unexpected: arguments.hook != HookChoice::Auto })?;
    let (socket, hello) = service::find_or_start(&arguments.which, arguments.verbose).map_err(unexpected)?;
    if let Some(why) = hello.mismatch(&socket) {
        return Err(unexpected(why));
    }
    Ok(Prepared { socket, auto: hello.auto, library, hook })
}

/// Finds the library: named, beside this command, or in `../lib/towpath`.
pub fn library() -> Result<PathBuf, String> {
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let candidates = match named {
        Some(path) => vec![path],
        None => {
            let exe = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
            let dir = exe.parent().unwrap_or(Path::new("/"));
            vec![dir.join(LIBRARY), dir.join("../lib/towpath").join(LIBRARY)]
        }
    };
    let found = candidates.iter().find_map(|path| path.canonicalize().ok());
    let found = found.ok_or_else(|| {
        let places: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        format!("{LIBRARY} is not there ({}); build it, or name it with {LIBRARY_VARIABLE}", places.join(", "))
    })?;
    towpath_hook::library::check(&found)
        .map_err(|why| format!("{}: {why}; name {LIBRARY} with {LIBRARY_VARIABLE}, or unset it", found.display()))?;
    // The dynamic linker splits LD_PRELOAD at these and has no quoting.
    if found.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(format!("{}: the path of the library must not contain spaces or colons", found.display()));
    }
    Ok(found)
}

/// The value of `LD_PRELOAD`: our library first, then the old value.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty() && *before != library) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_preload_is_kept() {
        let library = Path::new("/usr/lib/towpath/libtowpath.so");
        assert_eq!(preload(library, None), "/usr/lib/towpath/libtowpath.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/usr/lib/towpath/libtowpath.so");
        let both = preload(library, Some(OsStr::new("/lib/libjemalloc.so")));
        assert_eq!(both, "/usr/lib/towpath/libtowpath.so:/lib/libjemalloc.so");
        // `towpath run towpath run program`.
        assert_eq!(preload(library, Some(library.as_os_str())), "/usr/lib/towpath/libtowpath.so");
    }
}
