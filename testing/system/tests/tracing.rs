//! The probes of `towpathd`, their page in the guide, and the scripts in `tools/`. Traced is one worker process alone, because other
//! tests run the same program.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use towpath_system_tests::module::{module, object};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, bin, require_program, require_root, until};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The probes of a program with the numbers of their arguments, from its ELF notes.
fn probes(program: &PathBuf) -> BTreeMap<String, usize> {
    require_program("readelf", "binutils");
    let notes = Program::line("readelf --notes --wide").arg(program).run(60).ok();
    let field = |line: &str, name: &str| line.trim().strip_prefix(name).map(|value| value.trim().to_string());
    let (mut found, mut name) = (BTreeMap::new(), None);
    for line in notes.lines() {
        if let Some(provider) = field(line, "Provider:") {
            assert_eq!(provider, "towpath");
        }
        name = field(line, "Name:").or(name);
        if let Some(arguments) = field(line, "Arguments:") {
            let name = name.take().expect("a name before the arguments");
            let count = arguments.split_whitespace().count();
            assert_eq!(*found.entry(name.clone()).or_insert(count), count, "{name} is not the same everywhere");
        }
    }
    found
}

/// The words in backticks.
fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The same as the guide has it: `| probe | when | arguments |`.
fn described() -> BTreeMap<String, usize> {
    let page = std::fs::read_to_string(root().join("docs/guide/tracing.md")).expect("the guide");
    let (_, table) = page.split_once("| probe | when | arguments |\n|---|---|---|\n").expect("the table of all probes");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let name = words(cells[1]).next().unwrap_or_else(|| panic!("no probe in {row}"));
        (name.to_string(), words(cells[3]).count())
    })
    .collect()
}

#[test]
fn the_guide_has_all_probes_of_the_program_and_no_others() {
    let program = bin("towpathd");
    let found = probes(&program);
    assert_eq!(found, described(), "the program on the left, docs/guide/tracing.md on the right");
    assert!(found.values().all(|count| *count <= 6), "bpftrace shows six arguments at most: {found:?}");

    let scratch = Scratch::new("tracing");
    for how in ["--strip-debug", "--strip-all"] {
        let stripped = scratch.path("towpathd");
        Program::line("strip").arg(how).arg("-o").arg(&stripped).arg(&program).run(60).ok();
        assert_eq!(probes(&stripped), found, "strip {how} has taken probes away");
    }
}

/// bpftrace, with tracefs in a mount namespace of its own: it needs that for the end, and no test may change what is mounted here.
fn bpftrace() -> Program {
    require_root();
    require_program("bpftrace", "bpftrace");
    let mounted = "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing || exit
exec \"$0\" \"$@\"";
    Program::line("unshare --mount sh -c").arg(mounted).arg("bpftrace")
}

#[test]
fn bpftrace_lists_the_probes_and_reads_the_scripts() {
    let program = bin("towpathd");
    let listed = bpftrace().arg("-l").arg(format!("usdt:{}:towpath:*", program.display())).run(60).ok();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(':').next()).collect();
    assert_eq!(names, described().into_keys().collect::<Vec<_>>(), "{listed}");

    // Version 0.22 has another word for it.
    let help = bpftrace().arg("--help").run(60);
    let dry = if [help.out, help.err].concat().contains("--dry-run") { "--dry-run" } else { "-d" };
    for script in std::fs::read_dir(root().join("tools")).unwrap() {
        let script = script.unwrap().path();
        if script.extension().is_some_and(|name| name == "bt") {
            bpftrace().arg(dry).arg(&script).arg(&program).run(60).ok();
        }
    }
}

/// A script of `tools/` that traces a service.
struct Tracing(Running);

impl Tracing {
    /// Returns once all probes are attached.
    fn begin(service: &Service, name: &str) -> Self {
        let worker = service.running.worker().to_string();
        let program = bpftrace().arg("-B").arg("none").arg("-p").arg(worker);
        let program = program.arg(root().join("tools").join(format!("{name}.bt")));
        let program = program.env("__BPFTRACE_NOTIFY_PROBES_ATTACHED", "1");
        let mut running = program.start(service.scratch.path(&format!("{name}.log")));
        running.wait_for("__BPFTRACE_NOTIFY_PROBES_ATTACHED", 120);
        Self(running)
    }
    /// Waits for a line that contains these words in this order.
    fn wait_for(&mut self, what: &[&str]) -> String {
        let mut found = String::new();
        until(&format!("a line with {what:?}"), 60, || {
            let output = self.0.output();
            assert!(self.0.alive(), "it has ended:\n{output}");
            let line = output.lines().find(|line| has(line, what));
            found = line.unwrap_or_default().to_string();
            line.is_some()
        });
        found
    }
    /// Ends it, and returns all that it has printed.
    fn end(mut self) -> String {
        self.0.signal(libc::SIGINT);
        self.0.wait_end(60);
        self.0.output()
    }
}

fn has(line: &str, what: &[&str]) -> bool {
    what.iter().try_fold(line, |rest, word| rest.split_once(word).map(|(_, rest)| rest)).is_some()
}

/// The number at the end of the line with these words in this order.
fn number(output: &str, what: &[&str]) -> u64 {
    let line = output.lines().find(|line| has(line, what)).unwrap_or_else(|| panic!("no {what:?} in\n{output}"));
    line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Drops the frames for one port.
const ONE_WAY: &str = "
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); } to SEC(\".maps\");
SEC(\"xdp\") int one_way(struct xdp_md *ctx)
{
    unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u32 zero = 0, *port = bpf_map_lookup_elem(&to, &zero);
    if (!port || data + 38 > end) return XDP_PASS;
    return (data[36] << 8 | data[37]) == *port ? XDP_DROP : XDP_PASS;
}";

/// Both ends of a connection. It goes on when its directory has the files `send` and `close`.
const TALK: &str = "
import os, socket, time
def file(name):
    while not os.path.exists(name): time.sleep(0.001)
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
print('ports', l.getsockname()[1], c.getsockname()[1], '.', flush=True)
file('send'); c.sendall(b'x' * 1000)
assert len(s.recv(1000, socket.MSG_WAITALL)) == 1000
file('close'); c.close(); s.close(); l.close()";

/// A connection whose acknowledgements are lost for a while: so the client sends again, and the server drops that.
#[test]
fn the_scripts_print_what_happens_to_a_connection() {
    let service = Service::embedded();
    let object = object(&service.scratch, "one_way", Some(ONE_WAY));
    module(&service, &format!("add way {}", object.display())).run(60).ok();
    let [mut connections, mut retransmits, mut drops, stages] =
        ["connections", "retransmits", "drops", "stages"].map(|name| Tracing::begin(&service, name));

    let talk = service.accelerated("python3 -u -c").arg(TALK).dir(service.scratch.path(""));
    let mut talk = talk.start(service.scratch.path("talk.log"));
    talk.wait_for(" .", 60);
    let ports = talk.output();
    let ports: Vec<&str> = ports.split_whitespace().skip_while(|word| *word != "ports").collect();
    let [server, client] = [1, 2].map(|at| format!("127.0.0.1:{}", ports[at]));
    connections.wait_for(&["connect ", " 0.0.0.0:0 > ", &server]);
    connections.wait_for(&["open ", &client, " > ", &server]);
    connections.wait_for(&["open ", &server, " > ", &client]);
    connections.wait_for(&["accept ", &server, " > ", &client]);

    module(&service, &format!("maps way to set 0 {}", ports[2])).run(30).ok();
    std::fs::write(service.scratch.path("send"), "").unwrap();
    retransmits.wait_for(&[" rto ", " 1000"]);
    let again = retransmits.wait_for(&[" after rto ", " 1000 ", &client, " > ", &server]);
    assert!(has(&again, &[" 0 "]), "no flow group in {again}");
    drops.wait_for(&["@new[fast-0, duplicate: "]);
    module(&service, "maps way to set 0 0").run(30).ok();

    std::fs::write(service.scratch.path("close"), "").unwrap();
    talk.wait_end(60);
    connections.wait_for(&["close ", " > ", &server]);
    connections.wait_for(&["close ", " > ", &client]);

    connections.end();
    let output = retransmits.end();
    assert!(number(&output, &["@bytes_again[127.0.0.1, ", "]: "]) >= 1000, "{output}");
    let output = drops.end();
    assert!(number(&output, &["@all[fast-0, duplicate: "]) >= 1, "{output}");
    let output = stages.end();
    let stage = |what, name: &str| number(&output, &[what, "[0, ", name, "]: "]);
    for name in ["messages", "take", "pre", "protocol", "deliver", "publish", "data", "egress", "flush", "slow"] {
        assert!(stage("@items", name) > 0 && stage("@sum_ns", name) > 0, "{name} in\n{output}");
    }
    for total in ["@turns[0]: ", "@received[0]: ", "@sent[0]: "] {
        assert!(number(&output, &[total]) > 1, "{total} in\n{output}");
    }
}

#[test]
fn a_direct_connection_is_shown_once_for_each_end() {
    let service = Service::direct();
    let mut connections = Tracing::begin(&service, "connections");
    for file in ["send", "close"] {
        std::fs::write(service.scratch.path(file), "").unwrap();
    }
    service.accelerated("python3 -u -c").arg(TALK).dir(service.scratch.path("")).run(60).ok();
    connections.wait_for(&["close ", " > 127.0.0.1:"]);
    until("both ends are closed", 60, || connections.0.output().matches(" close ").count() == 2);
    let output = connections.end();
    let open = output.lines().filter(|line| has(line, &["open ", "     - ", " > "])).count();
    assert_eq!((open, output.matches(" accept ").count()), (2, 1), "{output}");
}
