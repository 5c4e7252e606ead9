//! Every script in testing/packetdrill/scripts as a test of the same name (see build.rs).

use std::path::Path;

/// Runs one script. A failure shows the trace before it.
fn passes(path: &str) {
    let text = std::fs::read_to_string(path).expect("readable");
    let report = towpath_packetdrill::run(&text);
    if let Err(error) = report.result {
        let shown = path.find("testing/packetdrill/scripts").map_or(path, |at| &path[at..]);
        panic!("{shown}: {error}\nwhat happened:\n  {}", report.trace.join("\n  "));
    }
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// Visits all scripts, and returns their number.
fn scripts(folder: &Path, visit: &mut dyn FnMut(&Path)) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            count += scripts(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            count += 1;
            visit(&path);
        }
    }
    count
}

#[test]
fn all_packet_scripts_pass_and_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let count = scripts(&root, &mut |path| {
        passes(path.to_str().expect("a name"));
        let lines = std::fs::read_to_string(path).expect("readable").lines().count();
        assert!(lines <= 40, "{}: {lines} lines", path.display());
    });
    assert!(count >= 150, "only {count} scripts");
}
