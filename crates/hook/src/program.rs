//! Decides which hook suits a program.

use crate::elf_file::ElfFile;
use crate::needed::{Dynamic, headers};
use crate::system_calls;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The longest chain of interpreters. The kernel allows four.
const MAX_SCRIPTS: usize = 4;
/// The bytes of a file that are read: program headers come first, then notes.
pub(crate) const HEAD_BYTES: usize = 8192;

/// How a program can be hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookMethod {
    /// By a preloaded library.
    Preload,
    /// By the loader ([`inject`](crate::inject)), because no dynamic linker would load the library. With the reason.
    Inject(&'static str),
    /// By either, but injection catches more calls. With the reason.
    Either(&'static str),
    /// By a preloaded library, and not by injection. With the reason.
    PreloadOnly(&'static str),
    /// Unknown: the file cannot be read, or is a script without an interpreter in its first line. The program that runs
    /// in the end inherits the library.
    Unknown,
    /// Not at all, with the reason.
    None(&'static str),
}

/// The file that `execvp` would execute: a path as it is, a name by PATH.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let runnable =
        |file: &PathBuf| file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(runnable)
}

/// Looks at the file, and at its interpreter if it is a script.
pub fn method_for(program: &Path) -> HookMethod {
    let mut file = program.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        // The file cannot be read, but perhaps executed.
        let Ok(source) = ElfFile::open(&file) else { return HookMethod::Unknown };
        let Ok(head) = source.read(0, HEAD_BYTES) else { return HookMethod::Unknown };
        match interpreter(&head) {
            Some(next) => file = next.into(),
            None => return judge(&file, &source, &head),
        }
    }
    HookMethod::None("too many interpreters")
}

/// True if the file, or its interpreter if it is a script, has a dynamic linker, which may load a preloaded library.
pub(crate) fn loads_libraries(program: &Path) -> bool {
    let mut file = program.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        let Ok(source) = ElfFile::open(&file) else { return false };
        let Ok(head) = source.read(0, HEAD_BYTES) else { return false };
        match interpreter(&head) {
            Some(next) => file = next.into(),
            None => return headers(&source).into_iter().flatten().any(|header| header.kind == PT_INTERP),
        }
    }
    false
}

/// The interpreter that a script's first line names.
fn interpreter(head: &[u8]) -> Option<OsString> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    Some(OsStr::from_bytes(words.next()?).to_owned())
}

fn judge(file: &Path, source: &ElfFile, head: &[u8]) -> HookMethod {
    if let Ok(meta) = file.metadata() {
        // The kernel runs these with other rights, and their dynamic linker ignores LD_PRELOAD.
        // SAFETY: `geteuid` takes no arguments.
        let (mode, own) = (meta.permissions().mode(), unsafe { libc::geteuid() });
        if mode & 0o6000 != 0 && !(mode & 0o6000 == 0o4000 && meta.uid() == own) {
            return HookMethod::None("is setuid or setgid and left alone");
        }
        if own != 0 && has_capabilities(file) {
            return HookMethod::None("has file capabilities and is left alone");
        }
    }
    match elf(head) {
        Elf::Dynamic(linker) if linker.contains("ld-musl") => HookMethod::Inject("is linked with musl"),
        Elf::Go => HookMethod::Inject("is written in Go and makes its system calls itself"),
        Elf::Dynamic(_) => dynamic(file, source),
        Elf::Other => HookMethod::Unknown,
        Elf::Static => HookMethod::Inject("is statically linked"),
        Elf::Foreign => HookMethod::None("is for another kind of processor"),
    }
}

/// The hook of a program that is linked with glibc.
fn dynamic(file: &Path, source: &ElfFile) -> HookMethod {
    // Only on x86-64 is there a choice.
    let Some(dynamic) = Dynamic::of(source).filter(|_| cfg!(target_arch = "x86_64")) else {
        return HookMethod::Preload;
    };
    let is_sanitized = SANITIZERS.iter().any(|library| dynamic.names(library))
        || SANITIZED.iter().any(|symbol| dynamic.has_symbol(symbol));
    match (system_calls::are_made_by(file, source, &dynamic), is_sanitized) {
        (true, true) => HookMethod::None("makes system calls itself and is built with a sanitizer"),
        (true, false) => HookMethod::Inject("makes system calls itself"),
        (false, true) => HookMethod::PreloadOnly("is built with a sanitizer"),
        (false, false) if dynamic.names(b"liburing.so") => {
            HookMethod::Either("uses liburing, which makes its system calls itself")
        }
        (false, false) => HookMethod::Preload,
    }
}

/// Sanitizers look at the stacks, handlers and threads of the whole process, and take the injected library's for the
/// program's. These are the names of their libraries, and the symbols of programs that contain them.
const SANITIZERS: [&[u8]; 5] = [b"libasan.so", b"liblsan.so", b"libtsan.so", b"libhwasan.so", b"libclang_rt."];
const SANITIZED: [&[u8]; 3] = [b"__sanitizer_malloc_hook", b"__asan_init", b"__tsan_init"];

fn has_capabilities(file: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: both are C strings. Without room for the value the call gives its length.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), core::ptr::null_mut(), 0) > 0 }
}

#[derive(Debug, PartialEq, Eq)]
enum Elf {
    /// It has this dynamic linker.
    Dynamic(String),
    Static,
    /// Made by the Go toolchain, with or without a dynamic linker.
    Go,
    /// Another class, byte order or machine.
    Foreign,
    /// A script without `#!`, which a shell will run, or a file that `exec` will refuse.
    Other,
}

/// `e_machine` of this machine.
pub(crate) const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// `p_type` of the dynamic linker's name.
const PT_INTERP: u32 = 3;
/// `p_type` of notes. In the note with Go's build id, the type and the name follow the lengths.
pub(crate) const PT_NOTE: u32 = 4;
const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";

fn elf(head: &[u8]) -> Elf {
    let Some(rest) = head.strip_prefix(b"\x7fELF") else { return Elf::Other };
    // 64-bit, little-endian.
    if !rest.starts_with(&[2, 1]) || half(head, 18) != Some(MACHINE) {
        return Elf::Foreign;
    }
    let (Some(table), Some(size), Some(count)) = (long(head, 32), half(head, 54), half(head, 56)) else {
        return Elf::Foreign;
    };
    let mut found = Elf::Static;
    for entry in 0..usize::from(count) {
        let at = table.saturating_add(entry * usize::from(size));
        let (start, length) = (long(head, at + 8).unwrap_or(0), long(head, at + 32).unwrap_or(0));
        let content = head.get(start..start.saturating_add(length)).unwrap_or_default();
        match word(head, at) {
            Some(PT_NOTE) if content.windows(GO_NOTE.len()).any(|window| window == GO_NOTE) => return Elf::Go,
            Some(PT_INTERP) => {
                let name = content.strip_suffix(b"\0").unwrap_or(content);
                found = Elf::Dynamic(String::from_utf8_lossy(name).into_owned());
            }
            _ => {}
        }
    }
    found
}

fn bytes<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..at.checked_add(N)?)?.try_into().ok()
}
pub(crate) fn half(head: &[u8], at: usize) -> Option<u16> {
    bytes(head, at).map(u16::from_le_bytes)
}
pub(crate) fn word(head: &[u8], at: usize) -> Option<u32> {
    bytes(head, at).map(u32::from_le_bytes)
}
pub(crate) fn long(head: &[u8], at: usize) -> Option<usize> {
    bytes(head, at).map(|b| u64::from_le_bytes(b) as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An ELF header with one program header of type `p_type` and, behind it, the linker's name.
    fn file(machine: u16, p_type: u32, linker: &str) -> Vec<u8> {
        let mut head = vec![0; 120];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head[32..40].copy_from_slice(&64u64.to_le_bytes());
        head[54..56].copy_from_slice(&56u16.to_le_bytes());
        head[56..58].copy_from_slice(&1u16.to_le_bytes());
        head[64..68].copy_from_slice(&p_type.to_le_bytes());
        head[72..80].copy_from_slice(&120u64.to_le_bytes());
        head[96..104].copy_from_slice(&(linker.len() as u64 + 1).to_le_bytes());
        head.extend_from_slice(linker.as_bytes());
        head.push(0);
        head
    }

    #[test]
    fn kinds_of_elf() {
        let glibc = "/lib64/ld-linux-x86-64.so.2";
        assert_eq!(elf(&file(MACHINE, PT_INTERP, glibc)), Elf::Dynamic(glibc.into()));
        assert_eq!(elf(&file(MACHINE, 1, glibc)), Elf::Static);
        assert_eq!(elf(&file(40, PT_INTERP, glibc)), Elf::Foreign);
        assert_eq!(elf(&file(MACHINE, PT_NOTE, "\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0build id")), Elf::Go);
        assert_eq!(elf(&file(MACHINE, PT_NOTE, "\x04\0\0\0\x10\0\0\0\x03\0\0\0GNU\0build id")), Elf::Static);
        assert_eq!(elf(b"\x7fELF\x01\x01"), Elf::Foreign);
        assert_eq!(elf(b"echo hello"), Elf::Other);
        // A file that is cut anywhere is judged without a panic.
        let whole = file(MACHINE, PT_INTERP, glibc);
        for length in 0..whole.len() {
            let _ = elf(&whole[..length]);
        }
    }

    #[test]
    fn programs_of_this_machine() {
        assert_eq!(method_for(&std::env::current_exe().unwrap()), HookMethod::Preload);
        let shell = find(OsStr::new("sh")).unwrap();
        assert_eq!(method_for(&shell), HookMethod::Preload);
        assert_eq!(find(OsStr::new("no-program-of-this-name")), None);
        assert_eq!(find(OsStr::new("/no/such/program")), None);
    }

    #[test]
    fn scripts_go_the_way_of_their_interpreters() {
        assert_eq!(interpreter(b"#! /usr/bin/env python3\nx"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter(b"#!/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#!\n"), None);
        let dir = std::env::temp_dir().join(format!("towpath-program-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (stat, script, ring) = (dir.join("static"), dir.join("script"), dir.join("ring"));
        std::fs::write(&stat, file(MACHINE, 1, "")).unwrap();
        std::fs::write(&script, format!("#!{}\n", stat.display())).unwrap();
        std::fs::write(&ring, format!("#!{}\n", ring.display())).unwrap();
        assert_eq!(method_for(&script), HookMethod::Inject("is statically linked"));
        assert_eq!(method_for(&ring), HookMethod::None("too many interpreters"));
        let musl = dir.join("musl");
        std::fs::write(&musl, file(MACHINE, PT_INTERP, "/lib/ld-musl-x86_64.so.1")).unwrap();
        assert_eq!(method_for(&musl), HookMethod::Inject("is linked with musl"));
        std::fs::set_permissions(&stat, std::fs::Permissions::from_mode(0o2755)).unwrap();
        assert_eq!(method_for(&stat), HookMethod::None("is setuid or setgid and left alone"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
