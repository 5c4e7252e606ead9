//! The first program of a guest: serves with the sockets of the guest's kernel.

mod devices;
mod mounts;
mod serve;
mod wakes;

use crate::machine::INIT_ARGUMENT;
use crate::machine::MachineKind;
pub use devices::interface;
use std::process::ExitCode;
use wakes::MessageLine;

/// Becomes the first program of a guest if this process is that; else returns at once. To be called first in `main`.
pub fn main_if_guest() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if std::process::id() != 1 || arguments.next().as_deref() != Some(INIT_ARGUMENT) {
        return None;
    }
    let kind = MachineKind::of(&arguments.next()?)?;
    let given = |word: Option<String>| word.filter(|word| word != "-");
    let (address, gateway) = (given(arguments.next()), given(arguments.next()));
    let cores = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    Some(run(kind, cores, (address.as_deref(), gateway.as_deref())))
}

fn run(kind: MachineKind, cores: usize, at: (Option<&str>, Option<&str>)) -> ExitCode {
    let begin = || {
        devices::enter(kind)?;
        mounts::mount();
        mounts::descriptors();
        devices::messages(kind)
    };
    let messages = match begin() {
        Ok(messages) => messages,
        Err(error) => {
            mounts::say(&format!("no line to the host: {error}"));
            mounts::power_off();
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = serve::serve(MessageLine::new(messages), kind, cores, at) {
        mounts::say(&why);
    }
    mounts::power_off();
    ExitCode::FAILURE
}
