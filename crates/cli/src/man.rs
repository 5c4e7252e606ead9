//! `towpath man`: manual pages, made of the command line's own definition.

use crate::{complain, exit, print};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use towpath_service::daemon_line::DaemonLine;

/// Prints a manual page, or writes all of them. They say what `--help` says.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath man run | man -l -
  towpath man module add | man -l -
  towpath man towpathd | man -l -
  towpath man --to /usr/local/share/man/man1

`make install` installs all of them: `man towpath-run`, `man towpath-module-add`, `man towpathd`.")]
pub struct Arguments {
    /// The command, e.g. `run` or `module add`, or `towpathd`, the service [default: towpath itself]
    #[arg(value_name = "COMMAND", conflicts_with = "to")]
    command: Vec<String>,
    /// Write the pages of all commands to this directory, which is made if it is missing
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints or writes them.
pub fn run(arguments: &Arguments) -> ExitCode {
    let pages = pages();
    if let Some(directory) = &arguments.to {
        return match write(&pages, directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(&why, exit::FAILED),
        };
    }
    if arguments.command == [DAEMON] {
        return print(&daemon_page());
    }
    let wanted = ["towpath"].into_iter().chain(arguments.command.iter().map(String::as_str));
    let wanted = wanted.collect::<Vec<_>>().join("-");
    match pages.iter().find(|page| page.name == wanted) {
        Some(page) => print(&page.text),
        None => {
            let why = format!("no command `towpath {}`; `towpath --help` lists them", arguments.command.join(" "));
            failed(&why, exit::WRONG_LINE)
        }
    }
}

fn failed(why: &str, code: u8) -> ExitCode {
    complain(why);
    ExitCode::from(code)
}

/// The program that has a page of its own, in the section of those that administrators run.
const DAEMON: &str = "towpathd";

fn daemon_page() -> String {
    let mut text = Vec::new();
    // Memory takes everything.
    let _ = render(DaemonLine::command(), DAEMON, "8", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// A page, and its name without the section.
struct Page {
    name: String,
    text: String,
}

/// The pages of `towpath` and of all its commands.
fn pages() -> Vec<Page> {
    let mut whole = crate::Arguments::command().disable_help_subcommand(true);
    whole.build();
    let mut pages = Vec::new();
    add(whole, "towpath", &mut pages);
    pages
}

fn add(command: Command, name: &str, pages: &mut Vec<Page>) {
    for inner in command.get_subcommands() {
        add(inner.clone(), &format!("{name}-{}", inner.get_name()), pages);
    }
    let mut text = Vec::new();
    // Memory takes everything.
    let _ = render(command.display_name(name), name, "1", &mut text);
    pages.push(Page { name: name.to_owned(), text: String::from_utf8_lossy(&text).into_owned() });
}

/// Writes a page, with the end of `--help` line by line as it stands there.
fn render(command: Command, name: &str, section: &str, text: &mut Vec<u8>) -> io::Result<()> {
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let inner = command.has_subcommands();
    let source = concat!("towpath ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).title(name.to_uppercase()).section(section).source(source).manual("Towpath");
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    if inner {
        man.render_subcommands_section(text)?;
    }
    let mut last = Roff::new();
    last.control("SH", ["EXAMPLES AND NOTES"]).control("nf", []);
    for line in end.lines() {
        last.text([roman(line)]);
    }
    last.control("fi", []);
    last.to_writer(text)
}

fn write(pages: &[Page], directory: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for page in pages {
        let path = directory.join(format!("{}.1", page.name));
        fs::write(&path, &page.text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let pages = pages();
        let of = |name: &str| pages.iter().find(|page| page.name == name).map(|page| page.text.as_str());
        for command in crate::Arguments::command().get_subcommands() {
            let name = format!("towpath-{}", command.get_name());
            let text = of(&name).unwrap_or_default();
            assert!(
                text.contains(".SH \"EXAMPLES AND NOTES\"") && text.contains("Example"),
                "{name} is not whole: {text}"
            );
        }
        let daemon = daemon_page();
        for part in [".TH TOWPATHD 8", "TOWPATH_LOG", "interface", "Examples:"] {
            assert!(daemon.contains(part), "{part} is missing in {daemon}");
        }
        assert!(of("towpath-run").is_some_and(|text| text.contains("require")));
        assert!(of("towpath-module-add").is_some_and(|text| text.contains("priority")));
    }
}
