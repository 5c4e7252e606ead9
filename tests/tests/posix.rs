//! The conformance program of `tests/posix` on the kernel and under Towpath: what it prints must be the same.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::{Program, Service, bin_dir, require_program};

#[test]
fn sockets_behave_as_the_kernels_do() {
    require_program("gcc", "gcc");
    require_program("python3", "python3");
    let service = Service::embedded();
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/compare");
    let before = service.segments();
    let compared = Program::new(&[compare]).arg("--bin").arg(bin_dir()).arg("--socket").arg(&service.socket).run(300);
    println!("{}", compared.out);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    assert!(service.segments() - before > 100, "the stack has carried what was compared");
}
