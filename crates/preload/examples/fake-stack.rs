//! Serves the ring contract without any protocol, for trying programs under the library:
//! `fake-stack SOCKET-PATH`, then `TOWPATH_SOCKET=SOCKET-PATH LD_PRELOAD=libtowpath.so PROGRAM`.

#[allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]
#[path = "../../posix/src/fake.rs"]
mod fake;

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or(std::io::ErrorKind::InvalidInput)?;
    let _ = std::fs::remove_file(&path);
    fake::serve(path.as_ref(), towpath_ring::Geometry::DEFAULT, || false)
}
