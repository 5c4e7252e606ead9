//! `libtowpath.so`, which is preloaded into programs: [`Posix`] under the names of libc's functions.

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod print;

use towpath_posix::Posix;

towpath_hook::preload!(Posix);
towpath_hook::preload_exec!();
#[cfg(target_arch = "x86_64")]
towpath_hook::preload_uring!(Posix);
#[cfg(target_arch = "x86_64")]
towpath_hook::preload_forks!(Posix);
