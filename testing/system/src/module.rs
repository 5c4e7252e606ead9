//! Objects of modules, as clang makes them.

use crate::{Program, Scratch, require_program};
use std::path::{Path, PathBuf};

/// A module's object, from a source of this repository or from this text.
pub fn object(scratch: &Scratch, name: &str, text: Option<&str>) -> PathBuf {
    require_program("clang", "clang");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = match text {
        None => root.join(format!("bpf/modules/{name}.bpf.c")),
        Some(text) => {
            let path = scratch.path(&format!("{name}.bpf.c"));
            let begin = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
            let end = "\nchar _license[] SEC(\"license\") = \"GPL\";\n";
            std::fs::write(&path, format!("{begin}{text}{end}")).expect("the source is written");
            path
        }
    };
    let object = scratch.path(&format!("{name}.bpf.o"));
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let clang = Program::line("clang -O2 -g -target bpf -mcpu=v3 -idirafter").arg(include).arg("-c").arg(source);
    clang.arg("-o").arg(&object).run(60).ok();
    object
}
