//! Modules that have direct connections: which ones they see, and from when on.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, direct, port};
use std::sync::Arc;
use towpath_capture::record::Kind;
use towpath_capture::{Reader, Wish};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_fast::FastStack;
use towpath_modules::{Attached, Chains, Counts, Module, Object, Tenant};
use towpath_runtime::{Selectors, Stack};

/// Frames of a handshake, and of an end without a reset.
const BEGIN: u64 = 3;
const END: u64 = 2;

/// A module that lets all pass, and counts.
fn module(stack: &FastStack, selector: Option<u32>, direct: bool) -> Attached {
    let rows = stack.module_rows().unwrap();
    let module = Arc::new(Module::interpreted(&Object::null(), 0, rows).unwrap());
    let tenant = Arc::new(Tenant::new("counts", 100, 1));
    Attached { module, counts: Counts::new(rows), tenant, selector, direct: direct.then(Arc::default) }
}

fn runs<const N: usize>(of: [&Attached; N]) -> [u64; N] {
    of.map(|one| one.counts.sums()[0])
}

/// Does the thread run that has frames of direct connections?
fn watches() -> bool {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).any(|name| name == "direct\n")
}

#[test]
fn modules_have_the_direct_connections_of_either_ends_program_from_when_they_come() {
    let stack = direct();
    let port = port();
    let [server, client, other] = [(); 3].map(|()| App::new(&stack, small(1)));
    let mut listener = server.listen(LOCAL, port, 8).unwrap();
    let old = client.pair(&mut listener, port);
    let (ids, nobody) = ([(server.id, 1), (client.id, 2), (other.id, 4)], 8);
    let selectors: Selectors =
        Arc::new(move |id| ids.iter().find(|(known, _)| *known == id).map_or(0, |(_, bit)| *bit));
    let of = |selector| module(&stack, selector, true);
    let (all, servers, clients, others) = (of(None), of(Some(1)), of(Some(2)), of(Some(4)));
    let (nobodys, plain) = (of(Some(nobody)), module(&stack, None, false));
    let chains = |ingress: &[&Attached], egress: &[&Attached]| Chains {
        ingress: ingress.iter().copied().cloned().collect(),
        egress: egress.iter().copied().cloned().collect(),
    };

    // Only modules that ask for it see direct ones, and without any nobody looks.
    stack.modules(&chains(&[&plain], &[&plain]), &selectors).unwrap();
    assert!(!watches());
    let unseen = client.pair(&mut listener, port);
    stack.modules(&chains(&[&all, &servers, &plain], &[&clients, &others, &nobodys]), &selectors).unwrap();
    assert!(watches());
    let (first, second) = (client.pair(&mut listener, port), other.pair(&mut listener, port));
    let expected = [2 * BEGIN, 2 * BEGIN, BEGIN, BEGIN];
    eventually("two handshakes", || runs([&all, &servers, &clients, &others]) == expected);

    // The ends of connections that were open before are seen, too.
    for sock in [old.0, old.1, unseen.0, unseen.1] {
        sock.close();
    }
    let expected = [2 * BEGIN + 2 * END, 2 * BEGIN + 2 * END, BEGIN + 2 * END, BEGIN];
    eventually("two ends", || runs([&all, &servers, &clients, &others]) == expected);
    assert_eq!(runs([&nobodys, &plain]), [0, 0]);

    // Others come and go; those that stay miss nothing. A selector's bit is another module's now, and chooses others.
    let late = of(Some(2));
    let ids = [(server.id, 1), (other.id, 2)];
    let selectors: Selectors =
        Arc::new(move |id| ids.iter().find(|(known, _)| *known == id).map_or(0, |(_, bit)| *bit));
    stack.modules(&chains(&[&servers, &late], &[]), &selectors).unwrap();
    let before = runs([&all, &clients, &others]);
    for sock in [first.0, first.1, second.0, second.1] {
        sock.close();
    }
    // Of the second one the end, and nothing that was before.
    eventually("all ends", || runs([&servers, &late]) == [2 * BEGIN + 4 * END, END]);
    assert_eq!(runs([&all, &clients, &others]), before, "they were removed");

    // A capture beside them has the same frames, and its end takes nothing from them.
    let capture = stack.capture(&Wish { filter: None, snap: 96, bytes: 1 << 20 }).unwrap();
    let mut reader = Reader::new(capture.memory()).unwrap();
    let shown = client.pair(&mut listener, port);
    let (mut frames, mut to) = (0, vec![0; 1 << 20]);
    eventually("the handshake", || {
        for ring in 0..reader.rings() {
            let mut count = |kind| frames += u64::from(matches!(kind, Kind::Frame { .. }));
            while reader.take(ring, &mut to, |_, header, _| count(header.kind)) > 0 {}
        }
        frames == BEGIN
    });
    drop(capture);
    shown.0.close();
    shown.1.close();
    eventually("the whole connection", || runs([&servers]) == [3 * BEGIN + 5 * END]);

    // Without such a module nobody looks any more.
    stack.modules(&chains(&[&plain], &[]), &selectors).unwrap();
    assert!(!watches());
    let third = client.pair(&mut listener, port);
    let everybody: Selectors = Arc::new(|_| 2);
    stack.modules(&chains(&[&clients], &[]), &everybody).unwrap();
    third.0.abort();
    eventually("the reset", || runs([&clients]) == [before[1] + 1]);
    third.1.close();
    stack.modules(&Chains::default(), &selectors).unwrap();
    assert!(!watches());
    // A stack that ends meanwhile ends it, too.
    stack.modules(&chains(&[&all], &[]), &selectors).unwrap();
    drop(stack);
    assert!(!watches());
}
