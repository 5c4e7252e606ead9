//! What commands say when they fail.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Output};

fn towpath(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(line.split_whitespace()).env_remove("TOWPATH_SOCKET");
    command
}

/// Exit code, standard output and standard error.
fn end(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn with_json_an_error_is_an_object_on_standard_output() {
    let absent = "--json --socket /nonexistent/towpath.sock";
    for (line, code) in [
        ("status", 3),
        ("sockets -a", 3),
        ("stop", 3),
        ("reload", 3),
        ("capture -w /dev/null", 3),
        ("capture -w /dev/null --bytecode x --json", 2),
        ("policy --socket /nonexistent/towpath.sock list --json", 3),
        ("move --to host", 3),
        ("doctor -o /nonexistent/report", 1),
        ("doctor --bundle /nonexistent/report", 1),
        ("doctor --bundle /dev/null", 1),
        ("cores set 2", 1),
        ("cores explain --state /nonexistent/state --json", 1),
        ("cores status --state /dev/null --json", 1),
        ("cores replay --json /nonexistent/trace", 1),
        ("cores observe --json --interface no-such-if --force", 1),
    ] {
        let line = if line.contains("--json") { line.to_owned() } else { format!("{line} {absent}") };
        let (ended, out, err) = end(&mut towpath(&line));
        assert_eq!(ended, code, "{line}: {out}{err}");
        let object: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{line}: {out:?}"));
        let why = object["error"].as_str().unwrap();
        assert_eq!(err.trim_end(), format!("towpath: {why}"), "{line}");
        assert_eq!(object["schema"], 1, "{line}");
    }
    let (code, out, err) = end(&mut towpath("status --socket /nonexistent/towpath.sock"));
    let why = "towpath: no Towpath service at /nonexistent/towpath.sock (the directory /nonexistent does not exist); \
               `towpath serve` starts one\n";
    assert_eq!((code, out.as_str(), err.as_str()), (3, "", why));
}

#[test]
fn a_bundle_on_standard_output_leaves_no_room_for_its_manifest() {
    let (code, out, err) = end(&mut towpath("doctor --bundle - --json"));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("prints the manifest on standard output") && err.contains("name a file"), "{err}");
}

#[test]
fn a_configuration_is_checked_without_a_service() {
    let file = std::env::temp_dir().join(format!("towpath-check-{}.toml", std::process::id()));
    let (path, check) = (file.display().to_string(), format!("check-config {}", file.display()));
    std::fs::write(&file, "policy = [\"deny connect port 25\", \"deny connect port 25\"]\n").unwrap();
    let note = "note: policy: rule 2 is never asked: rule 1 is the same (deny connect port 25)\n";
    assert_eq!(end(&mut towpath(&check)), (0, format!("{path}: good, 2 rules\n{note}"), String::new()));
    let (code, out, _) = end(towpath(&check).arg("--json"));
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &object["rules"], &object["file"]), (0, &2.into(), &path.as_str().into()));
    std::fs::write(&file, "cores = 1\npolicy = [\n  \"deny nothing\",\n]\n").unwrap();
    let (code, out, err) = end(&mut towpath(&check));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with(&format!("towpath: {path}:3: ")), "{err}");
    let (code, out, said) = end(towpath(&check).arg("--json"));
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, format!("towpath: {}\n", object["error"].as_str().unwrap())), (2, said));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_library_that_is_none_is_refused() {
    for (file, why) in [
        ("/etc/passwd", "is no shared object of this processor"),
        ("/tmp", "cannot be read"),
        (env!("CARGO_BIN_EXE_towpath"), "is another shared object, not Towpath's library"),
    ] {
        let (code, out, err) = end(towpath("run --require -- true").env("TOWPATH_LIBRARY", file));
        let expected = format!("towpath: {file}: {why}; name libtowpath.so with TOWPATH_LIBRARY, or unset it\n");
        assert_eq!((code, out.as_str(), err), (125, "", expected));
    }
}
