//! Tells the sources that they are `towpath-client`.

fn main() {
    println!("cargo::rustc-cfg=towpath_client");
    println!("cargo::rerun-if-changed=build.rs");
}
