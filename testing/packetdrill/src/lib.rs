//! Runs scripts in packetdrill's notation against the real fast and slow path of one host, in virtual time. A script
//! has the application's calls, the peer's segments, and the segments that the stack must send, each with its time.
#![forbid(unsafe_code)]

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
mod pending_call;
mod port;
mod readiness;
mod runner;
pub mod script;
mod segments;
mod settings;

pub use script::ScriptError;

/// The trace of a run, line by line, and its result.
pub struct Report {
    /// The trace.
    pub trace: Vec<String>,
    /// `Ok` = all events were as in the script.
    pub result: Result<(), ScriptError>,
}

/// Parses a script without running it.
pub fn check(text: &str) -> Result<(), ScriptError> {
    parse::script(text).map(drop)
}

/// Runs a script of ours: every segment that the stack sends must be in it.
pub fn run(text: &str) -> Report {
    run_as(text, false)
}

/// Runs one of Linux's own scripts by packetdrill's looser rules. Several segments may make up one of the script's
/// (TSO), PSH is ignored, and segments after the last event are allowed.
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
        Err(error) => Report { trace: Vec::new(), result: Err(error) },
    }
}
