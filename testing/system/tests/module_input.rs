//! What `towpath module add` takes: the program of the guide's page as it stands there, programs that are refused, and those that
//! no verifier has judged.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::module::{asks, count, counts, json, module, object};
use towpath_system_tests::{Lab, Program, Service, bin_dir, require_program, until};

/// Indented lines of the guide below a heading, without their indentation: blocks of them.
fn blocks(heading: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/modules.md");
    let page = std::fs::read_to_string(page).unwrap();
    let part = page.split_once(&format!("\n## {heading}\n")).expect("the heading").1;
    let part = part.split("\n## ").next().unwrap();
    let mut blocks = vec![String::new()];
    for line in part.lines() {
        match line.strip_prefix("    ") {
            Some(code) => *blocks.last_mut().unwrap() += &format!("{code}\n"),
            None if blocks.last().is_some_and(|block| !block.is_empty()) => blocks.push(String::new()),
            None => {}
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

#[test]
fn the_guides_ten_lines_are_compiled_added_and_count() {
    require_program("clang", "clang");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let serve = "import socket
l = socket.create_server(('', 7000)); print('ready', flush=True)
while True:
    c, _ = l.accept()
    while c.recv(100): c.sendall(b'answer')
    c.close()";
    let server = lab.on_server(service.accelerated("python3 -u -c").arg(serve));
    let mut server = server.start(service.scratch.path("server.log"));
    server.wait_for("ready", 30);

    let [source, commands] = &blocks("Ten lines")[..] else {
        panic!("a source and its commands: {:?}", blocks("Ten lines"))
    };
    assert!((8..=12).contains(&source.lines().count()), "ten lines, more or less:\n{source}");
    std::fs::write(service.scratch.path("count.bpf.c"), source).unwrap();
    let path = format!("{}:{}", bin_dir().display(), std::env::var("PATH").unwrap());
    let types = |line: &str| {
        let shell = Program::new(&["sh", "-c", line]).dir(&service.scratch.0).env("PATH", &path);
        shell.env("TOWPATH_SOCKET", &service.socket).run(60).ok()
    };
    let commands: Vec<_> = commands.lines().collect();
    let [compile, add, rest @ ..] = &commands[..] else { panic!("{commands:?}") };
    assert!(compile.starts_with("clang ") && add.starts_with("towpath module add "), "{commands:?}");
    types(compile);
    types(add);
    assert_eq!(json(&service, "list")["modules"][0]["compiled"], true);
    assert_eq!(asks(&lab, 7000), "answer");
    until("frames", 30, || count(&service, "count", "pass") > 3);
    let small = json(&service, "maps count sizes dump")["elements"][0]["numbers"][0].as_u64().unwrap();
    assert!(small > 3, "{small}");
    for line in rest {
        let said = types(line);
        assert!(!line.contains(" stats") || said.contains("count"), "{line}: {said}");
        assert!(!line.contains(" dump") || said.lines().count() > 60, "{line}: {said}");
    }
    assert_eq!(json(&service, "list")["modules"].as_array().unwrap().len(), 0, "the last one removes it");
}

/// What is refused, and words that the message has: each of a group, one at least.
const REFUSED: [(&str, &str, &[&[&str]]); 4] = [
    (
        "endless",
        "SEC(\"xdp\") int f(struct xdp_md *c) { volatile int i = 0; for (;;) i++; return XDP_PASS; }",
        &[&["the kernel's verifier refuses f: "], &["infinite loop", "too large", "back-edge"]],
    ),
    (
        "stack",
        "SEC(\"xdp\") int f(struct xdp_md *c) { asm volatile(\"*(u64 *)(r10 - 520) = r1\" ::: \"memory\"); return XDP_PASS; }",
        &[&["the kernel's verifier refuses f: "], &["invalid write to stack"]],
    ),
    (
        "stacks",
        "static __attribute__((noinline)) int g(int by) { volatile char own[400] = {}; own[by & 255] = by; return own[7]; }
SEC(\"xdp\") int f(struct xdp_md *c) {
    volatile char own[400] = {}; own[c->rx_queue_index & 255] = 1; return g(own[5]) ? XDP_DROP : XDP_PASS; }",
        &[&["the kernel's verifier refuses f: "], &["combined stack size"]],
    ),
    (
        "map",
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1 << 28); __type(key, __u32); __type(value, __u64); } much
    SEC(\".maps\");
SEC(\"xdp\") int f(struct xdp_md *c) { __u32 k = 0; return bpf_map_lookup_elem(&much, &k) ? XDP_PASS : XDP_DROP; }",
        &[&["map much: it would take "], &[", more than 1073741824"]],
    ),
];

#[test]
fn programs_that_do_not_end_or_take_too_much_are_refused_in_words_that_say_so() {
    let service = Service::embedded();
    for (name, text, words) in REFUSED {
        let out =
            module(&service, &format!("add {name} {}", object(&service.scratch, name, Some(text)).display())).run(60);
        assert_ne!(out.code, 0, "{name}");
        let all = words.iter().all(|group| group.iter().any(|words| out.err.contains(words)));
        assert!(all, "{name}: {}", out.err);
    }
    // The same source for this machine, and not for BPF.
    let path = service.scratch.path("native.o");
    std::fs::write(service.scratch.path("native.c"), "int f(void *c) { return 2; }").unwrap();
    let compile = format!("clang -c {0}/native.c -o {0}/native.o", service.scratch.0.display());
    Program::line(&compile).run(60).ok();
    let out = module(&service, &format!("add native {}", path.display())).run(60);
    let words =
        "this object is for the ELF machine 62, and a module is for 247 (BPF): compile it with `clang -target bpf`";
    assert!(out.code != 0 && out.err.contains(words), "{}", out.err);
    assert_eq!(json(&service, "list")["modules"].as_array().unwrap().len(), 0);
}

/// Reads behind each frame, which no verifier would let it. Frames to other ports than 7002 pass.
const BEYOND: &str = "
SEC(\"xdp\") int beyond(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (frame + 38 > end || (frame[36] << 8 | frame[37]) != 7002) return XDP_PASS;
    return end[8] ? XDP_PASS : XDP_DROP;
}";

#[test]
fn without_the_right_to_ask_the_verifier_modules_are_interpreted_and_do_what_they_say() {
    let service = Service::start(|program| {
        program.arg("--direct").arg("false").under(&["setpriv", "--bounding-set", "-bpf,-sys_admin", "--"])
    });
    // A connection of a program with itself, whose frames go through the stack.
    let talks = |port: u16| {
        let script = format!(
            "import socket
l = socket.create_server(('127.0.0.1', {port}))
try:
    c = socket.create_connection(('127.0.0.1', {port}), 3); s, _ = l.accept()
    c.sendall(b'question'); print(s.recv(100).decode())
except TimeoutError: print('nothing')"
        );
        service.accelerated("python3 -c").arg(script).run(60).ok().trim().to_owned()
    };
    assert_eq!(talks(7001), "question");
    let (firewall, beyond) =
        (object(&service.scratch, "firewall", None), object(&service.scratch, "beyond", Some(BEYOND)));
    for line in [format!("add wall {}", firewall.display()), format!("add beyond {} --priority 1", beyond.display())] {
        module(&service, &line).run(60).ok();
    }
    let list = json(&service, "list");
    let compiled: Vec<_> = list["modules"].as_array().unwrap().iter().map(|one| &one["compiled"]).collect();
    assert_eq!(compiled, [false, false], "{list}");
    let text = module(&service, "list").run(30).ok();
    assert_eq!(text.matches("interpreted").count(), 2, "{text}");

    assert_eq!([7000, 7001].map(talks), ["question", "question"]);
    module(&service, "maps wall blocked_ports set 7001 1").run(30).ok();
    assert_eq!([7000, 7001].map(talks), ["question", "nothing"]);
    let [runs, pass, drop, aborted, faults] = counts(&service, "wall", ["runs", "pass", "drop", "aborted", "faults"]);
    assert!(
        drop > 0 && pass > 0 && runs == pass + drop && (aborted, faults) == (0, 0),
        "{runs} {pass} {drop} {faults}"
    );
    module(&service, "maps wall blocked_ports delete 7001").run(30).ok();
    assert_eq!([7000, 7001].map(talks), ["question", "question"]);
    // A run that does what it may not is ended, and its frame dropped.
    assert_eq!(counts(&service, "beyond", ["aborted", "faults"]), [0, 0]);
    assert_eq!([7002, 7000].map(talks), ["nothing", "question"]);
    let [runs, pass, aborted, faults] = counts(&service, "beyond", ["runs", "pass", "aborted", "faults"]);
    assert!(faults > 0 && faults == aborted && runs == pass + aborted, "{runs} {pass} {aborted} {faults}");
}
