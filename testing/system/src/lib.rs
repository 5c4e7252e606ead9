//! Shared by the whole-system tests: the built programs, services, network namespaces, and guards that clean up.
#![allow(clippy::expect_used, clippy::unwrap_used)]

pub mod attacker;
pub mod booted;
pub mod direct;
pub mod guest;
pub mod module;
pub mod namespace;
pub mod native;
pub mod packages;
pub mod program;
pub mod raw;
pub mod service;
pub mod wait;
pub mod wire;

pub use attacker::Attacker;
pub use namespace::{Lab, own_network};
pub use program::{Finished, Program};
pub use raw::RawClient;
pub use service::Service;
pub use wait::{until, until_or};

use std::path::PathBuf;

/// The directory of `towpath`, `towpathd` and `libtowpath.so`: `TOWPATH_BIN_DIR`, else next to the test's own profile.
pub fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TOWPATH_BIN_DIR") {
        return dir.into();
    }
    let exe = std::env::current_exe().expect("own path");
    let dir = exe.parent().and_then(|deps| deps.parent()).expect("target directory").to_path_buf();
    assert!(dir.join("towpath").exists(), "build the programs first: cargo build --workspace (or run `make test`)");
    dir
}

/// The path of one built program.
pub fn bin(name: &str) -> PathBuf {
    let path = bin_dir().join(name);
    assert!(path.exists(), "{} is missing: cargo build --workspace (or run `make test`)", path.display());
    path
}

/// Fails if the test cannot make namespaces, and names the command that helps.
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run `sudo make test`");
}

/// Fails if a program of the distribution is missing, and names the command that helps.
pub fn require_program(name: &str, package: &str) {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
        || PathBuf::from("/usr/sbin").join(name).is_file();
    assert!(found, "{name} is missing: apt-get install -y {package} (or run scripts/setup)");
}

/// Fails if there is no QEMU or no kernel for a guest, and names the command that helps.
pub fn require_guest() {
    require_program(towpath_guest::machine::qemu::PROGRAM, towpath_guest::machine::qemu::PACKAGE);
    let kernel =
        ["/boot", "/usr/lib/towpath/kernel/boot"].into_iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    let found = kernel.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"));
    assert!(found, "a kernel for a guest of QEMU is missing: scripts/setup guest");
}

/// A private scratch directory, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a directory whose name contains `name` and that every user can use (mode 1777).
    pub fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-test-{}-{n}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1777)).expect("scratch mode");
        Self(path)
    }
    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
