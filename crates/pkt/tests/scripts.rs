//! Every script in tests/pkt, each as a test of its own name (see build.rs).

use std::path::Path;

/// Runs one script; a failure shows what happened before it.
fn passes(path: &str) {
    let text = std::fs::read_to_string(path).expect("readable");
    let report = towpath_pkt::run(&text);
    if let Err(trouble) = report.result {
        let shown = path.find("tests/pkt").map_or(path, |at| &path[at..]);
        panic!("{shown}: {trouble}\nwhat happened:\n  {}", report.trace.join("\n  "));
    }
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// Visits all scripts; returns how many there are.
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pkt");
    let count = scripts(&root, &mut |path| {
        passes(path.to_str().expect("a name"));
        let lines = std::fs::read_to_string(path).expect("readable").lines().count();
        assert!(lines <= 40, "{}: {lines} lines", path.display());
    });
    assert!(count >= 150, "only {count} scripts");
}
