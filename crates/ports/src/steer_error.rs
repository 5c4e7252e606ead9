//! Why steering fails, with what to do.

use crate::interface::Interface;
use crate::link_holder;
use aya::programs::{ProgramError, loaded_programs};
use std::error::Error;
use std::io;
use std::path::Path;

/// The same program twice: one is attached, and the other can take its place.
pub(crate) const PROGRAMS: [&str; 2] = ["towpath_steer", "towpath_steer2"];

/// The program of packet sockets.
pub(crate) const DROP: &str = "towpath_drop";

/// The program that takes SYNs before the kernel's firewall.
pub(crate) const OWN: &str = "towpath_own";

/// In errors.
pub(crate) const EXCHANGING: &str = "putting the program in another one's place";

/// Why steering could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// No interface of this name.
    #[error("there is no network interface {0:?} in this network namespace (`ip link` lists them)")]
    NoInterface(String),
    /// EPERM.
    #[error(
        "steering on {0}: not permitted: needs CAP_NET_ADMIN and CAP_BPF (run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` on the program)"
    )]
    Permission(String),
    /// Another XDP program is attached.
    #[error(
        "steering on {interface}: another XDP program is attached: {program}{}; end the program that holds it, or \
         serve another interface (`ip link set {interface} xdp off` removes one that no process holds)",
        holder.map(|pid| format!(", held by process {pid}")).unwrap_or_default()
    )]
    Occupied {
        /// Interface.
        interface: String,
        /// Name and id of the program, as far as the kernel tells.
        program: String,
        /// The process that holds it, if it can be seen.
        holder: Option<u32>,
        /// Is it the steering program of another service?
        is_ours: bool,
    },
    /// The kernel has no memory for the maps.
    #[error(
        "steering on {0}: no memory for the maps: raise the limit of locked memory (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit) or the memory limit of the control group"
    )]
    Memory(String),
    /// A table of the program is full.
    #[error("steering on {0}: the table is full")]
    Full(String),
    /// The kernel cannot bind the program's lifetime to this process.
    #[error("steering on {0}: this kernel has no XDP links (5.9 and newer have)")]
    OldKernel(String),
    /// The kernel has no tcx hook.
    #[error(
        "steering on {0}: this kernel has no tcx ingress hook (Linux 6.6 and newer have), which packet sockets need: use \
         `port = \"xdp\"`"
    )]
    NoIngressHook(String),
    /// The kernel's verifier refuses a program.
    #[error(
        "steering on {interface}: {doing}: the verifier of this kernel refuses it: {reason}; report this with the release \
         (`uname -r`), and use another kernel meanwhile"
    )]
    Verifier {
        /// Interface.
        interface: String,
        /// The step that failed.
        doing: &'static str,
        /// The verifier's last words.
        reason: String,
    },
    /// SYNs cannot be taken before the kernel's firewall.
    #[error("`firewall = \"own\"` is not possible on {interface}: {missing}; use `firewall = \"respect\"`")]
    NotOwn {
        /// Interface.
        interface: String,
        /// What it would need.
        missing: String,
    },
    /// Any other error.
    #[error("steering on {interface}: {doing}: {text}")]
    Other {
        /// Interface.
        interface: String,
        /// The step that failed.
        doing: &'static str,
        /// The causes, joined.
        text: String,
    },
}

pub(crate) fn explain(interface: &str, doing: &'static str, error: &(dyn Error + 'static)) -> SteerError {
    let name = interface.to_owned();
    // It answers with EACCES, too, which has nothing to do with privileges then.
    if let Some(reason) = verifiers_reason(error) {
        return SteerError::Verifier { interface: name, doing, reason };
    }
    match os_error(error) {
        Some(libc::EPERM | libc::EACCES) => SteerError::Permission(name),
        Some(libc::EBUSY | libc::EEXIST) => occupied(interface),
        Some(libc::ENOMEM) => SteerError::Memory(name),
        Some(libc::E2BIG) => SteerError::Full(name),
        _ => SteerError::Other { interface: name, doing, text: chain(error) },
    }
}

/// Why the verifier refuses a program: what it said last, before its counts. `None`: it has said nothing.
fn verifiers_reason(error: &(dyn Error + 'static)) -> Option<String> {
    let Some(ProgramError::LoadError { verifier_log, .. }) = error.downcast_ref::<ProgramError>() else { return None };
    reason_in(&verifier_log.to_string())
}

fn reason_in(log: &str) -> Option<String> {
    let is_count =
        |line: &&str| ["processed ", "verification time ", "stack depth "].iter().any(|begin| line.starts_with(begin));
    let last = log.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_count(line));
    last.map(str::to_owned)
}

/// The error for an interface that has a program. Names the program as `name (id 7)`, or as much as is known.
fn occupied(interface: &str) -> SteerError {
    let found = Interface::find(interface).ok().flatten();
    occupied_by(interface, found.and_then(|found| found.xdp_program().ok().flatten()))
}

/// The same, when the number of the program is known.
pub(crate) fn occupied_by(interface: &str, id: Option<u32>) -> SteerError {
    let info = id.and_then(|id| loaded_programs().flatten().find(|info| info.id() == id));
    let name = info.as_ref().and_then(|info| info.name_as_str()).filter(|name| !name.is_empty());
    let program = match (name, id) {
        (Some(name), Some(id)) => format!("{name} (id {id})"),
        (None, Some(id)) => format!("id {id}"),
        (_, None) => "unknown".into(),
    };
    SteerError::Occupied {
        interface: interface.into(),
        program,
        holder: id.and_then(|id| link_holder::of_program(Path::new("/proc"), id)),
        is_ours: name.is_some_and(|name| name == DROP || PROGRAMS.contains(&name)),
    }
}

/// The error for an object that is not ours.
pub(crate) fn missing(interface: &str) -> SteerError {
    explain(interface, "loading", &io::Error::other("the object lacks a program or a map"))
}

/// The errno at the bottom of an error.
pub(crate) fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut error = Some(error);
    while let Some(this) = error {
        if let Some(code) = this.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        error = this.source();
    }
    None
}

pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_words_are_the_reason() {
        let log = "0: R1=ctx() R10=fp0\n3: (85) call pc+2\nBPF program is too large. Processed 1000001 insn\n\
                   verification time 1 usec\nstack depth 0\nprocessed 1000001 insns (limit 1000000)\n";
        assert_eq!(reason_in(log).as_deref(), Some("BPF program is too large. Processed 1000001 insn"));
        assert_eq!((reason_in(""), reason_in("processed 7 insns (limit 1000000)")), (None, None));
    }
}
