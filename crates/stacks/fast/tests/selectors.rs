//! Modules with selectors: connections come to their modules and go, over the loopback port.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, small_stack, stack};
use std::sync::Arc;
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_fast::FastStack;
use towpath_modules::{Attached, Chains, Counts, Module, Object, Tenant};
use towpath_runtime::{Selectors, Stack};

/// A module that lets all pass, and counts.
fn module(stack: &FastStack, selector: Option<u32>) -> Attached {
    let rows = stack.module_rows().unwrap();
    let module = Arc::new(Module::interpreted(&Object::null(), 0, rows).unwrap());
    let tenant = Arc::new(Tenant::new("counts", 100, 1));
    Attached { module, counts: Counts::new(rows), tenant, selector, direct: None }
}

fn runs(of: &Attached) -> u64 {
    of.counts.sums()[0]
}

/// Selectors that choose these clients, each by its bit.
fn choosing(apps: &[(&App, u32)]) -> Selectors {
    let clients: Vec<_> = apps.iter().map(|(app, bit)| (app.id, *bit)).collect();
    Arc::new(move |id| clients.iter().filter(|(client, _)| *client == id).fold(0, |all, (_, bit)| all | bit))
}

/// Something goes there and back.
fn talk((a, b): &mut (Sock, Sock)) {
    let mut got = [0; 8];
    a.write_all(b"question").unwrap();
    b.read_exact(&mut got).unwrap();
    b.write_all(b"answered").unwrap();
    a.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"answered");
}

fn modules_of_two(flow_groups: usize) {
    let stack = stack(flow_groups);
    let [first, second, client] = [(); 3].map(|()| App::new(&stack, small(flow_groups)));
    let mut listeners = (first.listen(LOCAL, 7, 4).unwrap(), second.listen(LOCAL, 8, 4).unwrap());
    // Open before the modules come.
    let mut old = (client.pair(&mut listeners.0, 7), client.pair(&mut listeners.1, 8));
    let [in_first, out_first, in_second, out_second] = [1, 1, 2, 4].map(|bit| module(&stack, Some(bit)));
    let all = module(&stack, None);
    let chains = Chains {
        ingress: vec![in_first.clone(), all.clone(), in_second.clone()],
        egress: vec![out_first.clone(), out_second.clone()],
    };
    let selectors = choosing(&[(&first, 1), (&second, 2), (&second, 4)]);
    stack.modules(&chains, &selectors).unwrap();
    let of_first = || (runs(&in_first), runs(&out_first));
    let of_second = || (runs(&in_second), runs(&out_second));

    talk(&mut old.0);
    eventually("frames of the first", || of_first().0 > 0 && of_first().1 > 0);
    assert_eq!(of_second(), (0, 0));
    talk(&mut old.1);
    eventually("frames of the second", || of_second().0 > 0 && of_second().1 > 0);
    assert!(runs(&all) > runs(&in_first), "the client's frames, too");

    // Open after them.
    old.0.0.close();
    old.0.1.close();
    eventually("nothing is left of the first", || first.busy_slots() == 1);
    let before = (of_first(), of_second());
    let mut new = client.pair(&mut listeners.1, 8);
    talk(&mut new);
    eventually("more of the second", || of_second().0 > before.1.0 && of_second().1 > before.1.1);
    assert_eq!(of_first(), before.0, "its connections are over");

    // Another module comes, whose selector chooses who was there all the time; the others stay.
    let late = module(&stack, Some(8));
    let chains = Chains { ingress: vec![late.clone(), in_second.clone()], egress: Vec::new() };
    stack.modules(&chains, &choosing(&[(&client, 8), (&second, 2)])).unwrap();
    let before = of_second();
    talk(&mut old.1);
    eventually("frames of the client", || runs(&late) > 0 && of_second().0 > before.0);
    assert_eq!(of_second().1, before.1, "it was removed");

    // Nobody is chosen any more; then there is no selector at all.
    stack.modules(&chains, &choosing(&[])).unwrap();
    // An acknowledgement may have come in between.
    let before = (of_second(), runs(&late));
    talk(&mut old.1);
    assert_eq!((of_second(), runs(&late)), before);
    stack.modules(&Chains { ingress: vec![all.clone()], egress: Vec::new() }, &choosing(&[])).unwrap();
    let before = runs(&all);
    talk(&mut new);
    eventually("frames of all", || runs(&all) > before);
}

#[test]
fn modules_have_the_frames_of_their_clients_connections_old_and_new() {
    modules_of_two(1);
}

#[test]
fn modules_have_the_frames_of_their_clients_connections_on_several_flow_groups() {
    modules_of_two(3);
}

#[test]
fn what_connections_have_entered_goes_with_them() {
    const FLOWS: u32 = 16;
    let stack = small_stack(FLOWS);
    let (server, client) = (App::new(&stack, small(1)), App::new(&stack, small(1)));
    let mut listener = server.listen(LOCAL, 7, 4).unwrap();
    let counts = module(&stack, Some(1));
    let chains = Chains { ingress: vec![counts.clone()], egress: Vec::new() };
    stack.modules(&chains, &choosing(&[(&server, 1)])).unwrap();
    // Far more than the table has room for, one after the other.
    for _ in 0..5 * FLOWS {
        let before = runs(&counts);
        let mut pair = client.pair(&mut listener, 7);
        talk(&mut pair);
        eventually("frames", || runs(&counts) > before);
        pair.0.abort();
        pair.1.close();
        eventually("the connection's end", || server.busy_slots() == 1 && client.busy_slots() == 0);
    }
}
