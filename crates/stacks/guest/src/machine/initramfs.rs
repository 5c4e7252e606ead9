//! The first files of a guest: our binary with its libraries, and the kernel modules that give access to everything
//! else.
//!
//! They form a cpio archive that Linux unpacks (`Documentation/driver-api/early-userspace/buffer-format.rst`: "newc").

use super::elf;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Modules that a guest needs or may want. One that a kernel does not have as a module is built in, or missing, as on
/// a host.
const MODULES: [&str; 8] =
    ["virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "ipv6", "tcp_bbr", "tls"];

/// Modes of entries.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive under construction.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds an entry. `device` is the number of a device node.
    fn add(&mut self, path: &Path, mode: u32, device: (u32, u32), content: &[u8]) {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_encoded_bytes();
        self.entries += 1;
        let (size, length) = (content.len() as u32, name.len() as u32 + 1);
        // Inode, mode, owner, group, links, time, size, device of the file, device of the node, length of the name,
        // checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, length, 0];
        self.bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| self.bytes.extend_from_slice(format!("{field:08X}").as_bytes()));
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
    fn directory(&mut self, path: &Path) {
        if path.parent().is_none() || self.directories.contains(path) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.add(path, DIRECTORY, (0, 0), &[]);
        self.directories.insert(path.into());
    }
    fn file(&mut self, path: &Path, content: &[u8]) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.add(path, PROGRAM, (0, 0), content);
    }
    fn end(mut self) -> Vec<u8> {
        self.add(Path::new("TRAILER!!!"), 0, (0, 0), &[]);
        self.bytes
    }
}

/// Makes the archive. `init` is the first program, and `modules` the directory with the kernel's modules and
/// `modules.dep`.
pub fn make(init: &Path, modules: &Path) -> io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    ["/dev", "/host", "/modules"].iter().for_each(|path| archive.directory(Path::new(path)));
    archive.add(Path::new("/dev/console"), CONSOLE, (5, 1), &[]);
    let program = read(init)?;
    archive.file(Path::new("/init"), &program[..loaded(&program)]);
    for library in libraries(init)? {
        archive.file(&library, &read(&library)?);
    }
    let dependencies = String::from_utf8_lossy(&read(&modules.join("modules.dep"))?).into_owned();
    for (number, file) in in_order(&dependencies, &MODULES).iter().enumerate() {
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.file(&Path::new("/modules").join(format!("{number:02}-{name}")), &read(&modules.join(file))?);
    }
    Ok(archive.end())
}

/// End of the loaded part of a program. The rest is for debuggers. A file that is not 64-bit ELF is taken whole.
fn loaded(program: &[u8]) -> usize {
    let segments = elf::segments(program).unwrap_or_default();
    let ends = segments.iter().filter(|segment| segment.kind == elf::LOAD).map(|segment| segment.offset + segment.size);
    ends.max().unwrap_or(program.len())
}

/// The libraries of a program and its dynamic linker, as that linker lists them. Empty for a static program.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let mut command = Command::new(program);
    command.env_clear().env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::null()).stderr(Stdio::null());
    let said = command.output()?.stdout;
    let line = |line: &str| {
        let path = line.trim().strip_suffix(')')?.rsplit_once(" (0x")?.0;
        let path = path.rsplit_once("=> ").map_or(path, |(_, path)| path);
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    Ok(String::from_utf8_lossy(&said).lines().filter_map(line).collect())
}

/// The files of the `wanted` modules and of their dependencies, dependencies first. `text` is `modules.dep`.
fn in_order<'a>(text: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let name = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or(file);
        name.split(".ko").next().unwrap_or(name).replace('-', "_")
    };
    let mut files: Vec<&str> = Vec::new();
    for wanted in wanted {
        let line = text.lines().filter_map(|line| line.split_once(':')).find(|(file, _)| name(file) == *wanted);
        let Some((file, needed)) = line else { continue };
        // `modules.dep` lists the dependencies in reverse order.
        for file in needed.split_whitespace().rev().chain([file]) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_module_comes_after_those_that_it_needs_and_only_once() {
        let text = "kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
                    kernel/net/9p/9pnet.ko.xz:\nkernel/fs/netfs/netfs.ko.xz:\n\
                    kernel/drivers/a-b.ko: kernel/net/9p/9pnet.ko.xz\n";
        let files = in_order(text, &["a_b", "built_in", "9p"]);
        let expected = [
            "kernel/net/9p/9pnet.ko.xz",
            "kernel/drivers/a-b.ko",
            "kernel/fs/netfs/netfs.ko.xz",
            "kernel/fs/9p/9p.ko.xz",
        ];
        assert_eq!(files, expected);
    }

    #[test]
    fn what_debuggers_read_stays_out_and_what_is_no_program_goes_in_whole() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let end = loaded(&own);
        assert!(end > 4096 && end < own.len(), "{end} of {}", own.len());
        assert_eq!(loaded(b"#!/bin/sh"), 9);
        for cut in [5, 40, 63, 64, 100] {
            assert!(loaded(&own[..cut]) == cut, "a program that is cut off at {cut}");
        }
    }

    #[test]
    fn an_archive_has_directories_before_their_files_each_once() {
        let mut archive = Archive::default();
        archive.file(Path::new("/lib/a/one"), b"1");
        archive.file(Path::new("/lib/a/two"), b"12345");
        let bytes = archive.end();
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.find(what).unwrap();
        assert!(
            at("lib\0") < at("lib/a\0") && at("lib/a\0") < at("lib/a/one\0") && at("lib/a/one\0") < at("lib/a/two\0")
        );
        assert_eq!(text.matches("070701").count(), 5);
        assert_eq!(text.matches("lib/a\0").count(), 1);
        assert!(bytes.len() % 4 == 0 && text.contains("TRAILER!!!\0"));
    }
}
