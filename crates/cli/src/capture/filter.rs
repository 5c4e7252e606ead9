//! The filter: compiled by tcpdump, or given as a program or a module.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use towpath_capture::Program;
use towpath_service::api::FilterModule;

/// Where a system has tcpdump, also if PATH does not name the place.
const TCPDUMP: [&str; 2] = ["tcpdump", "/usr/sbin/tcpdump"];

/// A filter.
#[derive(Debug, Default)]
pub struct Filter {
    program: Option<Program>,
    /// An object that the service judges.
    pub module: Option<FilterModule>,
    /// As the user wrote it.
    pub text: String,
}

impl Filter {
    /// Compiles an expression of tcpdump; none at all lets every frame through.
    pub fn compile(words: &[String]) -> Result<Self, String> {
        if words.is_empty() {
            return Ok(Self::default());
        }
        let text = words.join(" ");
        let output = TCPDUMP.iter().find_map(|tcpdump| {
            // No interface is opened: the frames are Ethernet's whatever carries them.
            let mut command = Command::new(tcpdump);
            command.args(["-ddd", "-y", "EN10MB", "--"]).args(words).stdin(Stdio::null());
            match command.output() {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                other => Some(other),
            }
        });
        let none = "tcpdump is missing, which compiles filters: install it (apt-get install tcpdump), or give the \
                    filter with --bytecode";
        let output = output.ok_or(none)?.map_err(|why| format!("tcpdump: {why}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().last().unwrap_or("tcpdump: failed").into());
        }
        let program =
            Program::parse(&String::from_utf8_lossy(&output.stdout)).map_err(|why| format!("{text}: {why}"))?;
        Ok(Self { program: Some(program), text, module: None })
    }

    /// Takes a program, or the program in `@FILE`.
    pub fn bytecode(code: &str) -> Result<Self, String> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(|why| format!("--bytecode: {path}: {why}"));
        let text = code.strip_prefix('@').map_or_else(|| Ok(code.to_owned()), read)?;
        let program = Program::parse(&text).map_err(|why| format!("--bytecode: {why}"))?;
        Ok(Self { program: Some(program), text: text.trim().replace('\n', ","), module: None })
    }

    /// Takes an XDP object, and the name of its program if it has several.
    pub fn module(object: &Path, program: Option<String>) -> Result<Self, String> {
        let text = program.iter().fold(format!("module {}", object.display()), |text, name| format!("{text} {name}"));
        let (object, _) = crate::module::read(object).map_err(|why| format!("--module: {why}"))?;
        Ok(Self { program: None, module: Some(FilterModule { object, program }), text })
    }

    /// Its instructions, as the service takes them.
    pub fn instructions(&self) -> Vec<(u16, u8, u8, u32)> {
        let all = self.program.iter().flat_map(Program::instructions);
        all.map(|word| (word.code, word.jt, word.jf, word.k)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_is_taken_from_the_line_or_from_a_file() {
        assert_eq!(Filter::bytecode("1,6 0 0 96").unwrap().instructions(), [(6, 0, 0, 96)]);
        let path = std::env::temp_dir().join(format!("towpath-filter-{}", std::process::id()));
        std::fs::write(&path, "1\n6 0 0 96\n").unwrap();
        let from_file = Filter::bytecode(&format!("@{}", path.display())).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((from_file.instructions(), from_file.text.as_str()), (vec![(6, 0, 0, 96)], "1,6 0 0 96"));
        for (wrong, why) in [
            ("1,0 0 0 1", "--bytecode: the last instruction is no return"),
            ("x", "--bytecode: \"x\" is no instruction: four numbers are needed, as `tcpdump -ddd` prints them"),
            ("@/nonexistent/x", "--bytecode: /nonexistent/x: No such file or directory (os error 2)"),
        ] {
            assert_eq!(Filter::bytecode(wrong).unwrap_err(), why);
        }
    }

    #[test]
    fn tcpdump_compiles_an_expression_and_says_what_is_wrong_with_it() {
        if Command::new("tcpdump").arg("--version").output().is_err() {
            eprintln!("tcpdump is missing: apt-get install -y tcpdump");
            return;
        }
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(Filter::compile(&words("tcp port 80")).unwrap().instructions().len(), 20);
        let why = Filter::compile(&words("foo bar")).unwrap_err();
        assert!(why.starts_with("tcpdump: "), "{why}");
        // A word that looks like an option of tcpdump is none.
        assert!(Filter::compile(&words("-w /nonexistent/x")).unwrap_err().starts_with("tcpdump: "));
        assert!(Filter::compile(&[]).unwrap().instructions().is_empty());
    }
}
