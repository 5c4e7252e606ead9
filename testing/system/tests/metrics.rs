//! `towpath metrics` and Prometheus itself: it reads the page, and its tool judges the alerts.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use towpath_system_tests::{Program, Scratch, Service, bin, own_network, require_program, until};

const CONFIGURATION: &str = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }
scrape_configs:
  - job_name: towpath
    static_configs: [{ targets: [\"127.0.0.1:9464\"] }]
rule_files: [towpath.rules.yml]
";

fn packaged() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus"))
}

#[test]
fn prometheus_reads_the_page_and_knows_when_the_service_has_gone() {
    require_program("prometheus", "prometheus");
    own_network();
    let mut service = Service::embedded();
    let scratch = Scratch::new("prometheus");
    fs::copy(packaged().join("towpath.rules.yml"), scratch.path("towpath.rules.yml")).unwrap();
    fs::write(scratch.path("prometheus.yml"), CONFIGURATION).unwrap();
    let metrics = Program::new(&[bin("towpath")]).arg("metrics").arg("--socket").arg(&service.socket);
    let mut metrics = metrics.arg("--listen").arg("9464").start(scratch.path("metrics.log"));
    metrics.wait_for("metrics at http://127.0.0.1:9464/metrics", 20);
    let prometheus = Program::new(&["prometheus", "--web.listen-address=127.0.0.1:9090"]).dir(scratch.path(""));
    let prometheus = prometheus.arg("--config.file=prometheus.yml").arg("--storage.tsdb.path=data");
    let mut prometheus = prometheus.start(scratch.path("prometheus.log"));
    let ask = |question: &str| {
        let ask = Program::new(&["promtool", "query", "instant", "http://127.0.0.1:9090"]);
        ask.arg(question).run(60)
    };
    until("the stack is up", 60, || ask("towpath_up").out.contains("stack=\"home\"} => 1 @"));
    assert_eq!(ask("count({__name__=~\"towpath_.*\"} < 0)").ok().trim(), "", "nothing is negative");
    assert!(ask("towpath_dropped_frames_total{reason=\"no_socket\"}").ok().contains("stack=\"home\""));
    // Histograms are what it takes them for.
    let echo = "import socket
l = socket.create_server(('127.0.0.1', 7831)); c = socket.create_connection(('127.0.0.1', 7831)); s = l.accept()[0]
for _ in range(200): c.sendall(b'x'); s.sendall(s.recv(1)); c.recv(1)";
    service.accelerated("python3 -c").arg(echo).run(60).ok();
    for metric in ["round_trip", "request"] {
        let quantile = format!("histogram_quantile(0.5, sum by (le, stack) (towpath_{metric}_seconds_bucket)) < 16");
        until(metric, 60, || ask(&quantile).out.contains("stack=\"home\"} => "));
    }
    let seconds = "sum by (stack) (towpath_program_busy_seconds_total{program=~\"python3.*\"}) > 0";
    until("its time is the program's", 60, || ask(seconds).out.contains("stack=\"home\"} => "));
    // It goes on serving the page, which says so.
    service.running.stop();
    until("the stack is down", 60, || ask("towpath_up").out.contains("stack=\"home\"} => 0 @"));
    until("an alert is on its way", 60, || ask("ALERTS{alertname=\"TowpathDown\"}").out.contains("stack=\"home\""));
    assert!(prometheus.alive() && metrics.alive());
    prometheus.stop();
    metrics.stop();
}

#[test]
fn the_alerts_do_what_they_say() {
    require_program("promtool", "prometheus");
    let judge = |what: &str, file: &str| {
        Program::new(&["promtool", what, "rules"]).arg(packaged().join(file)).run(60).ok();
    };
    judge("check", "towpath.rules.yml");
    judge("test", "towpath.test.yml");
}

#[test]
fn a_page_is_shown_once_or_at_a_socket_that_nobody_else_has() {
    let service = Service::embedded();
    let scratch = Scratch::new("metrics");
    let path = scratch.path("metrics.sock");
    let at = format!("unix:{}", path.display());
    let metrics = || Program::new(&[bin("towpath")]).arg("metrics").arg("--socket").arg(&service.socket);
    let once = metrics().run(30).ok();
    assert!(once.contains("towpath_up{stack=\"home\"} 1.0") && once.ends_with("# EOF\n"), "{once}");

    let mut serving = metrics().arg("--listen").arg(&at).start(scratch.path("log"));
    serving.wait_for(&format!("metrics at {at}"), 20);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{page}");
    assert!(page.contains("towpath_up{stack=\"home\"} 1.0"), "{page}");
    let second = metrics().arg("--listen").arg(&at).run(30);
    assert!(second.code == 1 && second.err.contains("Address already in use"), "{}", second.err);

    // Whoever was killed leaves a socket that the next one replaces. It replaces nothing else.
    serving.signal(9);
    serving.wait_end(20);
    let mut serving = metrics().arg("--listen").arg(&at).start(scratch.path("log2"));
    serving.wait_for(&format!("metrics at {at}"), 20);
    serving.stop();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    assert_eq!(metrics().arg("--listen").arg(&at).run(30).code, 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");

    let nobody = Program::new(&[bin("towpath")]).arg("metrics").arg("--socket").arg(scratch.path("none")).run(30);
    assert!(nobody.code == 3 && nobody.err.contains("no Towpath service"), "{}", nobody.err);
}
