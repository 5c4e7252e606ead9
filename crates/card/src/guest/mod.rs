//! What runs in the card: the first program of its kernel, which serves with that kernel's sockets.

pub mod ask;
mod bells;
mod init;
mod machine;
pub mod orders;
pub mod post;
mod reservations;
mod serve;

use crate::machine::Kind;
use bells::Line;
pub use machine::interface;
use std::process::ExitCode;

/// The first argument by which a binary of ours knows that it is the first program of a card.
pub const ARGUMENT: &str = "towpath-card";

/// Becomes the first program of a card if this process is that; else returns at once. To be called first in `main`.
pub fn main_if_card() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if std::process::id() != 1 || arguments.next().as_deref() != Some(ARGUMENT) {
        return None;
    }
    let kind = Kind::of(&arguments.next()?)?;
    let given = |word: Option<String>| word.filter(|word| word != "-");
    let (address, gateway) = (given(arguments.next()), given(arguments.next()));
    let cores = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    Some(run(kind, cores, (address.as_deref(), gateway.as_deref())))
}

fn run(kind: Kind, cores: usize, at: (Option<&str>, Option<&str>)) -> ExitCode {
    let begin = || {
        machine::enter(kind)?;
        init::mount();
        init::descriptors();
        machine::messages(kind)
    };
    let messages = match begin() {
        Ok(messages) => messages,
        Err(error) => {
            init::say(&format!("no line to the host: {error}"));
            init::power_off();
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = serve::serve(Line::new(messages), kind, cores, at) {
        init::say(&why);
    }
    init::power_off();
    ExitCode::FAILURE
}
