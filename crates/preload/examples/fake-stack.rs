//! Serves the ring contract without any protocol, for trying programs under the library:
//! `fake-stack SOCKET-PATH [halves]`, then `TOWPATH_SOCKET=SOCKET-PATH LD_PRELOAD=libtowpath.so PROGRAM`. With `halves` listeners keep a
//! kernel half.

#[allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]
#[path = "../../posix/src/fake.rs"]
mod fake;

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or(std::io::ErrorKind::InvalidInput)?;
    let halves = std::env::args_os().nth(2).is_some_and(|word| word == "halves");
    let features = if halves { towpath_ring::control::features::LISTENS_IN_KERNEL } else { 0 };
    let _ = std::fs::remove_file(&path);
    fake::serve(path.as_ref(), towpath_ring::Geometry::DEFAULT, features, || false)
}
