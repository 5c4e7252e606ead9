//! Calls whose answer depends on the program that this process runs.

use crate::exec;
use crate::raw::raw;
use core::ffi::CStr;
use std::ffi::CString;
use std::sync::OnceLock;

/// The longest path, with its zero.
const PATH_BYTES: usize = 4096;

/// The program's file, and the loader's, which the kernel takes for the program.
static FILES: OnceLock<[CString; 2]> = OnceLock::new();

/// Sets both.
pub fn set(program: CString, loader: CString) {
    let _ = FILES.set([program, loader]);
}

/// `execve`.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn execve(path: u64, argv: u64, envp: u64) -> i64 {
    let call = |path: u64, argv: u64, envp: u64| {
        // SAFETY: the caller keeps the contract of `execve`.
        unsafe { raw(libc::SYS_execve, [path, argv, envp, 0, 0, 0]) }
    };
    if path == 0 {
        return call(path, argv, envp);
    }
    // SAFETY: the caller keeps the contract of `execve`: a C string and two lists.
    unsafe {
        let mut file = CStr::from_ptr(path as *const _);
        if let (b"/proc/self/exe", Some([program, _])) = (file.to_bytes(), FILES.get()) {
            file = program;
        }
        match exec::substitute(file, argv as _, envp as _, true) {
            Some(new) => call(new.path.as_ptr() as u64, new.arguments.as_ptr() as u64, new.environment.as_ptr() as u64),
            None => call(file.as_ptr() as u64, argv, envp),
        }
    }
}

/// `execveat`. It becomes `execve` if what is executed has a path. Otherwise the kernel carries it out, and the new
/// program is hooked only if it loads preloaded libraries.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn execveat(arguments: [u64; 6]) -> i64 {
    let [directory, path, argv, envp, flags, _] = arguments;
    // SAFETY: the caller keeps the contract: null or a C string.
    let absolute = path != 0 && unsafe { (path as *const u8).read() } == b'/';
    if flags == 0 && (absolute || directory as i32 == libc::AT_FDCWD) {
        // SAFETY: the caller keeps the contract of `execveat`, which includes that of `execve`.
        return unsafe { execve(path, argv, envp) };
    }
    // SAFETY: the caller keeps the contract: null or a C string.
    // SAFETY: the caller keeps the contract of `execveat`.
    let new = unsafe {
        exec::file_at(directory as i32, path as _, flags as i32)
            .and_then(|file| exec::substitute(&file, argv as _, envp as _, true))
    };
    if let Some(new) = new {
        let [path, argv, envp] =
            [new.path.as_ptr() as u64, new.arguments.as_ptr() as u64, new.environment.as_ptr() as u64];
        // SAFETY: `new` owns the path and both lists until the call has replaced the program.
        return unsafe { raw(libc::SYS_execve, [path, argv, envp, 0, 0, 0]) };
    }
    exec::announce();
    // SAFETY: the caller keeps the contract of `execveat`.
    unsafe { raw(libc::SYS_execveat, arguments) }
}

/// `readlink` and `readlinkat`. A link to the loader is `/proc/self/exe`: the program's path is returned instead.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn read_link(number: i64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the caller keeps the contract of the system call.
    let length = unsafe { raw(number, arguments) };
    let (buffer, room) =
        if number == libc::SYS_readlink { (arguments[1], arguments[2]) } else { (arguments[2], arguments[3]) };
    let Some([program, loader]) = FILES.get() else { return length };
    let loader = loader.to_bytes();
    if length <= 0 || length as usize > PATH_BYTES || length as usize != loader.len().min(room as usize) {
        return length;
    }
    // SAFETY: the kernel has just written so many bytes there.
    let link = unsafe { core::slice::from_raw_parts_mut(buffer as *mut u8, length as usize) };
    if *link != loader[..length as usize] {
        return length;
    }
    let program = program.to_bytes();
    let count = program.len().min(room as usize);
    // SAFETY: the program has given this much room.
    unsafe { core::ptr::copy_nonoverlapping(program.as_ptr(), buffer as *mut u8, count) };
    count as i64
}
