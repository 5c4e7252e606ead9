//! The library's functions that replace libc's, and [`preload_exec`](crate::preload_exec), which gives them their names.

use super::{Strings, WATCHER, announce, file_at, substitute};
use crate::program;
use libc::{FILE, c_char, c_int, c_long, c_void};
use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

unsafe extern "C" {
    static environ: Strings;
}

fn real(name: &CStr) -> usize {
    // SAFETY: `name` is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// A system call past all hooks, with its failure in `errno`. A child of `fork` may not look symbols up, and libc's `syscall`
/// is caught too.
///
/// # Safety
/// The contract of the system call.
unsafe fn by_kernel(number: c_long, arguments: [u64; 6]) -> c_int {
    // SAFETY: the caller keeps the contract of the system call.
    match unsafe { crate::raw::raw(number, arguments) } {
        errno @ -4095..=-1 => crate::failed_with(errno) as c_int,
        answer => answer as c_int,
    }
}

/// # Safety
/// The contract of `execve`.
unsafe fn execute(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller keeps the contract of `execve`.
    unsafe { by_kernel(libc::SYS_execve, [path as u64, argv as u64, envp as u64, 0, 0, 0]) }
}

/// # Safety
/// The contract of `execve`.
pub unsafe fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller keeps the contract of `execve`.
    unsafe {
        if path.is_null() {
            return execute(path, argv, envp);
        }
        match substitute(CStr::from_ptr(path), argv, envp, false) {
            Some(new) => execute(new.path.as_ptr(), new.arguments.as_ptr(), new.environment.as_ptr()),
            None => execute(path, argv, envp),
        }
    }
}

/// # Safety
/// The contract of `execveat`.
pub unsafe fn execveat(directory: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of `execveat`.
    unsafe {
        match file_at(directory, path, flags).and_then(|file| substitute(&file, argv, envp, false)) {
            Some(new) => execute(new.path.as_ptr(), new.arguments.as_ptr(), new.environment.as_ptr()),
            None => {
                announce();
                let arguments = [directory as u64, path as u64, argv as u64, envp as u64, flags as u64, 0];
                by_kernel(libc::SYS_execveat, arguments)
            }
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
            return execute(new.path.as_ptr(), new.arguments.as_ptr(), new.environment.as_ptr());
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
    unsafe { execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) }
}

/// `system`. libc starts the shell by itself.
///
/// # Safety
/// The contract of the function.
pub unsafe fn system(command: *const c_char) -> c_int {
    announce();
    // SAFETY: the caller keeps the contract, and libc's function has this type.
    unsafe {
        let real: Option<unsafe extern "C-unwind" fn(*const c_char) -> c_int> = core::mem::transmute(real(c"system"));
        real.map_or(-1, |real| real(command))
    }
}

/// `popen`. libc starts the shell by itself.
///
/// # Safety
/// The contract of the function.
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    announce();
    // SAFETY: the caller keeps the contract, and libc's function has this type.
    unsafe {
        let real: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE> =
            core::mem::transmute(real(c"popen"));
        real.map_or(core::ptr::null_mut(), |real| real(command, mode))
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

/// How many listed arguments come in registers, behind the path.
const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 5 } else { 7 };

/// The `execl` family. The first arguments were in registers, the others are on the stack.
///
/// # Safety
/// The contract of the function.
pub unsafe extern "C" fn listed(
    path: *const c_char,
    registers: *const [*const c_char; IN_REGISTERS],
    stack: *const *const c_char,
    which: Listed,
) -> c_int {
    let mut words = Vec::new();
    // SAFETY: the caller keeps the contract: the list ends with a null, behind which `execle` has the environment.
    unsafe {
        let word = |at: usize| if at < IN_REGISTERS { (*registers)[at] } else { *stack.add(at - IN_REGISTERS) };
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

/// libc's functions that start a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spawn {
    /// `posix_spawn`
    Path,
    /// `posix_spawnp`
    Search,
    /// `pidfd_spawn` (glibc 2.39)
    PidfdPath,
    /// `pidfd_spawnp`
    PidfdSearch,
}

impl Spawn {
    fn name(self) -> &'static CStr {
        match self {
            Self::Path => c"posix_spawn",
            Self::Search => c"posix_spawnp",
            Self::PidfdPath => c"pidfd_spawn",
            Self::PidfdSearch => c"pidfd_spawnp",
        }
    }
}

/// `posix_spawn` and the like. `child`: where the number of the child goes, or a descriptor of it.
///
/// # Safety
/// The contract of the function.
pub unsafe fn spawn(
    which: Spawn,
    child: *mut c_int,
    name: *const c_char,
    [actions, attributes]: [*const c_void; 2],
    argv: Strings,
    envp: Strings,
) -> c_int {
    type Real =
        unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
    // SAFETY: the caller keeps the contract, and libc's functions have this type.
    unsafe {
        let real: Option<Real> = core::mem::transmute(real(which.name()));
        let Some(real) = real else { return libc::ENOSYS };
        let search = matches!(which, Spawn::Search | Spawn::PidfdSearch);
        let path = match (search, name.is_null()) {
            (true, _) => found(name),
            (false, false) => Some(CStr::from_ptr(name).to_owned()),
            (false, true) => None,
        };
        match path.and_then(|path| substitute(&path, argv, envp, false)) {
            Some(new) => {
                let (argv, envp) = (new.arguments.as_ptr(), new.environment.as_ptr());
                real(child, new.path.as_ptr(), actions, attributes, argv, envp)
            }
            None => real(child, name, actions, attributes, argv, envp),
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
            use $crate::libc::{FILE, c_char, c_int, c_void};

            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::system(command) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::popen(command, mode) }
            }
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execveat(
                directory: c_int,
                path: *const c_char,
                argv: Strings,
                envp: Strings,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { caught::execveat(directory, path, argv, envp, flags) }
            }
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
            /// A C-variadic function. It saves the seven registers of the listed arguments in order, and passes the
            /// address of the arguments on the stack.
            #[cfg(target_arch = "aarch64")]
            macro_rules! listed {
                ($d($d name:ident = $d which:ident;)*) => { $d(
                    #[unsafe(no_mangle)]
                    #[unsafe(naked)]
                    pub unsafe extern "C" fn $d name() {
                        core::arch::naked_asm!(
                            "stp x29, x30, [sp, #-80]!",
                            "mov x29, sp",
                            "stp x1, x2, [sp, #16]",
                            "stp x3, x4, [sp, #32]",
                            "stp x5, x6, [sp, #48]",
                            "str x7, [sp, #64]",
                            "add x1, sp, #16",
                            "add x2, sp, #80",
                            "mov w3, #{which}",
                            "bl {listed}",
                            "ldp x29, x30, [sp], #80",
                            "ret",
                            which = const caught::Listed::$d which as i32,
                            listed = sym caught::listed,
                        )
                    }
                )* };
            }
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
            macro_rules! spawns {
                ($d($d name:ident = $d which:ident;)*) => { $d(
                    #[unsafe(no_mangle)]
                    pub unsafe extern "C" fn $d name(
                        child: *mut c_int,
                        program: *const c_char,
                        actions: *const c_void,
                        attributes: *const c_void,
                        argv: Strings,
                        envp: Strings,
                    ) -> c_int {
                        let how = caught::Spawn::$d which;
                        // SAFETY: the caller keeps the contract of this function.
                        unsafe { caught::spawn(how, child, program, [actions, attributes], argv, envp) }
                    }
                )* };
            }
            spawns! {
                posix_spawn = Path;
                posix_spawnp = Search;
                pidfd_spawn = PidfdPath;
                pidfd_spawnp = PidfdSearch;
            }
        }
    };
}
