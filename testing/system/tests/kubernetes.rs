//! The manifests in `packaging/kubernetes`. There is no cluster here: their fields are judged, and what they say of Towpath.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use towpath_system_tests::{Program, Scratch, bin, require_program};

fn manifest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes").join(name)
}

/// The judge's answer, and whether all is good.
fn judged(files: &[&Path]) -> (String, bool) {
    require_program("python3", "python3 python3-yaml");
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/check");
    let out = files.iter().fold(Program::new(&[&check]), Program::arg).run(60);
    assert!(out.code <= 1 && !out.err.contains("Traceback"), "apt-get install python3-yaml? {out:?}");
    (out.out, out.code == 0)
}

#[test]
fn the_manifests_have_fields_that_kubernetes_knows_and_name_what_is_there() {
    let (service, example) = (manifest("towpath.yaml"), manifest("example.yaml"));
    assert_eq!(judged(&[&service, &example]), ("good\n".into(), true));
    // The judge finds faults.
    let (scratch, text) = (Scratch::new("manifests"), fs::read_to_string(&service).unwrap());
    let file = scratch.path("bad.yaml");
    for (from, to, found) in [
        ("hostPID", "hostPid", "hostPid is unknown"),
        ("hostPID: true", "hostPID: yes please", "is not true or false"),
        ("name: config\n", "name: configs\n", "mounted or there"),
        ("apps/v1", "apps/v1beta1", "is unknown"),
        (
            "  name: towpathd\n  namespace: towpath\ndata",
            "  name: other\n  namespace: towpath\ndata",
            "no ConfigMap towpathd",
        ),
    ] {
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let (said, good) = judged(&[&file]);
        assert!(!good && said.contains(found), "{from}: {said}");
    }
}

#[test]
fn the_manifests_say_what_towpath_does() {
    let scratch = Scratch::new("copied");
    let [service, example] = ["towpath.yaml", "example.yaml"].map(|name| fs::read_to_string(manifest(name)).unwrap());
    // What the init container writes is what the example has, but for the place.
    let place = scratch.path("lib");
    let generate = Program::new(&[bin("towpath")]).arg("cdi").arg("generate").arg("--copy").arg(&place);
    let description: serde_json::Value = serde_json::from_str(&generate.run(60).ok()).unwrap();
    let edits = &description["devices"][0]["containerEdits"];
    assert!(service.contains("--copy, /opt/towpath/lib,"));
    for variable in edits["env"].as_array().unwrap() {
        let (name, value) = variable.as_str().unwrap().split_once('=').unwrap();
        let value = value.replace(place.to_str().unwrap(), "/opt/towpath/lib");
        assert!(example.contains(&format!("- name: {name}\n          value: {value}\n")), "{variable}");
    }
    // The library that was copied loads, and the copies are all that the description names.
    for mount in edits["mounts"].as_array().unwrap().iter().skip(1) {
        let path = mount["hostPath"].as_str().unwrap();
        assert!(path.starts_with(place.to_str().unwrap()) && Path::new(path).exists(), "{path}");
    }
    Program::line("/bin/true").env("LD_PRELOAD", place.join("libtowpath_start.so")).run(20).ok();
    // The configuration is one.
    let (_, rest) = service.split_once("towpathd.toml: |\n").unwrap();
    let lines: String =
        rest.lines().take_while(|line| line.starts_with("    ")).map(|line| format!("{}\n", &line[4..])).collect();
    let configuration = scratch.path("towpathd.toml");
    fs::write(&configuration, &lines).unwrap();
    assert!(lines.contains("admit"));
    Program::new(&[bin("towpath")]).arg("check-config").arg(&configuration).run(20).ok();
}
