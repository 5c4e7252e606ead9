//! Checks this host: requirements of Towpath, improvements, and the remedy for each that is missing.

use super::nics;
use crate::locate::{self, Which};
use crate::run;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use std::path::Path;
use towpath_hook::exec;
use towpath_service::api::{self, AskError};
use towpath_service::config::FirewallSetting;
use towpath_service::{firewall_rules, paths, programs};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// A feature is missing, or slower.
    Warn,
    /// Programs cannot be accelerated.
    Fail,
}

/// A check, as one line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// The subject.
    pub check: &'static str,
    /// The result.
    pub state: CheckState,
    /// The finding.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

fn ok(check: &'static str, found: impl Into<String>) -> Check {
    Check { check, state: CheckState::Ok, found: found.into(), remedy: None }
}

fn warn(check: &'static str, found: impl Into<String>, remedy: &str) -> Check {
    Check { check, state: CheckState::Warn, found: found.into(), remedy: Some(remedy.into()) }
}

fn fail(check: &'static str, found: impl Into<String>, remedy: &str) -> Check {
    Check { state: CheckState::Fail, ..warn(check, found, remedy) }
}

/// `AF_XDP`, which rustix has no name for.
const AF_XDP: u16 = 44;
/// Most locked memory that the frames of an interface's port need, bytes.
const LOCKED_BYTES: u64 = 64 << 20;
/// Open files that are enough for a program with some thousand connections.
const FILES: u64 = 4096;

/// All checks, in the order in which they are shown.
pub fn checks(which: &Which) -> Vec<Check> {
    let mut checks = vec![kernel(), injection()];
    checks.extend(files());
    checks.extend(service(which));
    checks.extend([rights(), af_xdp(), locked_memory(), huge_pages(), open_files(), processors()]);
    checks.push(reserved(&crate::receive_cpus::overlaps(None)));
    checks
}

/// The network devices, and those of them that the service serves.
pub fn nics(which: &Which) -> Vec<nics::Fitness> {
    let status = which.find().ok().and_then(|socket| api::ask::<api::Status>(&socket, api::Command::Status).ok());
    let served = status.map(|status| status.interfaces).unwrap_or_default();
    // The hook came with this release.
    let tcx = release(&rustix::system::uname().release().to_string_lossy()) >= (6, 6);
    nics::all(&served, tcx)
}

/// Major and minor number of a release such as 6.12.30-amd64.
fn release(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let found = name.release().to_string_lossy().into_owned();
    match release(&found) {
        (major, minor) if (major, minor) < (5, 11) => {
            warn("kernel", found, "an interface needs Linux 5.18; static, musl and Go programs need 5.11")
        }
        (major, minor) if (major, minor) < (5, 18) => warn("kernel", found, "an interface needs Linux 5.18 or newer"),
        _ => ok("kernel", found),
    }
}

#[cfg(target_arch = "x86_64")]
fn injection() -> Check {
    match towpath_hook::inject::possible() {
        Ok(()) => ok("inject", "FSGSBASE and Syscall User Dispatch"),
        Err(why) => {
            warn("inject", why, "static, musl and Go programs stay on the kernel's TCP; others are not concerned")
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn injection() -> Check {
    warn("inject", "not on this processor", "static, musl and Go programs stay on the kernel's TCP")
}

fn files() -> Vec<Check> {
    let library = match run::library() {
        Ok(library) => library,
        Err(why) => return vec![fail("library", why, "install libtowpath.so beside towpath or in ../lib/towpath")],
    };
    let loader = library.with_file_name(exec::LOADER);
    let loader = if loader.exists() {
        ok("loader", loader.display().to_string())
    } else {
        let found = format!("{} is not there", loader.display());
        warn(
            "loader",
            found,
            "install it beside the library; without it static, musl and Go programs stay on the kernel's TCP",
        )
    };
    vec![ok("library", library.display().to_string()), loader]
}

fn service(which: &Which) -> Vec<Check> {
    if let Some(socket) = which.named() {
        return std::iter::once(asked(&socket, true)).chain(in_service(&socket)).collect();
    }
    let system = Path::new(paths::SYSTEM_SOCKET);
    let mut found = Vec::new();
    match locate::admitted(system) {
        Ok(_) => return std::iter::once(asked(system, false)).chain(in_service(system)).collect(),
        Err(AskError::Absent { .. }) => {}
        // The user's own service is used instead.
        Err(error) => {
            found.push(warn("service", error.to_string(), "`towpath run` uses a service of your own instead"))
        }
    }
    found.push(match paths::per_user_socket() {
        Ok(socket) => asked(&socket, false),
        Err(error) => fail("service", error.to_string(), "make the directory private, or name a socket with --socket"),
    });
    found
}

/// Checks what the service at a socket says of itself.
fn in_service(socket: &Path) -> Vec<Check> {
    let Ok(status) = api::ask::<api::Status>(socket, api::Command::Status) else { return Vec::new() };
    let interfaces = status.interfaces.iter().map(interface);
    let firewall = (!status.interfaces.is_empty()).then(|| {
        if status.interfaces.iter().any(|link| link.firewall == FirewallSetting::Own) {
            ok(
                "firewall",
                "\"own\": the policy alone judges accelerated connections; the kernel's firewall has the others",
            )
        } else {
            firewall(firewall_rules::passed_by())
        }
    });
    std::iter::once(sandbox(&status)).chain(interfaces).chain(firewall).collect()
}

/// Checks the interface that a service serves.
fn interface(link: &api::InterfaceStatus) -> Check {
    let Some(trouble) = &link.trouble else {
        return ok("interface", format!("{}, {} of {} queues", link.title(), link.sockets, link.queues));
    };
    // Each trouble is said with its remedy.
    let (found, remedy) =
        trouble.split_once(": ").or(trouble.split_once("; ")).unwrap_or((trouble, "see the service's log"));
    if link.steering && link.up && link.carrier {
        warn("interface", found, remedy)
    } else {
        fail("interface", found, remedy)
    }
}

/// Checks the rules of this network namespace's firewall.
fn firewall(passed_by: Option<String>) -> Check {
    match passed_by {
        None => ok("firewall", "it judges first SYNs; no rule is seen that needs more"),
        Some(found) => {
            warn("firewall", found, "see docs/guide/firewalls.md; `towpath policy` has rules by user and control group")
        }
    }
}

/// Checks what the service has given up.
fn sandbox(status: &api::Status) -> Check {
    let line = status.sandbox.line();
    if status.sandbox.refused > 0 {
        let remedy = "each refused call is an error of Towpath or an attack: see the service's log, and report it";
        fail("sandbox", line, remedy)
    } else if status.sandbox.missing.is_empty() {
        ok("sandbox", line)
    } else {
        warn(
            "sandbox",
            line,
            "`sandbox = \"on\"`, and a kernel that has what is missing; see docs/internals/sandbox.md",
        )
    }
}

/// Checks the service at a socket. `towpath run` does not start one that was `named`.
fn asked(socket: &Path, named: bool) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    match locate::admitted(socket) {
        Ok(hello) if hello.mismatch(socket).is_some() => {
            let found = hello.mismatch(socket).unwrap_or_default();
            let (found, remedy) = found.split_once("; ").unwrap_or((&found, "install one version of both"));
            fail("service", found, remedy)
        }
        Ok(hello) if hello.version == own => ok("service", format!("{} at {}", hello.version, socket.display())),
        Ok(hello) => fail(
            "service",
            format!("version {} at {}, this is {own}", hello.version, socket.display()),
            "install matching versions and restart the service",
        ),
        Err(AskError::Absent { .. }) if !named => match programs::find("towpathd") {
            Ok(_) => ok("service", "none yet; `towpath run` starts one"),
            Err(why) => fail("service", why.to_string(), "install towpathd beside towpath"),
        },
        Err(error @ AskError::Absent { .. }) => {
            let remedy = "start it with `towpath serve`, or unset TOWPATH_SOCKET so that `towpath run` starts one";
            fail("service", error.to_string(), remedy)
        }
        Err(error @ AskError::NotAdmitted { .. }) => {
            fail("service", error.to_string(), "`towpath serve --admit user:NAME`, or `admit` in the configuration")
        }
        Err(error) => fail("service", error.to_string(), "`towpath status` and the service's log say more"),
    }
}

fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(capability))
}

fn rights() -> Check {
    let needed = [
        ("CAP_NET_ADMIN", has(CapabilitySet::NET_ADMIN)),
        ("CAP_NET_RAW", has(CapabilitySet::NET_RAW)),
        ("CAP_BPF", has(CapabilitySet::BPF) || has(CapabilitySet::SYS_ADMIN)),
    ];
    let missing: Vec<_> = needed.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return ok("rights", "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF");
    }
    let remedy = "only for `towpath serve --interface`: run that as root; programs of this host need no rights";
    warn("rights", format!("without {}", missing.join(", ")), remedy)
}

fn af_xdp() -> Check {
    let family = AddressFamily::from_raw(AF_XDP);
    match rustix::net::socket(family, SocketType::RAW, None) {
        Ok(_) | Err(rustix::io::Errno::PERM) => ok("AF_XDP", "in the kernel"),
        Err(error) => {
            let remedy = "only for `towpath serve --interface`: a kernel with CONFIG_XDP_SOCKETS";
            warn("AF_XDP", error.to_string(), remedy)
        }
    }
}

/// A limit in words.
fn limit(resource: Resource, unit: u64, name: &str) -> (u64, String) {
    let limit = getrlimit(resource);
    let words = |value: Option<u64>| value.map_or("unlimited".into(), |value| format!("{}{name}", value / unit));
    (limit.maximum.unwrap_or(u64::MAX), format!("{}, at most {}", words(limit.current), words(limit.maximum)))
}

fn locked_memory() -> Check {
    let (hard, found) = limit(Resource::Memlock, 1 << 10, " KiB");
    if hard >= LOCKED_BYTES || has(CapabilitySet::IPC_LOCK) {
        return ok("memlock", found);
    }
    let remedy = "only for `towpath serve --interface`: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit";
    warn("memlock", found, remedy)
}

fn open_files() -> Check {
    let (hard, found) = limit(Resource::Nofile, 1, "");
    if hard >= FILES {
        return ok("nofile", found);
    }
    warn("nofile", found, "raise `ulimit -Hn` (LimitNOFILE= in a unit) for many connections")
}

fn huge_pages() -> Check {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    match free.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(free) if free > 0 => ok("hugepages", format!("{free} of 2 MiB free")),
        // Frames are in ordinary pages then, which also works. So this is no warning.
        _ => ok("hugepages", "none free; an interface's frames use ordinary pages"),
    }
}

fn processors() -> Check {
    match std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        1 => warn("processors", "1", "the stack and the program take turns; a second one makes it faster"),
        count => ok("processors", count.to_string()),
    }
}

/// Checks that no service's thread is pinned to a CPU that `towpath cores enforce` has reserved.
fn reserved(overlaps: &[String]) -> Check {
    if overlaps.is_empty() {
        return ok("pinned", "no service is pinned to one");
    }
    let remedy = "name other CPUs as `cpus` of that service, or none; `towpath cores status` has who has which";
    warn("pinned", overlaps.join("; "), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_pinned_to_a_reserved_cpu_is_said() {
        let check = reserved(&["fast-0 of towpathd 7 is pinned to CPU 2, which is reserved for eth1".into()]);
        assert!(
            check.state == CheckState::Warn && check.remedy.is_some() && check.found.contains("fast-0"),
            "{check:?}"
        );
        assert_eq!(reserved(&[]).state, CheckState::Ok);
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(release("6.12.30-amd64"), (6, 12));
        assert_eq!(release("5.9-rc1"), (5, 9));
        assert!(release("5.10.0") > release("5.9.9"));
        assert_eq!(release("next"), (0, 0));
    }

    #[test]
    fn whatever_is_not_ok_has_a_remedy() {
        for check in checks(&Which::default()) {
            assert_eq!(check.state == CheckState::Ok, check.remedy.is_none(), "{check:?}");
        }
    }
}
