//! Benchmarks run, and print the keys that are read from them. No test judges their speed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeSet;
use towpath_system_tests::{Program, bin, require_program, require_root};

/// Runs `towpath bench`, and returns the JSON lines that it prints.
fn rows(line: &str, seconds: u64) -> Vec<Value> {
    require_root();
    require_program("ethtool", "ethtool");
    bin("towpath-rpc");
    bin("towpath-bench");
    let program = Program::new(&[bin("towpath")]).arg("bench");
    let said = line.split(' ').fold(program, Program::arg).arg("--json").run(seconds).ok();
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    assert!(rows.iter().all(|row| row["schema"] == 1), "{said}");
    rows
}

#[test]
fn every_arm_has_its_row_or_says_why_not() {
    let rows = rows("anp --rounds 1 --seconds 1 --settle 2 --connections 8 --loops 2 --most 1 --repeats 0", 300);
    let arms = ["symmetric", "reserved 1", "chosen", "busy poll"];
    assert_eq!(rows.len(), 2 * 2 * arms.len(), "two servers, a closed and an open loop: {rows:?}");
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["arm"], arms[index % arms.len()], "{row}");
        assert!(
            row["load"].as_str().is_some_and(|load| load.starts_with("closed:8") || load.starts_with("open:")),
            "{row}"
        );
        if row["arm"] == "busy poll" && row["why"].is_string() {
            continue;
        }
        for figure in ["requests_per_s", "mean_us", "p50_us", "p99_us", "p999_us", "to_symmetric", "to_best"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {row}");
        }
        assert!(row["best"] == "symmetric" || row["best"] == "reserved 1", "{row}");
    }
    let servers: BTreeSet<&str> = rows.iter().filter_map(|row| row["server"].as_str()).collect();
    assert_eq!(servers, BTreeSet::from(["loops", "poller"]));
    assert!(
        rows.iter().filter(|row| row["arm"] == "chosen").all(|row| row["decided_s"].as_u64() > Some(0)),
        "{rows:?}"
    );
}

#[test]
fn stages_have_their_times_and_instructions_and_what_more_cpus_could_have() {
    bin("towpath-stages");
    require_program("valgrind", "valgrind");
    let answer = rows("stages --rounds 2 --milliseconds 20 --payload 64", 300);
    let measured = &answer[0]["measured"][0];
    let names: Vec<&str> =
        measured["stages"].as_array().expect("stages").iter().filter_map(|s| s["stage"].as_str()).collect();
    assert_eq!(names, ["sequence", "pre", "protocol", "deliver", "build", "commit"]);
    for stage in measured["stages"].as_array().expect("stages") {
        assert!(
            stage["nanoseconds"]["median"].as_f64() > Some(0.0) && stage["instructions"].as_f64() > Some(0.0),
            "{stage}"
        );
    }
    for way in ["two_stage_threads", "two_flow_groups"] {
        assert!(measured[way]["frames_per_s"]["least"].as_f64() > Some(0.0), "{measured}");
    }
    assert!(measured["one_instructions"].as_f64() > Some(0.0), "{measured}");
    let bounds = measured["bounds"].as_array().expect("bounds");
    assert!(bounds.iter().all(|bound| bound["frames_per_s"].as_f64() > Some(0.0)), "{measured}");
    assert!(answer[0]["machine"].as_array().is_some_and(|facts| !facts.is_empty()), "{answer:?}");
}

#[test]
fn modules_are_counted_and_timed_beside_the_kernel() {
    bin("towpath-instructions");
    require_program("clang", "clang libbpf-dev");
    require_program("valgrind", "valgrind");
    let answer = rows("modules --rounds 1", 300);
    // Who uses no module pays for none.
    for side in ["ingress_instructions", "egress_instructions"] {
        assert_eq!(answer[0]["removed"][side], 0.0, "{answer:?}");
    }
    let rows = answer[0]["modules"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["module"].as_str()).collect();
    assert_eq!(names, ["null", "parse", "hash", "filter"]);
    // The last row is a capture's filter, which is no module.
    let modules = &rows[..3];
    let count = |row: &Value, side: &str| row[side].as_f64().expect("a count");
    for side in ["ingress_instructions", "egress_instructions"] {
        assert!(count(&rows[3], side) > 0.0);
        let counts: Vec<f64> = modules.iter().map(|row| count(row, side)).collect();
        assert!(counts[0] > 0.0 && counts.is_sorted_by(|less, more| less < more), "{side}: {counts:?}");
    }
    assert!(rows.iter().all(|row| row["kernel_ns"]["median"].as_f64() > Some(0.0)), "{rows:?}");
    let splicing = answer[0]["splicing"].as_array().unwrap_or_else(|| panic!("{}", answer[0]["splicing_failed"]));
    let stacks: Vec<&str> = splicing.iter().filter_map(|row| row["stack"].as_str()).collect();
    assert_eq!(stacks, ["linux", "towpath"]);
    assert!(splicing.iter().all(|row| row["requests_per_s"].as_f64() > Some(0.0)), "{splicing:?}");
}

/// The rows of a benchmark that has one shape: each stack's, with these figures of at least one round.
fn each_stack(line: &str, stacks: &[&str], figures: &[&str]) {
    let rows = rows(line, 300);
    let found: Vec<&str> = rows.iter().filter_map(|row| row["stack"].as_str().or(row["way"].as_str())).collect();
    assert_eq!(found, stacks, "{rows:?}");
    for row in &rows {
        for figure in figures {
            assert!(row[figure].as_f64() > Some(0.0), "{figure}: {row}");
            assert!(row["rounds"][0][figure].as_f64() > Some(0.0), "{figure} of a round: {row}");
        }
    }
}

#[test]
fn many_connections_take_turns_beside_few() {
    let line = "many --connections 600 --few 64 --rounds 1 --seconds 0.3";
    each_stack(line, &["linux", "towpath"], &["to_few", "many_per_s", "few_per_s", "many_p50_us", "few_p50_us"]);
}

#[test]
fn a_transfer_goes_on_under_a_flood() {
    let line = "flood --rounds 1 --seconds 0.5 --per-second 10000";
    each_stack(line, &["linux", "towpath"], &["bytes_per_s", "longest_stall_ms", "syns_per_s"]);
}

#[test]
fn an_idle_connection_has_given_back_what_its_rings_held() {
    let rows = rows("memory --connections 300 --rounds 1", 300);
    let of = |figure: &str| rows[0][figure].as_f64().expect("a figure");
    assert!(of("own_bytes") > 0.0 && of("bytes") > of("own_bytes") && of("busy_bytes") > of("bytes"), "{rows:?}");
}

#[test]
fn a_connection_for_each_request_is_compared_on_one_host() {
    let ways = ["linux", "linux, spinning", "linux, one CPU", "stack", "direct"];
    each_stack(
        "direct --shape rpc-per-connection --rounds 1 --seconds 0.5",
        &ways,
        &["per_s", "p50_us", "cpu_ns_per_request"],
    );
}

#[test]
fn a_ramp_has_ten_loads() {
    let line = "anp --ramp --rounds 1 --seconds 0.2 --warm-up 0.1 --connections 20 --server loops --arms symmetric --repeats 0";
    let rows = rows(line, 120);
    let loads: Vec<&str> = rows.iter().filter_map(|row| row["load"].as_str()).collect();
    let wanted: Vec<String> = (1..=10).map(|step| format!("closed:{}", 2 * step)).collect();
    assert_eq!(loads, wanted);
    assert!(rows.iter().all(|row| row["arm"] == "symmetric" && row["to_best"] == 1.0), "{rows:?}");
}

#[test]
fn cores_and_latency_are_there_for_every_tenth_of_a_second() {
    let rows = rows("cores --seconds 1 --cores 1-2 --low 200 --high 8 --loops 2", 120);
    let times: Vec<f64> = rows.iter().filter_map(|row| row["t_s"].as_f64()).collect();
    assert_eq!(times.len(), 50, "five steps of a second: {rows:?}");
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    let known = rows.iter().filter_map(|row| row["cores"].as_u64());
    assert!(known.clone().count() > 0 && known.into_iter().all(|cores| (1..=2).contains(&cores)), "{rows:?}");
    for row in &rows {
        assert_eq!(row["most"], 2, "{row}");
        assert_eq!(row["p99_us"].is_null(), row["requests_per_s"] == 0.0, "{row}");
    }
    assert!(rows.iter().any(|row| row["load"] == "closed:8" && row["requests_per_s"].as_f64() > Some(0.0)));
}
