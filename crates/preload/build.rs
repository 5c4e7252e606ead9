//! Builds `libtowpath_start.so` (`start/start.rs`) beside the programs. Cargo cannot: whatever it links has Rust's library for
//! panics in it, which needs `libgcc_s`, and images with musl do not have that.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "start/start.rs";
/// glibc's linker loads an auxiliary library before the one that names it. musl's does not know the word.
const AUXILIARY: &str = "link-arg=-Wl,--auxiliary=$ORIGIN/libtowpath.so";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCE}");
    let of = |name: &str| env::var(name).unwrap_or_default();
    // Only there is a loader that it could execute.
    if of("CARGO_CFG_TARGET_ARCH") != "x86_64" || of("HOST") != of("TARGET") {
        return;
    }
    let directory = PathBuf::from(of("OUT_DIR"));
    // PROFILE/build/PACKAGE/out
    let profile = directory.ancestors().nth(3).unwrap_or(Path::new("."));
    let library = profile.join("libtowpath_start.so");
    println!("cargo::rerun-if-changed={}", library.display());
    let mut rustc = Command::new(of("RUSTC"));
    rustc.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "--crate-name=towpath_start",
        "-Cpanic=abort",
        "-Copt-level=s",
    ]);
    // The same bytes in every folder.
    rustc.args(["-Cstrip=symbols", "-Clinker=cc", "-C", AUXILIARY, SOURCE, "-o"]).arg(&library);
    let built = rustc.status().is_ok_and(|status| status.success());
    assert!(built, "{SOURCE} could not be built");
}
