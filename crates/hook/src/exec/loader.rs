//! How the loader is executed.

use super::library;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The loader's name.
pub const LOADER: &str = "towpath-loader";
/// The library that stands for [`library`] in LD_PRELOAD where images of any libc are run (`preload/start`).
pub const START: &str = "libtowpath_start.so";

/// glibc's linker, and the directory of its libraries, where the container has no glibc of its own.
static GLIBC: OnceLock<[CString; 2]> = OnceLock::new();

/// The loader tells how it was executed: by itself, or by a linker that somebody has named. A child that is to execute another program
/// may not look for it any more.
pub fn executed(executable: &Path) {
    if executable.ends_with(LOADER) {
        return;
    }
    let of = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
    if let Some(glibc) = of(executable).zip(executable.parent().and_then(of)) {
        let _ = GLIBC.set(glibc.into());
    }
}

/// The words that execute the loader; the first is the file. `None`: it is not there.
pub fn words() -> Option<Vec<CString>> {
    let loader = beside(LOADER)?;
    let loader = loader.exists().then(|| CString::new(loader.into_os_string().into_vec()).ok()).flatten()?;
    let mut words = match GLIBC.get() {
        Some([linker, directory]) => vec![linker.clone(), c"--library-path".to_owned(), directory.clone()],
        None => Vec::new(),
    };
    words.push(loader);
    Some(words)
}

/// Is this, in LD_PRELOAD, the library or what stands for it?
pub fn is_ours(name: &[u8]) -> bool {
    let library = library().map(|library| PathBuf::from(OsStr::from_bytes(library.to_bytes())));
    library.is_some_and(|library| is_file(name, &library)) || beside(START).is_some_and(|start| is_file(name, &start))
}

/// Does the name mean this file? A link to its directory gives it another name, under which the loader would be executed for ever.
fn is_file(name: &[u8], file: &Path) -> bool {
    let name = Path::new(OsStr::from_bytes(name));
    let number = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    name == file || name.file_name() == file.file_name() && number(name).is_some_and(|of| number(file) == Some(of))
}

/// Does this variable of an environment preload what stands for the library? Under musl that executes the loader.
pub fn begins(variable: &CStr) -> bool {
    let names = variable.to_bytes().strip_prefix(b"LD_PRELOAD=").unwrap_or_default();
    let start = beside(START);
    start.is_some_and(|start| names.split(|byte| b" :".contains(byte)).any(|name| is_file(name, &start)))
}

/// A file in the library's directory.
fn beside(name: &str) -> Option<PathBuf> {
    Some(Path::new(OsStr::from_bytes(library()?.to_bytes())).with_file_name(OsString::from(name)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_libraries_are_ours_in_ld_preload_and_no_other() {
        let own = library().unwrap().to_bytes();
        let start = beside(START).unwrap();
        assert!(is_ours(own) && is_ours(start.as_os_str().as_bytes()));
        let variable = |value: &[u8]| CString::new([b"LD_PRELOAD=/a.so:", value].concat()).unwrap();
        assert!(begins(&variable(start.as_os_str().as_bytes())) && !begins(&variable(own)) && !begins(c"A=/a.so"));
        assert!(!is_ours(b"libtowpath_start.so") && !is_ours(b"/lib/libtowpath_start.so") && !is_ours(b""));
    }

    #[test]
    fn a_file_is_itself_under_the_name_that_a_link_gives_it() {
        let folder = std::env::temp_dir().join(format!("towpath-loader-{}", std::process::id()));
        let (real, link, other) = (folder.join("real"), folder.join("link"), folder.join("other"));
        for path in [&real, &other] {
            std::fs::create_dir_all(path).unwrap();
            std::fs::write(path.join("a.so"), "").unwrap();
        }
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::fs::hard_link(real.join("a.so"), real.join("b.so")).unwrap();
        let is = |path: PathBuf| is_file(path.as_os_str().as_bytes(), &real.join("a.so"));
        assert!(is(real.join("a.so")) && is(link.join("a.so")));
        assert!(
            !is(other.join("a.so")) && !is(real.join("b.so")) && !is(real.join("none/a.so")) && !is_file(b"", &real)
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
