//! Modules that are measured are compiled on the machine that measures.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles C to an object file of BPF.
pub fn clang(name: &str, source: &str, dir: &Path) -> io::Result<PathBuf> {
    let (file, object) = (dir.join(format!("{name}.bpf.c")), dir.join(format!("{name}.bpf.o")));
    std::fs::write(&file, source)?;
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-idirafter", &include, "-c"]).arg(&file);
    let output = clang.arg("-o").arg(&object).output().map_err(|error| {
        io::Error::new(error.kind(), format!("clang: {error}: apt-get install -y clang libbpf-dev"))
    })?;
    if !output.status.success() {
        return Err(io::Error::other(format!("clang: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(object)
}
