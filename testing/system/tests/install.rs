//! `make install` and what it installs: programs run from there, and nothing is left when it is removed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use towpath_system_tests::{Finished, Program, Scratch, bin_dir};

/// `scripts/install` of the programs that are tested.
fn install(root: &Path, flags: &[&str]) -> Finished {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let install = Program::new(&[script]).env("BUILT", bin_dir()).env("DESTDIR", root).env("PREFIX", "/opt/tow");
    flags.iter().fold(install, Program::arg).run(60)
}

/// All files below.
fn files(below: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(below) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn what_is_installed_runs_and_is_removed_without_a_trace() {
    let scratch = Scratch::new("install");
    let root = scratch.path("root");
    install(&root, &[]).ok();
    let prefix = root.join("opt/tow");
    let towpath = prefix.join("bin/towpath");
    // The library and the daemon are found where they lie now.
    let echo = "import socket
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1)
c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b'bytes'); print(s.recv(9))";
    // Of their own, so that nobody else's service is asked.
    let own = scratch.path("run");
    fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
    let installed = || Program::new(&[&towpath]).env("XDG_RUNTIME_DIR", &own);
    let run = installed().arg("run").arg("--require").arg("--").arg("python3").arg("-c").arg(echo);
    assert_eq!(run.run(60).ok(), "b'bytes'\n");
    installed().arg("stop").arg("--socket").arg(own.join("towpath/towpath.sock")).run(60).ok();
    for page in ["towpath.1", "towpath-run.1", "towpath-module-add.1"] {
        assert!(prefix.join("share/man/man1").join(page).is_file(), "{page} is missing");
    }
    assert!(prefix.join("share/man/man8/towpathd.8").is_file(), "towpathd has no page");
    let completion = fs::read_to_string(prefix.join("share/bash-completion/completions/towpath")).unwrap();
    assert!(completion.contains("check-config"));
    let configuration = root.join("etc/towpath/towpathd.toml");
    Program::new(&[&towpath]).arg("check-config").arg(&configuration).run(60).ok();

    // A file of somebody else's stays, and so does a configuration that was changed.
    let theirs = prefix.join("bin/theirs");
    fs::write(&theirs, "").unwrap();
    fs::write(&configuration, "cores = 2\n").unwrap();
    install(&root, &[]).ok();
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "cores = 2\n");
    install(&root, &["--remove"]).ok();
    let mut left = files(&root);
    left.sort();
    assert_eq!(left, [configuration.clone(), theirs.clone()]);

    install(&root, &[]).ok();
    fs::remove_file(&theirs).unwrap();
    fs::copy(prefix.join("share/towpath/towpathd.toml"), &configuration).unwrap();
    install(&root, &["--remove"]).ok();
    assert_eq!(files(&root), Vec::<PathBuf>::new());
}

#[test]
fn what_is_not_built_or_cannot_work_is_said() {
    let scratch = Scratch::new("install-refused");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    for (variable, value, why) in [
        ("BUILT", scratch.path("nothing"), "run `make build` first"),
        ("PREFIX", "relative".into(), "is no absolute path"),
        ("PREFIX", "/a b".into(), "has a space or a colon"),
    ] {
        let refused = Program::new(&[&script]).env("DESTDIR", scratch.path("root")).env(variable, value).run(60);
        assert!(refused.code != 0 && refused.err.contains(why), "{}", refused.err);
    }
    assert_eq!(files(&scratch.path("root")), Vec::<PathBuf>::new());
}

#[test]
fn a_cargo_that_is_missing_or_too_old_is_said_with_the_remedy() {
    let scratch = Scratch::new("cargo");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
    let fake = scratch.path("cargo");
    let setup = || {
        let refused =
            Program::new(&[&script]).arg("build").env("PATH", format!("{}:/usr/bin:/bin", scratch.0.display())).run(60);
        assert!(refused.code == 1 && refused.err.contains("sh.rustup.rs"), "{refused:?}");
        refused.err
    };
    for (version, why) in [("0.66.0", "cargo 0.66.0 is too old"), ("1.9.0", "cargo 1.9.0 is too old")] {
        std::fs::write(&fake, format!("#!/bin/sh\necho 'cargo {version} (debian)'\n")).unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(setup().contains(why));
    }
    // Whoever has a cargo in /usr/bin does not miss one.
    std::fs::remove_file(&fake).unwrap();
    assert!(Path::new("/usr/bin/cargo").exists() || setup().contains("cargo is missing"));
}
