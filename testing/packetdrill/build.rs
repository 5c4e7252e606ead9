//! Makes one test of each script in testing/packetdrill/scripts.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn entries(of: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = std::fs::read_dir(of).into_iter().flatten().flatten().map(|e| e.path()).collect();
    list.sort();
    list
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_")
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut out = String::new();
    for folder in entries(&root).iter().filter(|path| path.is_dir()) {
        println!("cargo:rerun-if-changed={}", folder.display());
        let _ = writeln!(out, "mod {} {{", name(folder));
        for script in entries(folder).iter().filter(|path| path.extension().is_some_and(|e| e == "pkt")) {
            println!("cargo:rerun-if-changed={}", script.display());
            let _ =
                writeln!(out, "    #[test]\n    fn {}() {{\n        crate::passes({script:?});\n    }}", name(script));
        }
        out += "}\n";
    }
    let target = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("scripts.rs");
    if let Err(error) = std::fs::write(&target, out) {
        panic!("{}: {error}", target.display());
    }
}
