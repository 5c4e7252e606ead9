//! A service on devices that stand on others, in a guest with Linux 6.12: this host's kernel may lack their modules.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{bin, bin_dir, booted, require_root};

/// The device of each number in `guest/devices.sh`.
const DEVICES: [&str; 4] = ["act0", "lag0", "vl0", "iv0"];

#[test]
#[ignore = "boots a guest: scripts/setup guest; make test-slow"]
fn bonds_a_vlan_and_ipvlan_are_served_and_a_connection_outlives_a_link_of_its_bond() {
    require_root();
    let kernel = booted::newer_kernel();
    bin("towpathd");
    let said = booted::run(&kernel, "devices.sh", &[bin_dir()], 1500);
    let whole = said.whole();
    let served = DEVICES.map(|name| format!("{name}=packet")).join(" ");
    assert_eq!(said.line("served"), served, "{whole}");
    for number in 1..=DEVICES.len() {
        assert_eq!(said.line(&format!("answer {number}")), "True True", "{whole}");
    }
    assert_eq!(said.line("active"), "a1 then a2", "the first link has failed: {whole}");
    assert_eq!(said.line("after"), "True True", "the same connection: {whole}");
    assert_eq!(said.line("counts 1"), "4 0", "all by the stack: {whole}");
}
