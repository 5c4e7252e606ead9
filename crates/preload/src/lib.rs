//! `libtowpath.so`: the functions of libc that [`Posix`] stands in for, under their names. To be preloaded into programs.

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod print;

use towpath_posix::Posix;

towpath_hook::preload!(Posix);
towpath_hook::preload_exec!();
#[cfg(target_arch = "x86_64")]
towpath_hook::preload_uring!(Posix);
#[cfg(target_arch = "x86_64")]
towpath_hook::preload_forks!(Posix);
