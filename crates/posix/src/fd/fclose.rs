//! `fclose`.

use crate::fd::{close, standard_streams, streams, table};
use crate::observe::measure;
use libc::FILE;

/// `fclose` of a stream, which may be one that `fdopen` made.
///
/// # Safety
/// `stream` is null or an open stream.
pub unsafe fn fclose(stream: *mut FILE) {
    if !stream.is_null() && !is_ours(stream) {
        // SAFETY: the caller keeps the contract of `fclose`.
        let fd = unsafe { libc::fileno(stream) };
        if table::is_measured(fd) {
            measure::end(fd);
        }
        // The C library closes it later. Whether it is the last one is left to the service.
        drop(close::closing(fd, table::get(fd)));
    }
}

/// Has `fdopen` made this stream here? It closes its descriptor itself, after writing everything.
fn is_ours(stream: *mut FILE) -> bool {
    let ours = streams::closing(stream);
    if ours {
        standard_streams::closing(stream);
    }
    ours
}
