//! Runs scripts in packetdrill's notation against the real fast and slow path of one host, in virtual time: what the application
//! calls, what the peer sends, and what the stack must send, each at its moment.

mod calls;
mod connection;
mod constants;
mod cursor;
mod descriptors;
mod frame;
mod info;
pub mod notation;
mod options;
mod parse;
mod port;
mod readiness;
mod runner;
pub mod script;
mod segments;
mod settings;

pub use script::Trouble;

/// What happened in a run, line by line, and how it ended.
pub struct Report {
    /// The trace.
    pub trace: Vec<String>,
    /// `Ok` = everything was as the script says.
    pub result: Result<(), Trouble>,
}

/// Reads a script without running it.
pub fn check(text: &str) -> Result<(), Trouble> {
    parse::script(text).map(drop)
}

/// Runs a script of ours: every segment that the stack sends must be in it.
pub fn run(text: &str) -> Report {
    run_as(text, false)
}

/// Runs one of Linux's own scripts, by packetdrill's looser rules: several segments may make up one of the script's (TSO), PSH is
/// not looked at, and what is sent after the last event is nobody's business.
pub fn run_linux(text: &str) -> Report {
    run_as(text, true)
}

fn run_as(text: &str, linux: bool) -> Report {
    let prepared = parse::script(text).and_then(|script| {
        let settings = settings::Settings::of(&script, linux)?;
        Ok((script, settings))
    });
    match prepared {
        Ok((script, settings)) => runner::Runner::new(settings).run(&script),
        Err(trouble) => Report { trace: Vec::new(), result: Err(trouble) },
    }
}
