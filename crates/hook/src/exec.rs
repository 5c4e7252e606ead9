//! Programs that a hooked program executes. Programs that load preloaded libraries inherit the library through the
//! environment. The others are executed by the loader, which is in the library's directory.

pub mod caught;
pub(crate) mod loader;

pub use loader::{LOADER, START};

use crate::program::{self, HookMethod};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

/// Environment variable with the user's choice of a hook: `preload` or `inject`. Any other value leaves the choice to
/// the library.
pub const VARIABLE: &str = "TOWPATH_HOOK";
/// A program without this variable in its environment is not hooked.
const SERVICE: &str = "TOWPATH_SOCKET";
const PRELOAD: &str = "LD_PRELOAD";
/// Valgrind's launcher sets this variable for its static tool, which preloads the library into the real program itself.
const VALGRIND: &str = "VALGRIND_LAUNCHER";

/// A null-terminated list of C strings.
pub type Strings = *const *const c_char;

/// The file from which this library was loaded.
pub fn library() -> Option<&'static CStr> {
    static LIBRARY: OnceLock<Option<CString>> = OnceLock::new();
    let found = LIBRARY.get_or_init(|| {
        // SAFETY: an all-zero Dl_info is valid, and the address is in this library.
        let name = unsafe {
            let mut about: libc::Dl_info = core::mem::zeroed();
            if libc::dladdr(library as *const c_void, &raw mut about) == 0 || about.dli_fname.is_null() {
                return None;
            }
            CStr::from_ptr(about.dli_fname)
        };
        let path = Path::new(OsStr::from_bytes(name.to_bytes())).canonicalize().ok()?;
        CString::new(path.into_os_string().into_vec()).ok()
    });
    found.as_deref()
}

/// Functions that are called for every program that is executed.
#[derive(Clone, Copy)]
pub struct Watcher {
    /// Before each program: variables (`NAME=value`) that its environment must have.
    pub executing: fn() -> Vec<CString>,
    /// `posix_spawn` will make a copy of this descriptor for a program.
    pub copied: fn(c_int),
    /// This program is executed without a hook, for this reason.
    pub left_alone: fn(&CStr, &str),
}

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Sets the watcher.
pub fn watch(watcher: Watcher) {
    let _ = WATCHER.set(watcher);
}

/// A program is about to be executed that inherits this one's descriptors, and may be hooked although nothing was
/// substituted for it.
pub(crate) fn announce() {
    if let Some(watcher) = WATCHER.get() {
        (watcher.executing)();
    }
}

/// Reports a program that is executed without a hook.
pub(crate) fn left_alone<T>(path: &CStr, why: &str) -> Option<T> {
    if let Some(watcher) = WATCHER.get() {
        (watcher.left_alone)(path, why);
    }
    None
}

/// # Safety
/// A null-terminated list of C strings, or null.
unsafe fn strings<'a>(list: Strings) -> Vec<&'a CStr> {
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the caller keeps the contract, and the walk ends at the null.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            found.push(CStr::from_ptr(*at));
            at = at.add(1);
        }
    }
    found
}

fn value<'a>(environment: &[&'a CStr], name: &str) -> Option<&'a [u8]> {
    environment
        .iter()
        .find_map(|entry| entry.to_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")))
}

/// LD_PRELOAD with the library added; `None` = it contains the library already.
fn preload(environment: &[&CStr]) -> Option<CString> {
    let library = library()?.to_bytes();
    let before = value(environment, PRELOAD).unwrap_or_default();
    if before.split(|byte| b" :".contains(byte)).any(loader::is_ours) {
        return None;
    }
    let mut entry = [PRELOAD.as_bytes(), b"=", library].concat();
    if !before.is_empty() {
        entry.push(b':');
        entry.extend(before);
    }
    CString::new(entry).ok()
}

/// The environment for a program whose linker must not find the library.
pub fn without_library(environment: Vec<CString>) -> Vec<CString> {
    let clean = |entry: CString| {
        let Some(list) = entry.to_bytes().strip_prefix(b"LD_PRELOAD=") else { return Some(entry) };
        let rest: Vec<_> =
            list.split(|byte| b" :".contains(byte)).filter(|name| !loader::is_ours(name) && !name.is_empty()).collect();
        if rest.is_empty() { None } else { CString::new([b"LD_PRELOAD=", &rest.join(&b':')[..]].concat()).ok() }
    };
    environment.into_iter().filter_map(clean).collect()
}

/// A path of the file behind a descriptor, for programs that are executed by descriptor. A removed or anonymous file
/// has only that of the descriptor, which must then stay open for the loader.
pub fn of_descriptor(fd: c_int) -> Option<CString> {
    let link = format!("/proc/self/fd/{fd}");
    let path = std::fs::read_link(&link).ok()?;
    if path.exists() {
        return CString::new(path.into_os_string().into_vec()).ok();
    }
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags & libc::FD_CLOEXEC == 0).then(|| CString::new(link).ok()).flatten()
}

/// The file that `execveat` would execute; `None`: it has no path.
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn file_at(directory: c_int, path: *const c_char, flags: c_int) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller keeps the contract of this function.
    let path = unsafe { CStr::from_ptr(path) };
    match path.to_bytes() {
        b"" if flags == libc::AT_EMPTY_PATH => of_descriptor(directory),
        b"" => None,
        _ if flags != 0 => None,
        [b'/', ..] => Some(path.to_owned()),
        _ if directory == libc::AT_FDCWD => Some(path.to_owned()),
        relative => CString::new([of_descriptor(directory)?.to_bytes(), b"/", relative].concat()).ok(),
    }
}

/// The call of the loader that replaces the execution of a program.
pub struct Substitute {
    /// The file.
    pub path: CString,
    /// The arguments, with a null at the end.
    pub arguments: Vec<*const c_char>,
    /// The environment, with a null at the end.
    pub environment: Vec<*const c_char>,
    /// The strings to which the lists point, where they are new.
    _strings: Vec<CString>,
}

/// The variables for which the [`Watcher`] asks and which the environment lacks.
fn missing(environment: &[&CStr]) -> Vec<CString> {
    let mut wanted = WATCHER.get().map_or_else(Vec::new, |watcher| (watcher.executing)());
    wanted.retain(|entry| {
        let name = entry.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        !environment.iter().any(|has| has.to_bytes().strip_prefix(name).is_some_and(|rest| rest.starts_with(b"=")))
    });
    wanted
}

fn can_inject() -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::inject::possible().is_ok() && loader::words().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The execution of a program that must not load the library, because it would only see a part of the program's calls.
fn unhooked(path: &CStr, arguments: &[&CStr], environment: &[&CStr]) -> Option<Substitute> {
    if preload(environment).is_some() || !program::loads_libraries(Path::new(OsStr::from_bytes(path.to_bytes()))) {
        return None;
    }
    let file = path.to_owned();
    let strings = without_library(environment.iter().map(|entry| (*entry).to_owned()).collect());
    let end = core::iter::once(core::ptr::null());
    let environment = strings.iter().map(|entry| entry.as_ptr()).chain(end.clone()).collect();
    let arguments = arguments.iter().map(|argument| argument.as_ptr()).chain(end).collect();
    Some(Substitute { path: file, arguments, environment, _strings: strings })
}

/// The program to execute instead of `path`; `None` = `path` itself. `injected`: the caller is an injected program,
/// whose environment may lack the library.
///
/// # Safety
/// The contract of `execve`.
pub unsafe fn substitute(path: &CStr, argv: Strings, envp: Strings, injected: bool) -> Option<Substitute> {
    // SAFETY: the caller keeps the contract of this function.
    let (arguments, environment) = unsafe { (strings(argv), strings(envp)) };
    let added = missing(&environment);
    let goes_along = !added.is_empty();
    if !goes_along && value(&environment, SERVICE).is_none() {
        return left_alone(path, "its environment lacks TOWPATH_SOCKET");
    }
    let chosen = value(&environment, VARIABLE).unwrap_or_default();
    let method = match program::method_for(Path::new(OsStr::from_bytes(path.to_bytes()))) {
        HookMethod::Either(why) if chosen != b"preload" && value(&environment, VALGRIND).is_none() && can_inject() => {
            HookMethod::Inject(why)
        }
        HookMethod::Either(_) => HookMethod::Preload,
        method => method,
    };
    let inject = match &method {
        HookMethod::Inject(_) if value(&environment, VALGRIND).is_some() => return None,
        HookMethod::Inject(_) => chosen != b"preload",
        HookMethod::Preload if chosen == b"inject" => true,
        HookMethod::Preload | HookMethod::PreloadOnly(_) | HookMethod::Unknown if injected || goes_along => false,
        HookMethod::None(why) => {
            left_alone::<()>(path, why);
            return unhooked(path, &arguments, &environment);
        }
        HookMethod::Preload | HookMethod::PreloadOnly(_) | HookMethod::Unknown if preload(&environment).is_some() => {
            return left_alone(path, "its environment lacks LD_PRELOAD");
        }
        HookMethod::Preload | HookMethod::PreloadOnly(_) | HookMethod::Unknown | HookMethod::Either(_) => return None,
    };
    if let (HookMethod::Inject(why), false) = (&method, inject) {
        left_alone::<()>(path, why);
        if let Some(new) = unhooked(path, &arguments, &environment) {
            return Some(new);
        }
    }
    let preload = preload(&environment);
    if !inject && preload.is_none() && !goes_along {
        return None;
    }
    let mut strings = Vec::new();
    let mut list: Vec<*const c_char> = Vec::new();
    let mut file = path.to_owned();
    if inject {
        let Some(words) = loader::words() else { return left_alone(path, "towpath-loader is not there") };
        file.clone_from(words.first()?);
        // Absolute, because other programs see the loader's arguments as the program's name.
        let whole = std::path::absolute(OsStr::from_bytes(path.to_bytes())).ok()?;
        let whole = CString::new(whole.into_os_string().into_vec()).ok()?;
        list.extend(words.iter().chain([&whole]).map(|word| word.as_ptr()));
        if arguments.is_empty() {
            list.push(whole.as_ptr());
        }
        strings.extend(words);
        strings.push(whole);
    }
    list.extend(arguments.iter().map(|argument| argument.as_ptr()));
    list.push(core::ptr::null());
    let mut variables: Vec<*const c_char> = Vec::new();
    let kept = environment.iter().filter(|entry| preload.is_none() || !entry.to_bytes().starts_with(b"LD_PRELOAD="));
    variables.extend(kept.map(|entry| entry.as_ptr()));
    if let Some(preload) = preload {
        variables.push(preload.as_ptr());
        strings.push(preload);
    }
    for entry in added {
        variables.push(entry.as_ptr());
        strings.push(entry);
    }
    variables.push(core::ptr::null());
    Some(Substitute { path: file, arguments: list, environment: variables, _strings: strings })
}
