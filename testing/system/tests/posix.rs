//! The conformance program of `testing/system/posix` prints the same on the kernel and under Towpath. Under Towpath it
//! runs over the stack, directly, over the kernel stack, and over one in a second kernel.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::{Program, Service, bin_dir, require_program};

#[test]
fn sockets_behave_as_the_kernels_do() {
    compare(&[]);
}

/// A statically linked program is hooked by its system calls. The cases are the same.
#[test]
fn sockets_of_a_static_program_behave_as_the_kernels_do() {
    compare(&["--static"]);
}

fn compare(options: &[&str]) {
    require_program("gcc", "gcc");
    require_program("python3", "python3");
    let (stack, direct, kernel, guest) =
        (Service::embedded(), Service::direct(), Service::kernel(), Service::second_kernel());
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/compare");
    let before = stack.segments();
    let command = Program::new(&[compare]).arg("--bin").arg(bin_dir());
    let command = command.arg("--stack").arg(&stack.socket).arg("--direct").arg(&direct.socket);
    let command = command.arg("--kernel-stack").arg(&kernel.socket).arg("--uml").arg(&guest.socket);
    let compared = options.iter().fold(command, Program::arg).run(900);
    println!("{}", compared.out);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    let carried = stack.segments() - before;
    assert!(carried > 100, "the stack has carried the cases");
    assert!(kernel.stage("accepts") > 100, "and the kernel stack too");
    assert!(guest.stage("accepts") > 100, "and the second kernel too");
    assert!(
        direct.segments() < carried / 4,
        "the direct cases are not on the stack: {} of {carried} segments",
        direct.segments()
    );
}
