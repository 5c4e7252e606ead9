//! Programs that a hooked program executes. Programs that load preloaded libraries inherit the library through the
//! environment. The others are executed by the loader, which is in the library's directory.

use crate::program::{self, HookMethod};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The loader's name.
pub const LOADER: &str = "towpath-loader";
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

/// Reports a program that is executed without a hook.
pub(crate) fn left_alone<T>(path: &CStr, why: &str) -> Option<T> {
    if let Some(watcher) = WATCHER.get() {
        (watcher.left_alone)(path, why);
    }
    None
}

fn loader() -> Option<CString> {
    let library = Path::new(OsStr::from_bytes(library()?.to_bytes()));
    let loader = library.with_file_name(LOADER);
    loader.exists().then(|| CString::new(loader.into_os_string().into_vec()).ok()).flatten()
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
    if before.split(|byte| b" :".contains(byte)).any(|name| name == library) {
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
    let Some(library) = library() else { return environment };
    let clean = |entry: CString| {
        let Some(list) = entry.to_bytes().strip_prefix(b"LD_PRELOAD=") else { return Some(entry) };
        let rest: Vec<_> = list
            .split(|byte| b" :".contains(byte))
            .filter(|name| *name != library.to_bytes() && !name.is_empty())
            .collect();
        if rest.is_empty() { None } else { CString::new([b"LD_PRELOAD=", &rest.join(&b':')[..]].concat()).ok() }
    };
    environment.into_iter().filter_map(clean).collect()
}

/// The path of the file behind a descriptor, for programs that are executed by descriptor.
pub fn of_descriptor(fd: c_int) -> Option<CString> {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    // A removed or anonymous file has no path.
    path.exists().then(|| CString::new(path.into_os_string().into_vec()).ok()).flatten()
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
    return crate::inject::possible().is_ok() && loader().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
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
        HookMethod::Preload | HookMethod::Unknown if injected || goes_along => false,
        HookMethod::None(why) => return left_alone(path, why),
        HookMethod::Preload | HookMethod::Unknown if preload(&environment).is_some() => {
            return left_alone(path, "its environment lacks LD_PRELOAD");
        }
        HookMethod::Preload | HookMethod::Unknown | HookMethod::Either(_) => return None,
    };
    if let (HookMethod::Inject(why), false) = (&method, inject) {
        left_alone::<()>(path, why);
    }
    let preload = preload(&environment);
    if !inject && preload.is_none() && !goes_along {
        return None;
    }
    let mut strings = Vec::new();
    let mut list: Vec<*const c_char> = Vec::new();
    let mut file = path.to_owned();
    if inject {
        let Some(loader) = loader() else { return left_alone(path, "towpath-loader is not there") };
        file = loader;
        // Absolute, because other programs see the loader's arguments as the program's name.
        let whole = std::path::absolute(OsStr::from_bytes(path.to_bytes())).ok()?;
        strings.push(CString::new(whole.into_os_string().into_vec()).ok()?);
        list.push(file.as_ptr());
        list.push(strings[0].as_ptr());
        if arguments.is_empty() {
            list.push(strings[0].as_ptr());
        }
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

/// The library's functions, which replace libc's.
pub mod caught {
    use super::*;

    unsafe extern "C" {
        static environ: Strings;
    }

    fn real(name: &CStr) -> usize {
        // SAFETY: `name` is a C string.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
    }

    /// # Safety
    /// The contract of `execve`.
    pub unsafe fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        // SAFETY: the caller keeps the contract of `execve`. The system call is made because a child of `fork` may not
        // look symbols up.
        unsafe {
            let call = |path: *const c_char, argv: Strings, envp: Strings| {
                libc::syscall(libc::SYS_execve, path, argv, envp) as c_int
            };
            if path.is_null() {
                return call(path, argv, envp);
            }
            match substitute(CStr::from_ptr(path), argv, envp, false) {
                Some(new) => call(new.path.as_ptr(), new.arguments.as_ptr(), new.environment.as_ptr()),
                None => call(path, argv, envp),
            }
        }
    }

    /// # Safety
    /// The contract of `execv`.
    pub unsafe fn execv(path: *const c_char, argv: Strings) -> c_int {
        // SAFETY: the caller keeps the contract of this function.
        unsafe { execve(path, argv, environ) }
    }

    /// The file that PATH gives for a name.
    ///
    /// # Safety
    /// A C string or null.
    unsafe fn found(name: *const c_char) -> Option<CString> {
        if name.is_null() {
            return None;
        }
        // SAFETY: the caller keeps the contract of this function.
        let name = OsString::from_vec(unsafe { CStr::from_ptr(name) }.to_bytes().to_vec());
        let path: PathBuf = program::find(&name)?;
        CString::new(path.into_os_string().into_vec()).ok()
    }

    /// # Safety
    /// The contract of `execvpe`.
    pub unsafe fn execvpe(name: *const c_char, argv: Strings, envp: Strings) -> c_int {
        // SAFETY: the caller keeps the contract of `execvpe`, and libc's function has this type.
        unsafe {
            if let Some(new) = found(name).and_then(|path| substitute(&path, argv, envp, false)) {
                let (argv, envp) = (new.arguments.as_ptr(), new.environment.as_ptr());
                return libc::syscall(libc::SYS_execve, new.path.as_ptr(), argv, envp) as c_int;
            }
            let real: Option<unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int> =
                core::mem::transmute(real(c"execvpe"));
            real.map_or(-1, |real| real(name, argv, envp))
        }
    }

    /// # Safety
    /// The contract of `execvp`.
    pub unsafe fn execvp(name: *const c_char, argv: Strings) -> c_int {
        // SAFETY: the caller keeps the contract of this function.
        unsafe { execvpe(name, argv, environ) }
    }

    /// `fexecve`.
    ///
    /// # Safety
    /// The contract of `fexecve`.
    pub unsafe fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        // SAFETY: the caller keeps the contract of this function.
        unsafe {
            match of_descriptor(fd).and_then(|path| substitute(&path, argv, envp, false)) {
                Some(new) => {
                    let (argv, envp) = (new.arguments.as_ptr(), new.environment.as_ptr());
                    libc::syscall(libc::SYS_execve, new.path.as_ptr(), argv, envp) as c_int
                }
                None => libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) as c_int,
            }
        }
    }

    /// A function that takes its arguments one by one.
    #[derive(Clone, Copy, PartialEq, Eq)]
    #[repr(C)]
    pub enum Listed {
        /// `execl`
        Execl = 0,
        /// `execlp`
        Execlp = 1,
        /// `execle`, with the environment behind the null
        Execle = 2,
    }

    /// The `execl` family. The first five arguments were in registers, the others are on the stack.
    ///
    /// # Safety
    /// The contract of the function.
    pub unsafe extern "C" fn listed(
        path: *const c_char,
        registers: *const [*const c_char; 5],
        stack: *const *const c_char,
        which: Listed,
    ) -> c_int {
        let mut words = Vec::new();
        // SAFETY: the caller keeps the contract: the list ends with a null, behind which `execle` has the environment.
        unsafe {
            let word = |at: usize| if at < 5 { (*registers)[at] } else { *stack.add(at - 5) };
            while words.last().is_none_or(|word: &*const c_char| !word.is_null()) {
                words.push(word(words.len()));
            }
            match which {
                Listed::Execl => execve(path, words.as_ptr(), environ),
                Listed::Execlp => execvpe(path, words.as_ptr(), environ),
                Listed::Execle => execve(path, words.as_ptr(), word(words.len()).cast()),
            }
        }
    }

    /// `posix_spawn_file_actions_adddup2`.
    ///
    /// # Safety
    /// The contract of the function.
    pub unsafe fn add_dup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        if let Some(watcher) = WATCHER.get() {
            (watcher.copied)(fd);
        }
        // SAFETY: the caller keeps the contract, and libc's function has this type.
        unsafe {
            let real: Option<unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int> =
                core::mem::transmute(real(c"posix_spawn_file_actions_adddup2"));
            real.map_or(libc::ENOSYS, |real| real(actions, fd, new))
        }
    }

    /// `posix_spawn`, or with `search` `posix_spawnp`.
    ///
    /// # Safety
    /// The contract of the function.
    pub unsafe fn spawn(
        search: bool,
        pid: *mut libc::pid_t,
        name: *const c_char,
        [actions, attributes]: [*const c_void; 2],
        argv: Strings,
        envp: Strings,
    ) -> c_int {
        type Spawn = unsafe extern "C" fn(
            *mut libc::pid_t,
            *const c_char,
            *const c_void,
            *const c_void,
            Strings,
            Strings,
        ) -> c_int;
        // SAFETY: the caller keeps the contract, and libc's functions have this type.
        unsafe {
            let real: Option<Spawn> = core::mem::transmute(real(if search { c"posix_spawnp" } else { c"posix_spawn" }));
            let Some(real) = real else { return libc::ENOSYS };
            let path = match (search, name.is_null()) {
                (true, _) => found(name),
                (false, false) => Some(CStr::from_ptr(name).to_owned()),
                (false, true) => None,
            };
            match path.and_then(|path| substitute(&path, argv, envp, false)) {
                Some(new) => {
                    let (argv, envp) = (new.arguments.as_ptr(), new.environment.as_ptr());
                    real(pid, new.path.as_ptr(), actions, attributes, argv, envp)
                }
                None => real(pid, name, actions, attributes, argv, envp),
            }
        }
    }
}

/// Defines libc's functions that execute programs in a preloaded library.
#[macro_export]
macro_rules! preload_exec {
    () => {
        $crate::preload_exec!(($));
    };
    (($d:tt)) => {
        #[allow(missing_docs, clippy::missing_safety_doc)]
        mod preloaded_exec {
            use $crate::exec::{Strings, caught};
            use $crate::libc::{c_char, c_int, c_void, pid_t};

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::execve(path, argv, envp) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::execv(path, argv) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execvp(name: *const c_char, argv: Strings) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::execvp(name, argv) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execvpe(name: *const c_char, argv: Strings, envp: Strings) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::execvpe(name, argv, envp) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::fexecve(fd, argv, envp) }
            }

            /// A C-variadic function. It saves the five argument registers in order, and passes the address of the
            /// arguments on the stack.
            #[cfg(target_arch = "x86_64")]
            macro_rules! listed {
                ($d($d name:ident = $d which:ident;)*) => { $d(
                    #[unsafe(no_mangle)]
                    #[unsafe(naked)]
                    pub unsafe extern "C" fn $d name() {
                        core::arch::naked_asm!(
                            "sub rsp, 40",
                            "mov [rsp], rsi",
                            "mov [rsp + 8], rdx",
                            "mov [rsp + 16], rcx",
                            "mov [rsp + 24], r8",
                            "mov [rsp + 32], r9",
                            "mov rsi, rsp",
                            "lea rdx, [rsp + 48]",
                            "mov ecx, {which}",
                            "call {listed}",
                            "add rsp, 40",
                            "ret",
                            which = const caught::Listed::$d which as i32,
                            listed = sym caught::listed,
                        )
                    }
                )* };
            }
            #[cfg(target_arch = "x86_64")]
            listed! {
                execl = Execl;
                execlp = Execlp;
                execle = Execle;
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
                actions: *mut c_void,
                fd: c_int,
                new: c_int,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::add_dup2(actions, fd, new) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn posix_spawn(
                pid: *mut pid_t,
                path: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                argv: Strings,
                envp: Strings,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::spawn(false, pid, path, [actions, attributes], argv, envp) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn posix_spawnp(
                pid: *mut pid_t,
                name: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                argv: Strings,
                envp: Strings,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::spawn(true, pid, name, [actions, attributes], argv, envp) }
            }
        }
    };
}
