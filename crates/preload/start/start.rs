//! `libtowpath_start.so` is preloaded into the programs of containers, whose libc nobody knows before they start.
//!
//! glibc's linker loads `libtowpath.so` with it, as its auxiliary library (`build.rs`), and there is nothing left to do. musl's
//! linker loads this file alone. It then executes `towpath-loader` in the program's place, by the host's glibc, which the
//! container has beside the libraries. The loader maps the program and becomes it.
//!
//! It calls only functions that both libcs have. So it is without Rust's library.
#![no_std]

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::ptr;

/// This library's name, and before it the end of its directory.
const OWN: &[u8] = b"/libtowpath_start.so";
/// What stands behind the directory in the paths of what is executed.
const GLIBC: &[u8] = b"-glibc";
const LINKER: &[u8] = b"-glibc/ld-linux-x86-64.so.2";
const LOADER: &[u8] = b"/towpath-loader";
/// The linker of programs with musl is `/lib/ld-musl-x86_64.so.1`.
const MUSL: &[u8] = b"/ld-musl-";
/// Auxiliary values: the program's headers, their size, how many, and bytes at random, which lie above the environment.
const AT_PHDR: c_ulong = 3;
const AT_PHENT: c_ulong = 4;
const AT_PHNUM: c_ulong = 5;
const AT_RANDOM: c_ulong = 25;
/// Bytes of a program header, and its types.
const HEADER: u64 = 56;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
/// `X_OK` of `access`.
const EXECUTABLE: c_int = 1;
/// PROT_READ and PROT_WRITE, MAP_PRIVATE and MAP_ANONYMOUS.
const READ_WRITE: c_int = 3;
const PRIVATE: c_int = 0x22;
/// The exit code of `towpath run` if Towpath itself has failed.
const FAILED: c_int = 125;
/// The words before the program's own arguments.
const WORDS: usize = 5;
/// The longest path, with its zero.
const PATH: usize = 4096;

type Strings = *const *const c_char;

#[link(name = "c")]
unsafe extern "C" {
    static __environ: Strings;
    fn getauxval(kind: c_ulong) -> c_ulong;
    fn readlink(path: *const c_char, into: *mut u8, room: usize) -> isize;
    fn access(path: *const u8, mode: c_int) -> c_int;
    fn mmap(at: *mut c_void, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    fn write(fd: c_int, from: *const u8, bytes: usize) -> isize;
    fn _exit(code: c_int) -> !;
    fn abort() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes no arguments.
    unsafe { abort() }
}

/// musl calls it without arguments.
#[used]
// SAFETY: libc calls the functions of this section before `main`.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: libc has started this program, so the kernel's auxiliary values and the environment are there.
    unsafe {
        if !is_musl() || value(b"TOWPATH_SOCKET=").is_none() {
            return;
        }
        let failed = execute();
        if value(b"TOWPATH_REQUIRE=") == Some(b"1") {
            for part in [b"towpath: a program with musl cannot be served: ", failed, b"\n"] {
                write(2, part.as_ptr(), part.len());
            }
            _exit(FAILED);
        }
    }
}

/// Has musl's linker loaded the program? The program's headers tell which linker it names.
///
/// # Safety
/// The auxiliary values are the kernel's.
unsafe fn is_musl() -> bool {
    // SAFETY: the kernel has put the headers there, and whoever has mapped the program its linker's name.
    unsafe {
        let (table, count) = (getauxval(AT_PHDR), getauxval(AT_PHNUM));
        if table == 0 || getauxval(AT_PHENT) != HEADER {
            return false;
        }
        // The type is the first word of a header, and the address the third of eight bytes.
        let find = |kind: u32| {
            let mut headers = (0..count).map(|number| table + number * HEADER);
            headers.find(|at| (*at as *const u32).read() == kind).map(|at| (at as *const u64).add(2).read())
        };
        let (Some(own), Some(name)) = (find(PT_PHDR), find(PT_INTERP)) else { return false };
        let name = CStr::from_ptr(table.wrapping_sub(own).wrapping_add(name) as *const c_char);
        name.to_bytes().windows(MUSL.len()).any(|part| part == MUSL)
    }
}

/// The value of a variable of the environment. The name has its `=`.
///
/// # Safety
/// The environment is a list of C strings.
unsafe fn value(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: the caller keeps the contract, and the walk ends at the null.
    unsafe {
        let mut at = __environ;
        while !at.is_null() && !(*at).is_null() {
            let entry: &'static [u8] = CStr::from_ptr(*at).to_bytes();
            if let Some(value) = entry.strip_prefix(name) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// The directory of this library, whose path LD_PRELOAD has.
fn directory(preloaded: &[u8]) -> Option<&[u8]> {
    preloaded.split(|byte| b" :".contains(byte)).find_map(|path| path.strip_suffix(OWN))
}

/// Executes the loader in the program's place. It returns only if it cannot: the reason.
///
/// # Safety
/// As [`value`].
unsafe fn execute() -> &'static [u8] {
    let (mut linker, mut glibc, mut loader, mut program) = ([0; PATH], [0; PATH], [0; PATH], [0; PATH]);
    // SAFETY: the caller keeps the contract. All strings end with a zero, because the last byte of each buffer stays one.
    unsafe {
        let Some(directory) = value(b"LD_PRELOAD=").and_then(directory) else {
            return b"LD_PRELOAD does not have the path of libtowpath_start.so";
        };
        let joined = [(&mut linker, LINKER), (&mut glibc, GLIBC), (&mut loader, LOADER)];
        if !joined.into_iter().all(|(path, end)| join(path, directory, end)) {
            return b"the path of libtowpath_start.so is too long";
        }
        // A script's name is not its interpreter's, which this process runs.
        let length = readlink(c"/proc/self/exe".as_ptr(), program.as_mut_ptr(), PATH - 1);
        if length <= 0 || access(program.as_ptr(), EXECUTABLE) != 0 {
            return b"/proc/self/exe does not lead to its file";
        }
        let Some((arguments, count)) = arguments() else { return b"its arguments are not where the kernel has put them" };
        let bytes = (WORDS + count.max(1) + 1) * size_of::<*const c_char>();
        let list = mmap(ptr::null_mut(), bytes, READ_WRITE, PRIVATE, -1, 0);
        if list as isize == -1 {
            return b"there is no memory for its arguments";
        }
        let list: *mut *const c_char = list.cast();
        let path = |bytes: &[u8; PATH]| bytes.as_ptr().cast::<c_char>();
        let words = [path(&linker), c"--library-path".as_ptr(), path(&glibc), path(&loader), path(&program)];
        ptr::copy_nonoverlapping(words.as_ptr(), list, WORDS);
        // Linux before 5.18 starts programs without any argument, too. The loader needs one.
        list.add(WORDS).write(path(&program));
        ptr::copy_nonoverlapping(arguments, list.add(WORDS), count);
        execve(path(&linker), list, __environ);
        munmap(list.cast(), bytes);
    }
    b"the host's glibc is not in the container; write the device's description again"
}

/// Writes both one behind the other, with a zero at the end; `false`: there is no room.
fn join(path: &mut [u8; PATH], directory: &[u8], end: &[u8]) -> bool {
    let bytes = directory.iter().chain(end);
    path.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    directory.len() + end.len() < PATH
}

/// The program's arguments, and how many there are. They lie below the environment on the first stack; `None`: somebody has
/// already made another environment.
///
/// # Safety
/// As [`value`].
unsafe fn arguments() -> Option<(Strings, usize)> {
    let here = 0u8;
    // SAFETY: from this frame up to what the kernel has put on the stack, all can be read. There the environment lies behind a
    // null, the arguments before that, and their number before them.
    unsafe {
        let (low, high) = (&raw const here as u64, getauxval(AT_RANDOM));
        if !(low..high).contains(&(__environ as u64)) || !(*__environ.sub(1)).is_null() {
            return None;
        }
        let (mut at, mut count) = (__environ.sub(1), 0);
        while *at.sub(1) as usize != count {
            at = at.sub(1);
            count += 1;
            if at as u64 <= low {
                return None;
            }
        }
        Some((at, count))
    }
}
