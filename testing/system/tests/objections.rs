//! The commands in `docs/internals/objections.md` work.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use towpath_system_tests::{Program, Scratch, bin_dir, require_program};

const PAGE: &str = include_str!("../../../docs/internals/objections.md");

/// The command of each row: the last text between backquotes.
fn commands() -> Vec<&'static str> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    rows.map(|row| row.rsplit('`').nth(1).expect("a command")).collect()
}

/// A user's shell that finds `towpath`, with a place for its services in `scratch`.
fn shell(scratch: &Scratch, line: &str) -> Program {
    let path = format!("{}:{}", bin_dir().display(), std::env::var("PATH").unwrap_or_default());
    Program::new(&["sh", "-c"]).arg(line).env("PATH", path).env("XDG_RUNTIME_DIR", &scratch.0)
}

#[test]
fn every_objection_has_a_command_that_works() {
    require_program("linux.uml", "user-mode-linux");
    require_program("sysctl", "procps");
    let commands = commands();
    assert_eq!(commands.len(), 14);
    let scratch = Scratch::new("objections");
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    shell(&scratch, "towpath run --stack kernel=uml -- true").run(120).ok();
    for command in commands {
        let words: Vec<&str> = command.trim_start_matches("sudo ").split_whitespace().collect();
        match words[..] {
            // Commands that take minutes are not run. They must only exist.
            ["make", target] => {
                let makefile = std::fs::read_to_string(root.join("Makefile")).expect("Makefile");
                assert!(makefile.contains(&format!("\n{target}: ")), "{command}");
            }
            ["cargo", "test", "-p", package, "--test", test] => {
                let name = package.trim_start_matches("towpath-");
                assert!(root.join(format!("crates/{name}/tests/{test}.rs")).exists(), "{command}");
            }
            ["towpath", "bench", which] => {
                shell(&scratch, &format!("towpath bench {which} --help")).run(30).ok();
            }
            ["towpath", ..] => {
                let ran = shell(&scratch, command).run(60);
                println!("$ {command}\n{}{}", ran.out, ran.err);
                assert_eq!(ran.code, 0, "{command}: {}{}", ran.out, ran.err);
            }
            _ => panic!("no known kind of command: {command}"),
        }
    }
    shell(&scratch, "towpath stop --stack kernel=uml").run(30).ok();
}
