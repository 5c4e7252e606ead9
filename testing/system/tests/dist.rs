//! What `make dist` makes.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use towpath_system_tests::{Program, Scratch, packages, require_program, require_root};

#[test]
fn the_packages_have_the_same_files() {
    let scratch = Scratch::new("dist");
    let packages = packages::packed(&scratch, "dist", "0.1.0", "host");
    let rpm = Program::line("rpm -qp --qf").arg("[%{FILENAMES} %{FILEMODES:perms}\n]").arg(packages.rpm("0.1.0"));
    let deb = Program::line("dpkg-deb -c").arg(packages.deb("0.1.0"));
    let rpm: BTreeMap<_, _> = rpm.run(60).ok().lines().filter_map(|line| line.split_once(' ').map(own)).collect();
    let deb = deb.run(60).ok();
    let of_deb = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // A directory has a slash at its end.
        own((fields[5].trim_start_matches('.').trim_end_matches('/'), fields[0]))
    };
    let deb: BTreeMap<_, _> = deb.lines().map(of_deb).collect();
    // Directories that are everybody's belong to no RPM package, and each has its own places for some files.
    let ours = |files: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let elsewhere = ["/usr/share/zsh/", "/usr/share/doc/towpath"];
        let mine = files.iter().filter(|(path, mode)| {
            !elsewhere.iter().any(|place| path.starts_with(place))
                && (!mode.starts_with('d') || path.contains("towpath"))
        });
        mine.map(|(path, mode)| (path.clone(), mode.clone())).collect()
    };
    assert!(rpm.len() > 20, "{rpm:?}");
    assert_eq!(ours(&rpm), ours(&deb));
    let configuration = Program::line("rpm -qp --configfiles").arg(packages.rpm("0.1.0")).run(60).ok();
    assert_eq!(configuration.trim(), "/etc/towpath/towpathd.toml");
    let scripts = Program::line("rpm -qp --scripts").arg(packages.rpm("0.1.0")).run(60).ok();
    assert!(scripts.contains("towpath unit disable"), "{scripts}");
    // Nobody but `towpath run` loads the library.
    let provided = Program::line("rpm -qp --provides").arg(packages.rpm("0.1.0")).run(60).ok();
    assert!(!provided.contains("libtowpath"), "{provided}");
}

/// An engine reads the image without a registry, and its programs have all that they need in it.
#[test]
fn a_container_engine_loads_the_image_and_runs_its_programs() {
    require_root();
    require_program("podman", "podman");
    let scratch = Scratch::new("image");
    let packages = packages::packed(&scratch, "dist", "0.1.0", "host");
    let load = Path::new(env!("CARGO_MANIFEST_DIR")).join("cdi/load");
    let run = |line: &str| {
        let program = Program::new(&[&load]).arg(packages.image("0.1.0")).arg("localhost/towpath:0.1.0");
        line.split(' ').fold(program, Program::arg).run(300).ok()
    };
    assert!(run("towpath version").starts_with("towpath 0.1.0 ("));
    let checked = run("towpath check-config /etc/towpath/towpathd.toml");
    assert!(checked.contains("towpathd.toml"), "{checked}");
}

fn own((path, mode): (&str, &str)) -> (String, String) {
    (path.to_owned(), mode.to_owned())
}

/// Each crate with its version, licence and checksum, and no reference to one that is not listed.
#[test]
fn what_the_programs_are_made_of_is_listed() {
    let scratch = Scratch::new("sbom");
    let packages = packages::packed(&scratch, "dist", "0.1.0", "host");
    let text = fs::read_to_string(packages.sbom("0.1.0")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = document["components"].as_array().unwrap();
    let mut known = BTreeSet::from(["towpath@0.1.0"]);
    for component in components {
        let name = component["name"].as_str().unwrap();
        assert!(component["licenses"][0]["expression"].is_string(), "{name} has no licence");
        let outside = component["hashes"][0]["content"].as_str().is_some_and(|sum| sum.len() == 64);
        assert_eq!(outside, !name.starts_with("towpath-"), "the checksum of {name}");
        known.insert(component["bom-ref"].as_str().unwrap());
    }
    for dependency in document["dependencies"].as_array().unwrap() {
        let needed = dependency["dependsOn"].as_array().unwrap().iter().chain([&dependency["ref"]]);
        for reference in needed {
            assert!(known.contains(reference.as_str().unwrap()), "{reference} is not listed");
        }
    }
    let has = |name| components.iter().any(|component| component["name"] == name);
    // One that is linked, one that tests, and one that the compiler runs.
    assert!(has("rustix") && !has("proptest") && !has("serde_derive"));
}

#[test]
#[ignore = "slow; make test-slow runs it"]
fn debians_own_judge_finds_no_error_in_the_package() {
    require_program("lintian", "lintian");
    let scratch = Scratch::new("lintian");
    let packages = packages::packed(&scratch, "dist", "0.1.0", "host");
    // Tests pack without compression.
    let known = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";
    let lintian = Program::line("lintian --allow-root --fail-on error --suppress-tags").arg(known);
    lintian.arg(packages.deb("0.1.0")).run(600).ok();
}

#[test]
#[ignore = "slow; make test-slow runs it"]
fn the_same_build_gives_the_same_packages() {
    let scratch = Scratch::new("packages");
    // With the library for old systems, which fails if it needs a newer glibc.
    let sums = ["first", "second"].map(|name| {
        let packages = packages::packed(&scratch, name, "0.1.0", "2.28");
        fs::read_to_string(packages.0.join("SHA256SUMS")).unwrap()
    });
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0].lines().count(), 6);
}
