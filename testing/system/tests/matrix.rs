//! Real programs, each with a short form of its own test: `testing/system/matrix`. `make matrix` runs the long form,
//! beside Linux.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use towpath_system_tests::{Program, bin_dir, require_program, require_root};

fn matrix() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("matrix")
}

/// All quick tests of one program must pass. The kernel of their namespaces refuses TCP, so Towpath must have carried
/// it.
fn short_form(name: &str) {
    run(name, &["fast"]);
}

/// [`short_form`] over the kernel stack in another namespace, and over one in a second kernel.
fn over_kernel_stacks(name: &str) {
    require_program("linux.uml", "user-mode-linux");
    run(name, &["kernel", "uml"]);
}

fn run(name: &str, stacks: &[&str]) {
    require_root();
    require_program("python3", "python3");
    let program = Program::new(&[matrix().join("run")]).arg("--bin").arg(bin_dir()).arg("--quick").arg(name);
    let run = stacks.iter().fold(program, |program, stack| program.arg("--stack").arg(stack)).run(500);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    println!("{}", run.out);
}

#[test]
fn redis_answers_its_benchmark_and_client() {
    short_form("redis");
}

#[test]
fn memcached_serves_with_four_threads() {
    short_form("memcached");
}

#[test]
fn nginx_serves_with_four_workers() {
    short_form("nginx");
}

#[test]
fn redis_answers_over_the_kernel_stacks() {
    over_kernel_stacks("redis");
}

#[test]
fn memcached_serves_over_the_kernel_stacks() {
    over_kernel_stacks("memcached");
}

#[test]
fn nginx_serves_and_is_replaced_over_the_kernel_stacks() {
    over_kernel_stacks("nginx");
}

#[test]
fn postgresql_answers_over_the_kernel_stacks() {
    over_kernel_stacks("postgresql");
}

#[test]
fn cpython_passes_its_own_tests_over_the_kernel_stacks() {
    over_kernel_stacks("cpython");
}

#[test]
fn static_programs_serve_over_the_kernel_stacks() {
    over_kernel_stacks("musl");
}

#[test]
fn haproxy_splices_between_nginx_and_its_clients() {
    short_form("haproxy");
}

#[test]
fn postgresql_answers_pgbench_and_psql() {
    short_form("postgresql");
}

#[test]
fn openssh_runs_commands_and_copies_files() {
    short_form("openssh");
}

#[test]
fn iperf3_measures_forward_in_reverse_and_in_parallel() {
    short_form("iperf3");
}

#[test]
fn cpython_passes_its_own_tests_of_epoll_servers_and_clients() {
    short_form("cpython");
}

#[test]
fn rsync_carries_a_tree_to_its_daemon_and_back() {
    short_form("rsync");
}

#[test]
fn socat_serves_with_a_process_per_connection() {
    short_form("socat");
}

#[test]
fn musl_serves_by_epoll_and_by_processes() {
    short_form("musl");
}

#[test]
fn systemd_activates_programs_with_listeners_and_connections() {
    short_form("systemd");
}

#[test]
fn inetd_starts_programs_on_connections_and_listeners() {
    short_form("inetd");
}

#[test]
fn lighttpd_serves_files_a_proxy_and_cgi() {
    short_form("lighttpd");
}

#[test]
fn apache_serves_by_threads_and_processes_and_restarts_under_load() {
    short_form("apache2");
}

#[test]
fn gunicorn_serves_by_processes_and_threads_and_reloads_under_load() {
    short_form("gunicorn");
}

#[test]
fn dropbear_runs_commands() {
    short_form("dropbear");
}

#[test]
fn stunnel_carries_tls_before_nginx() {
    short_form("stunnel");
}

#[test]
fn mosquitto_delivers_messages() {
    short_form("mosquitto");
}

#[test]
fn gdb_strace_and_valgrind_look_at_a_server() {
    short_form("gdb");
}

#[test]
fn h2o_serves_http2_and_hands_its_listeners_on() {
    short_form("h2o");
}

#[test]
fn varnish_fetches_and_keeps_files() {
    short_form("varnish");
}

#[test]
fn php_fpm_answers_nginx_and_reloads_under_load() {
    short_form("php");
}

#[test]
fn uvicorn_serves_on_uvloop() {
    short_form("uvicorn");
}

#[test]
fn pgbouncer_pools_and_is_taken_over_under_load() {
    short_form("pgbouncer");
}

#[test]
fn dnsmasq_answers_over_tcp() {
    short_form("dnsmasq");
}

#[test]
fn grpc_calls_and_streams() {
    short_form("grpc");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn erlang_echoes_by_its_drivers() {
    short_form("erlang");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn mariadb_answers_its_client_and_mysqlslap() {
    short_form("mariadb");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn go_serves_and_asks_over_http_https_and_http2() {
    short_form("go");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn node_serves_and_asks_over_http_and_https() {
    short_form("node");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn a_jvm_serves_and_asks_by_selectors_and_channels() {
    short_form("java");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn libuv_passes_its_own_tests_of_tcp() {
    short_form("libuv");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn puma_serves_and_executes_itself_anew() {
    short_form("puma");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn caddy_serves_http2_and_takes_a_new_configuration() {
    short_form("caddy");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn nats_delivers_messages_in_a_cluster() {
    short_form("nats");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn etcd_keeps_keys_in_a_cluster_of_three() {
    short_form("etcd");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn prometheus_scrapes_and_answers() {
    short_form("prometheus");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn rabbitmq_delivers_messages_and_is_asked_by_another_node() {
    short_form("rabbitmq");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn bun_serves_and_asks() {
    short_form("bun");
}

#[test]
#[ignore = "needs large packages: scripts/setup matrix; make test-slow runs it"]
fn deno_serves_and_asks() {
    short_form("deno");
}

#[test]
fn every_program_of_the_matrix_has_a_short_form_here() {
    let source = include_str!("matrix.rs");
    for entry in std::fs::read_dir(matrix().join("programs")).expect("programs") {
        let path = entry.expect("entry").path();
        let name = path.file_stem().expect("name").to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "py") {
            assert!(source.contains(&format!("short_form(\"{name}\")")), "{name} has no test here");
        }
    }
}
