//! Finds the other programs of the installation, which lie in the same folder.

use std::io;
use std::path::{Path, PathBuf};

/// The path of another of Towpath's programs. The error names what is missing and the remedy.
pub fn find(name: &str) -> io::Result<PathBuf> {
    let exe = std::env::current_exe().map_err(|error| io::Error::new(error.kind(), format!("own path: {error}")))?;
    beside(&exe, name)
}

fn beside(exe: &Path, name: &str) -> io::Result<PathBuf> {
    let path = exe.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    let own = exe.file_name().unwrap_or_default().display();
    let text = format!(
        "{} is missing; install it beside {own}, or build it: cargo build --release --workspace",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let exe = std::env::current_exe().unwrap();
        let own = exe.file_name().unwrap().to_str().unwrap();
        assert_eq!(find(own).unwrap(), exe);
        let error = beside(Path::new("/usr/bin/towpath"), "towpath-none").unwrap_err().to_string();
        assert!(
            error.starts_with("/usr/bin/towpath-none is missing; install it beside towpath, or build it"),
            "{error}"
        );
    }
}
