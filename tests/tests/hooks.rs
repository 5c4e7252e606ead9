//! How the calls of a program are caught: by a preloaded library, and inside programs that load none.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use towpath_system_tests::{Program, bin, require_program};

/// What libc calls the functions that act on descriptors of sockets, without `__`, `_chk`, `64` and `v2`.
const CALLS: &str = "socket bind listen accept accept4 connect close shutdown getsockname getpeername getsockopt \
    setsockopt fcntl ioctl sockatmark read readv preadv write writev pwritev recv recvfrom recvmsg recvmmsg send sendto \
    sendmsg sendmmsg sendfile splice poll ppoll select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait \
    epoll_pwait2 dup dup2 dup3 close_range closefrom fclose";
/// Not caught: with a position they are ESPIPE on every socket, whoever answers.
const POSITIONED: [&str; 4] = ["preadv", "preadv64", "pwritev", "pwritev64"];

/// The public names that a library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    require_program("nm", "binutils");
    let list = Program::line("nm -D --defined-only --with-symbol-versions").arg(library).run(20).ok();
    let names = list.lines().filter_map(|line| line.split_whitespace().nth(2));
    // Names of version GLIBC_PRIVATE are for glibc's own libraries.
    let public = names.filter(|name| !name.ends_with("GLIBC_PRIVATE"));
    public.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

/// A variant's plain name.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('_').trim_end_matches("_chk").replace("64", "");
    match name.as_str() {
        "preadv2" => "preadv".into(),
        "pwritev2" => "pwritev".into(),
        _ => name,
    }
}

#[test]
fn every_name_that_libc_has_for_a_caught_call_is_caught() {
    let libc = std::fs::read_to_string("/proc/self/maps").expect("own maps");
    let libc =
        libc.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.contains("libc.so")));
    let (theirs, ours) = (exported(Path::new(libc.expect("linked with libc"))), exported(&bin("libtowpath.so")));
    let calls: BTreeSet<&str> = CALLS.split_whitespace().collect();
    let wanted: Vec<_> = theirs.iter().filter(|name| calls.contains(plain(name).as_str())).collect();
    assert!(wanted.len() >= 60, "libc's names are not understood any more: {wanted:?}");
    let missing: Vec<_> =
        wanted.into_iter().filter(|name| !ours.contains(*name) && !POSITIONED.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "libc exports these, and the library does not: {missing:?}");
}
