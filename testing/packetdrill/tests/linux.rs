//! The Linux kernel's own scripts (tools/testing/selftests/net/packetdrill), from Debian's package of its source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Their paths in the archive.
const SCRIPTS: &str = "*/tools/testing/selftests/net/packetdrill/*.pkt";

/// The newest archive.
fn archive() -> PathBuf {
    let sources = std::fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    sources.filter(is_it).max().expect("no /usr/src/linux-source-*.tar.xz; get it with: scripts/setup all")
}

/// The scripts by name. They are unpacked once into the build directory.
fn scripts() -> BTreeMap<String, String> {
    let archive = archive();
    let stem = archive.file_name().expect("a name").to_string_lossy().replace(".tar.xz", "");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(stem);
    if !target.exists() {
        let partial = target.with_extension(format!("{}", std::process::id()));
        std::fs::create_dir_all(&partial).expect("a folder");
        let status = Command::new("tar")
            .args(["--wildcards", "--strip-components=6", "-xJf"])
            .arg(&archive)
            .arg("-C")
            .arg(&partial)
            .arg(SCRIPTS)
            .status();
        assert!(status.expect("tar").success(), "tar could not unpack {}", archive.display());
        std::fs::rename(&partial, &target).expect("renamed");
    }
    let entries = std::fs::read_dir(&target).expect("a folder").map(|entry| entry.expect("an entry").path());
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("readable"))
    };
    entries.map(read).collect()
}

/// Scripts that need not pass, with the reason: `NAME: REASON` in testing/packetdrill/scripts/kernel-left-out.txt.
fn left_out() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kernel-left-out.txt");
    let text = std::fs::read_to_string(path).expect("the list");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (name, reason) = line.split_once(": ").unwrap_or_else(|| panic!("no reason: {line}"));
        (name.to_string(), reason.to_string())
    };
    lines.map(split).collect()
}

#[test]
fn the_kernels_own_scripts_pass_or_are_left_out_with_a_reason() {
    let (scripts, left_out) = (scripts(), left_out());
    assert!(scripts.len() >= 24, "only {} scripts", scripts.len());
    let mut problems = Vec::new();
    for (name, text) in &scripts {
        let result = towpath_packetdrill::run_linux(text).result;
        match (result, left_out.get(name)) {
            (Ok(()), None) => println!("{name}: passed"),
            (Err(_), Some(reason)) => println!("{name}: left out: {reason}"),
            (Ok(()), Some(_)) => problems.push(format!("{name} passes: take it off the list")),
            (Err(error), None) => problems.push(format!("{name}: {error}")),
        }
    }
    problems
        .extend(left_out.keys().filter(|n| !scripts.contains_key(*n)).map(|n| format!("{n}: there is no such script")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
