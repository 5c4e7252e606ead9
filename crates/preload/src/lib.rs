//! `libtowpath.so`, which is preloaded into programs: [`Posix`] under the names of libc's functions.

#[cfg(target_env = "gnu")]
mod print;
mod sanitizer;

use towpath_posix::Posix;

towpath_hook::preload!(Posix);
towpath_hook::preload_exec!();
towpath_hook::preload_uring!(Posix);
towpath_hook::preload_forks!(Posix);

/// `towpath run` knows the library by it.
#[used]
// SAFETY: a section of notes. The linker keeps it, and nothing else reads it.
#[unsafe(link_section = ".note.towpath")]
static NOTE: towpath_hook::library::Note = towpath_hook::library::Note::of(env!("CARGO_PKG_VERSION"));
