//! Libraries that a program loads at run time (`dlopen`), and that make system calls of their own.
//!
//! `dlopen` itself is not caught: it looks for libraries where its caller's file says. The dynamic linker counts the
//! libraries that it loads, and that count is compared.

use crate::system_calls;
use core::ffi::{CStr, c_int, c_void};
use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

/// The libraries at the last look.
#[derive(Default)]
struct Loaded {
    /// How many have been loaded by then.
    count: u64,
    names: HashSet<CString>,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

/// A walk over all libraries.
struct Walk {
    /// The count of the last look.
    before: u64,
    now: u64,
    names: Vec<CString>,
}

extern "C" fn visit(library: *mut libc::dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker gives a library, and hands the walk through.
    let (library, walk) = unsafe { (&*library, &mut *walk.cast::<Walk>()) };
    if library.dlpi_adds == walk.before {
        return 1;
    }
    walk.now = library.dlpi_adds;
    if !library.dlpi_name.is_null() {
        // SAFETY: the name is a C string as long as the library is loaded, which it stays during the walk.
        walk.names.push(unsafe { CStr::from_ptr(library.dlpi_name) }.to_owned());
    }
    0
}

/// The libraries that have been loaded since the last call and make calls on sockets or waits themselves. Before the
/// first call there is none: what a program is linked with has been searched when it was started.
pub fn own_calls() -> Vec<PathBuf> {
    // A thread that is interrupted here looks later.
    let Ok(mut loaded) = LOADED.try_lock() else { return Vec::new() };
    let is_first = loaded.is_none();
    let loaded = loaded.get_or_insert_default();
    let mut walk = Walk { before: loaded.count, now: loaded.count, names: Vec::new() };
    // SAFETY: `visit` has the type that is called, and the walk outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    loaded.count = walk.now;
    let new: Vec<_> = walk.names.into_iter().filter(|name| loaded.names.insert(name.clone())).collect();
    if is_first {
        return Vec::new();
    }
    let paths = new.into_iter().map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
    paths.filter(|path| system_calls::are_made_by_library(path)).collect()
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::Command;

    #[test]
    fn a_library_that_is_loaded_later_and_waits_by_itself_is_found_once() {
        let dir = std::env::temp_dir().join(format!("towpath-loaded-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let build = |name: &str, number: u32| {
            let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
            let code =
                "void f(void) { __asm__ volatile(\"mov $NUMBER, %%eax; syscall\" ::: \"rax\", \"rcx\", \"r11\"); }";
            std::fs::write(&source, code.replace("NUMBER", &number.to_string())).unwrap();
            let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
            assert!(gcc.expect("gcc (apt-get install gcc)").success());
            library
        };
        let (waits, plain) = (build("waits", libc::SYS_epoll_wait as u32), build("plain", libc::SYS_getpid as u32));
        let load = |path: &PathBuf| {
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: the library does nothing when it is loaded.
            assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
        };
        let none = Vec::<PathBuf>::new();
        assert_eq!(own_calls(), none, "those that were there");
        load(&plain);
        assert_eq!(own_calls(), none);
        load(&waits);
        assert_eq!(own_calls(), [waits]);
        assert_eq!(own_calls(), none);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
