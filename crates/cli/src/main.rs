//! The `towpath` command.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod cdi;
mod check_config;
mod clock;
mod completions;
mod daemon;
mod doctor;
mod events;
mod exec;
mod json;
mod kernel_stack;
mod locate;
mod log_level;
mod man;
mod metrics;
mod module;
mod move_to;
mod policy;
mod private_file;
mod receive_cpus;
mod reload;
mod reset;
mod run;
#[cfg(test)]
mod samples;
mod serve;
mod sockets;
mod status;
mod stop;
mod top;
mod unit;
mod version;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Runs unmodified programs on a user-space TCP stack, through shared memory.
#[derive(Parser)]
#[command(
    name = "towpath",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  towpath run -- redis-server            starts the service if need be, then redis-server on it
  towpath run -- redis-cli ping          a second program, same service
  towpath sockets -a                     what is open
  sudo towpath serve --interface eth1    a service for a network interface

Exit codes: 0 done; 1 failed; 2 wrong command line; 3 no service, or it refused. `towpath run` ends as the
program does, or with 125 (towpath itself failed), 126 (cannot execute) or 127 (no such program).
Every listing has --json."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with its TCP sockets on Towpath
    Run(run::Arguments),
    /// Run the service in the foreground
    Serve(serve::Arguments),
    /// Run a service of this kernel's own TCP in the foreground
    KernelStack(kernel_stack::Arguments),
    /// List sockets, as `ss -ti` does
    Sockets(sockets::Arguments),
    /// Show the service's workers, counters and clients
    Status(status::Arguments),
    /// Show workers, programs and connections each second
    Top(top::Arguments),
    /// Show what a service counts, for Prometheus
    Metrics(metrics::Arguments),
    /// Show the last rare events of each thread: ends of connections, retransmissions, drops, panics
    Events(events::Arguments),
    /// Capture the frames of a service's connections
    Capture(capture::Arguments),
    /// Let frames go through programs of your own
    Module(module::Arguments),
    /// Set who may connect and listen to what, and how much an application may use
    Policy(policy::Arguments),
    /// Run a program in the kernel of a kernel stack
    Exec(exec::Arguments),
    /// Move the connections of a stack to its standby, or back
    Move(move_to::Arguments),
    /// Judge a configuration file and its policy
    CheckConfig(check_config::Arguments),
    /// Have the service read its configuration file again
    Reload(reload::Arguments),
    /// Show or set which lines the service writes to its log
    LogLevel(log_level::Arguments),
    /// End connections that a new rule would refuse
    Reset(reset::Arguments),
    /// End the service
    Stop(stop::Arguments),
    /// Check this host, and show which sockets of a program are accelerated, and why others are not
    Doctor(doctor::Arguments),
    /// Put services of systemd under Towpath
    Unit(unit::Arguments),
    /// Put containers under Towpath
    Cdi(cdi::Arguments),
    /// Reserve CPUs for the receive path of this host's kernel
    Cores(receive_cpus::Arguments),
    /// Measure beside Linux
    Bench(bench::Arguments),
    /// Show the version
    Version(version::Arguments),
    /// Print the completions of a shell
    Completions(completions::Arguments),
    /// Print a manual page, or write all of them
    Man(man::Arguments),
}

/// Exit codes of the listings.
mod exit {
    /// It failed.
    pub const FAILED: u8 = 1;
    /// The command line is wrong.
    pub const WRONG_LINE: u8 = 2;
    /// There is no service, or it refused.
    pub const NO_SERVICE: u8 = 3;
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::KernelStack(arguments) => kernel_stack::run(arguments),
        Command::Sockets(arguments) => sockets::run(&arguments),
        Command::Status(arguments) => report(status::run(&arguments), arguments.json),
        Command::Top(arguments) => top::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Module(arguments) => report(module::run(&arguments), arguments.json),
        Command::Policy(arguments) => report(policy::run(&arguments), arguments.json),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Move(arguments) => report(move_to::run(&arguments), arguments.json),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Reload(arguments) => report(reload::run(&arguments), arguments.json),
        Command::LogLevel(arguments) => report(log_level::run(&arguments), arguments.json),
        Command::Reset(arguments) => report(reset::run(&arguments), arguments.json),
        Command::Stop(arguments) => report(stop::run(&arguments), arguments.json),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Unit(arguments) => unit::run(&arguments),
        Command::Cdi(arguments) => cdi::run(&arguments),
        Command::Cores(arguments) => receive_cpus::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    }
}

/// Prints the result of a command.
fn report(result: Result<String, locate::NoService>, json: bool) -> ExitCode {
    match result {
        Ok(text) => print(&text),
        Err(error) => fail(&error.to_string(), json, exit::NO_SERVICE),
    }
}

/// Prints on standard output. A closed pipe (`towpath sockets | head -1`) is no failure.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Ends a command with an error: a line on standard error, and with `--json` an object on standard output, too.
fn fail(why: &str, json: bool, code: u8) -> ExitCode {
    if json {
        print(&json::line(&serde_json::json!({ "error": why })));
    }
    complain(why);
    ExitCode::from(code)
}

/// One line on standard error.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "towpath: {text}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} --help has no example", command.get_name());
        }
    }

    #[test]
    fn run_takes_the_programs_own_flags() {
        let line = ["towpath", "run", "-v", "--require", "--", "redis-cli", "-p", "7", "--verbose"];
        let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else { panic!("not run") };
        assert_eq!(run.program(), ["redis-cli", "-p", "7", "--verbose"]);
        // Also without the dashes.
        let line = ["towpath", "run", "curl", "-v", "http://127.0.0.1/"];
        let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else { panic!("not run") };
        assert_eq!(run.program(), ["curl", "-v", "http://127.0.0.1/"]);
    }

    #[test]
    fn units_are_asked_for() {
        let error = Arguments::try_parse_from(["towpath", "serve", "--idle-exit", "30"]).err().unwrap().to_string();
        assert!(error.contains(r#"30 has no unit; write "30us", "30ms" or "30s""#), "{error}");
    }
}
