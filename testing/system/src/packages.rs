//! The packages of what is tested.

use crate::{Program, Scratch, bin_dir, require_program};
use std::path::{Path, PathBuf};

/// What `scripts/dist` has made.
pub struct Packages(pub PathBuf);

/// Packs what is tested into a directory of this name, without the pains of compression, with a library for this glibc.
pub fn packed(scratch: &Scratch, name: &str, version: &str, glibc: &str) -> Packages {
    for (program, package) in [("dpkg-deb", "dpkg"), ("objcopy", "binutils"), ("rpmbuild", "rpm")] {
        require_program(program, package);
    }
    let out = scratch.path(name);
    let dist =
        Program::new(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/dist")]).env("BUILT", bin_dir());
    dist.env("OUT", &out).env("VERSION", version).env("COMPRESS", "none").env("GLIBC", glibc).run(1200).ok();
    Packages(out)
}

impl Packages {
    /// The Debian package of this version.
    pub fn deb(&self, version: &str) -> PathBuf {
        let architecture = Program::line("dpkg --print-architecture").run(60).ok();
        self.0.join(format!("towpath_{version}_{}.deb", architecture.trim()))
    }
    /// The RPM package.
    pub fn rpm(&self, version: &str) -> PathBuf {
        self.0.join(format!("towpath-{version}.{}.rpm", std::env::consts::ARCH))
    }
    /// The container image.
    pub fn image(&self, version: &str) -> PathBuf {
        let architecture = Program::line("dpkg --print-architecture").run(60).ok();
        self.0.join(format!("towpath-{version}-oci-{}.tar", architecture.trim()))
    }
    /// What the programs are made of.
    pub fn sbom(&self, version: &str) -> PathBuf {
        self.0.join(format!("towpath-{version}.cdx.json"))
    }
}
