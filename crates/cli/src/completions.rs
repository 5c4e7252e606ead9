//! `towpath completions`: what a shell offers when Tab is pressed.

use crate::print;
use clap::CommandFactory;
use clap_complete::Shell;
use std::process::ExitCode;

/// Prints the completions of a shell, made of this very command line.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  source <(towpath completions bash)      for this shell
  towpath completions zsh > ~/.zfunc/_towpath
  towpath completions fish > ~/.config/fish/completions/towpath.fish

`make install` installs those of bash, zsh and fish.")]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints them.
pub fn run(arguments: &Arguments) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "towpath", &mut text);
    print(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_is_offered_every_command() {
        for shell in Shell::value_variants() {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut crate::Arguments::command(), "towpath", &mut text);
            let text = String::from_utf8_lossy(&text);
            for command in crate::Arguments::command().get_subcommands() {
                assert!(text.contains(command.get_name()), "{shell} is not offered {}", command.get_name());
            }
        }
    }
}
