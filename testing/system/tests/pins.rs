//! Pinned maps: they outlive modules, and several modules have them at a time.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::PathBuf;
use towpath_system_tests::module::{asks, count, json, module, object};
use towpath_system_tests::program::{Finished, Running};
use towpath_system_tests::{Lab, Service, until};

const SERVE: &str = "
import socket
l = socket.create_server(('', 7000)); print('ready', flush=True)
while True:
    c, _ = l.accept(); c.recv(100); c.sendall(b'answer'); c.close()";

/// A module that counts in `seen`, which has `more` in its definition. Its second element is the operator's.
fn counts(service: &Service, name: &str, entries: u32, value: &str, more: &str) -> PathBuf {
    let text = format!(
        "struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, {entries}); __type(key, __u32);
    __type(value, {value}); {more} }} seen SEC(\".maps\");
SEC(\"xdp\") int {name}(struct xdp_md *ctx)
{{
    __u32 first = 0;
    {value} *frames = bpf_map_lookup_elem(&seen, &first);
    if (frames) __sync_fetch_and_add(frames, 1);
    return XDP_PASS;
}}"
    );
    object(&service.scratch, name, Some(&text))
}

const BY_NAME: &str = "__uint(pinning, LIBBPF_PIN_BY_NAME);";

fn runs(service: &Service, line: &str) -> String {
    module(service, line).run(60).ok()
}

fn refused(service: &Service, line: &str, why: &str) {
    let Finished { code, err, .. } = module(service, line).run(60);
    assert!(code != 0 && err.contains(why), "{line}: {err}");
}

/// The numbers of a map with one value for each element.
fn numbers(service: &Service, map: &str) -> Vec<u64> {
    let dump = json(service, &format!("maps {map} dump"));
    let elements = dump["elements"].as_array().unwrap().iter();
    elements.map(|element| element["numbers"][0].as_u64().unwrap()).collect()
}

/// Each pin with the modules that use it.
fn pins(service: &Service) -> Vec<String> {
    let pins = json(service, "pins");
    let name = |name: &Value| name.as_str().unwrap().to_owned();
    let line = |pin: &Value| {
        let modules = pin["modules"].as_array().unwrap().iter().map(name);
        format!("{}: {}", name(&pin["name"]), modules.collect::<Vec<_>>().join(" "))
    };
    pins["pins"].as_array().unwrap().iter().map(line).collect()
}

fn serve(lab: &Lab, service: &Service) -> Running {
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(SERVE));
    let mut running = program.start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

/// Kills the worker, and waits for the next one.
fn another_worker(service: &Service) {
    let dead = service.running.worker();
    // SAFETY: the call takes integers. It is a child of the service that this test has started.
    assert_eq!(unsafe { libc::kill(dead, libc::SIGKILL) }, 0);
    let answers = || module(service, "list --json").run(30).code == 0;
    until("another worker", 30, || service.running.worker() != dead && answers());
}

#[test]
fn a_pinned_map_outlives_its_module_and_modules_that_come_later_share_it() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let plain = counts(&service, "plain", 2, "__u64", "").display().to_string();
    runs(&service, &format!("add one {plain}"));
    assert_eq!(asks(&lab, 7000), "answer");
    runs(&service, "maps one seen set 1 70");
    assert_eq!(runs(&service, "pins"), "no pins\n");
    assert_eq!(runs(&service, "maps one seen pin --as total"), "map seen is kept: its pin is total\n");
    refused(&service, "maps one seen pin", "map seen is pinned already, as total");
    assert_eq!(pins(&service), ["total: one"]);
    assert_eq!(json(&service, "maps one")["modules"][0]["maps"][0]["pin"], "total");
    assert_eq!(runs(&service, "rm one"), "module one is removed\nmap seen is kept: its pin is total\n");
    // Nobody counts now.
    let seen = numbers(&service, "--pin total");
    assert!(seen[0] > 0 && seen[1] == 70, "{seen:?}");
    assert_eq!(pins(&service), ["total: "]);
    let shown = runs(&service, "pins");
    let words: Vec<Vec<_>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["PIN", "TYPE", "KEY", "VALUE", "ENTRIES", "BYTES", "MODULES"]);
    assert_eq!(words[1], ["total", "array", "4", "8", "2", "56", "none"]);
    runs(&service, "maps --pin total set 1 77");

    let of_pin = |name: &str, more: &str| format!("add {name} {plain} --map seen=total {more}");
    let added = json(&service, &of_pin("two", ""));
    assert_eq!(added["modules"][0]["compiled"], true, "the verifier was not asked: {added}");
    runs(&service, &of_pin("three", "--hook egress"));
    assert_eq!(pins(&service), ["total: two three"]);
    assert_eq!(asks(&lab, 7000), "answer");
    until("the frames of both", 30, || {
        let runs = ["two", "three"].map(|name| count(&service, name, "runs"));
        let both = numbers(&service, "two seen");
        runs.iter().all(|runs| *runs > 0) && both[0] >= seen[0] + runs[0] + runs[1] && both[1] == 77
    });
    runs(&service, "maps three seen set 1 78");
    assert_eq!(numbers(&service, "two seen")[1], 78);

    // The elements that were set come back, and modules that have a map in common have one again, with a pin or without.
    for pinned in [true, false] {
        if !pinned {
            let said = runs(&service, "unpin total");
            assert_eq!(said, "pin total is removed; its map ends with the modules that use it: two, three\n");
        }
        another_worker(&service);
        assert_eq!(pins(&service), if pinned { vec!["total: two three"] } else { vec![] });
        assert_eq!((numbers(&service, "two seen")[1], numbers(&service, "three seen")[1]), (78, 78));
        for (set, number) in [("two", 79), ("three", 78)] {
            runs(&service, &format!("maps {set} seen set 1 {number}"));
            assert_eq!((numbers(&service, "two seen")[1], numbers(&service, "three seen")[1]), (number, number));
        }
    }
    refused(&service, "maps --pin total dump", "there is no pin \"total\"; the service has none");
    refused(&service, &of_pin("four", ""), "there is no pin \"total\"; the service has none");
    // Another module may give the map a pin again.
    runs(&service, "maps three seen pin --as again");
    runs(&service, "rm two");
    runs(&service, "rm three");
    assert_eq!(numbers(&service, "--pin again")[1], 78);
    assert_eq!(pins(&service), ["again: "]);
    assert_eq!(runs(&service, "unpin again"), "pin again is removed, and its map\n");
    refused(&service, "unpin again", "there is no pin \"again\"; the service has none");
}

#[test]
fn a_map_that_asks_to_be_pinned_by_its_name_is_and_the_next_module_has_it() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let by_name = counts(&service, "by_name", 2, "__u64", BY_NAME).display().to_string();
    let wide = counts(&service, "wide", 3, "__u32", BY_NAME).display().to_string();
    let said = runs(&service, &format!("add one {by_name}"));
    assert!(said.ends_with("map seen is kept: its pin is seen\n"), "{said}");
    assert_eq!(asks(&lab, 7000), "answer");
    runs(&service, "maps one seen set 1 9");
    runs(&service, "rm one");
    let seen = numbers(&service, "--pin seen");
    assert!(seen[0] > 0 && seen[1] == 9, "{seen:?}");
    let differs =
        "map seen cannot be that of the pin seen: its value size is 8, and not 4; its max_entries is 2, and not 3";
    refused(&service, &format!("add wide {wide}"), differs);
    runs(&service, &format!("add two {by_name}"));
    runs(&service, &format!("add three {by_name} --hook egress"));
    assert_eq!(pins(&service), ["seen: two three"]);
    assert_eq!(numbers(&service, "two seen")[1], 9);
    // A module may have the map of another pin than that of its name.
    runs(&service, "rm three");
    runs(&service, "unpin seen");
    runs(&service, &format!("add other {wide}"));
    assert_eq!(pins(&service), ["seen: other"]);
    refused(&service, &format!("add three {by_name}"), "map seen cannot be that of the pin seen");
    runs(&service, "maps two seen pin --as narrow");
    runs(&service, &format!("add three {by_name} --map seen=narrow"));
    assert_eq!(pins(&service), ["narrow: two three", "seen: other"]);
    runs(&service, "maps other seen set 2 5");
    // One that nobody has, of which a program has written the first element.
    let plain = counts(&service, "plain", 2, "__u64", "").display().to_string();
    runs(&service, &format!("add idle {plain}"));
    runs(&service, "maps idle seen set 1 6");
    runs(&service, "maps idle seen pin --as idle");
    assert_eq!(asks(&lab, 7000), "answer");
    runs(&service, "rm idle");
    let idle = numbers(&service, "--pin idle");
    assert!(idle[0] > 0 && idle[1] == 6, "{idle:?}");
    another_worker(&service);
    assert_eq!(pins(&service), ["idle: ", "narrow: two three", "seen: other"]);
    assert_eq!(numbers(&service, "--pin idle"), [0, 6]);
    assert_eq!(numbers(&service, "three seen")[1], 9);
    assert_eq!(numbers(&service, "other seen")[1..], [0, 5]);
    runs(&service, "rm other");
    runs(&service, "unpin seen");
    runs(&service, &format!("add other {wide}"));
    assert_eq!(numbers(&service, "other seen")[2], 0, "the map went with its pin");
}

#[test]
fn what_cannot_be_pinned_is_refused_with_the_reason() {
    let service = Service::embedded();
    let text = |name: &str, kind: &str, map: &str, more: &str| {
        let text = format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_{kind}); __uint(max_entries, 1); __uint(key_size, 4);
    __uint(value_size, 4); {more} }} {map} SEC(\".maps\");
int frames; const volatile int most = 7;
SEC(\"xdp\") int {name}(struct xdp_md *ctx)
{{
    bpf_tail_call(ctx, &{map}, 0);
    return frames++ > most ? XDP_DROP : XDP_PASS;
}}"
        );
        object(&service.scratch, name, Some(&text)).display().to_string()
    };
    let jumps = text("jumps", "PROG_ARRAY", "places", BY_NAME);
    refused(&service, &format!("add jumps {jumps}"), "map places cannot be pinned: a prog_array names programs");
    let plain = text("plain", "PROG_ARRAY", "places", "");
    runs(&service, &format!("add plain {plain}"));
    refused(&service, "maps plain .bss pin", "map .bss cannot be pinned: it is variables of the program");
    refused(&service, "maps plain .rodata pin --as x", "map .rodata cannot be pinned: it is constants of the program");
    refused(&service, "maps plain places pin", "map places cannot be pinned: a prog_array");
    let two = counts(&service, "two", 2, "__u32", "__uint(pinning, 2);");
    refused(&service, &format!("add two {}", two.display()), "map seen: its pinning is 2, and modules know");
    let splice = object(&service.scratch, "splice", None);
    runs(&service, &format!("add splice {}", splice.display()));
    refused(&service, "maps splice towpath_splices pin --as x", "cannot be pinned: the stack writes to it");

    let seen = counts(&service, "usual", 2, "__u32", "").display().to_string();
    let named = runs(&service, &format!("add usual {seen}"));
    assert_eq!(named.lines().count(), 1, "nothing is pinned: {named}");
    refused(&service, "maps usual seen pin --as a/b", "\"a/b\" is no name of a pin: up to 64 letters");
    refused(&service, "maps usual pin", "which map? `towpath module maps usual` lists those of usual");
    refused(&service, "maps usual other pin", "module usual has no map \"other\"; it has seen");
    runs(&service, "maps usual seen pin");
    refused(&service, "maps --pin seen pin", "seen is a pin already: `towpath module maps NAME");
    refused(&service, &format!("add x {seen} --map seen"), "write MAP=PIN");
    refused(&service, &format!("add x {seen} --map seen=seen --map seen=other"), "seen is given twice");
    refused(&service, &format!("add x {seen} --map other=seen"), "this object has no map \"other\"; it has seen");
    refused(&service, &format!("add x {plain} --map .bss=seen"), "map .bss cannot be a pinned one: it is variables");
    refused(&service, &format!("add x {plain} --map places=seen"), "cannot be a pinned one: a prog_array");
    assert_eq!(pins(&service), ["seen: usual"]);
}
