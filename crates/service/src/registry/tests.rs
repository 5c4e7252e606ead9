#![allow(clippy::unwrap_used)]
use super::*;
use crate::passed_sockets::MAX_ELSEWHERE;
use std::sync::Mutex;
use towpath_ring::Geometry;

const TOKEN: u64 = 77;
const UID: u32 = 1000;

/// A region for clients of no traffic.
fn region() -> Arc<Region> {
    static REGION: Mutex<Option<Arc<Region>>> = Mutex::new(None);
    let make = || Region::create(Geometry { slots: 16, app_slots: 8, ..Geometry::DEFAULT }).unwrap().0.into();
    REGION.lock().unwrap().get_or_insert_with(make).clone()
}

/// A registry with room for 4 event contexts, and a client of one connection for each of these.
fn registry(clients: &[(u64, u32)]) -> Registry {
    let mut registry = Registry::new(4, 1000);
    for (token, uid) in clients {
        let client =
            RegisteredClient::new(ClientId(*token as u32), *uid, region(), Arc::default(), ClientNamespace::default());
        registry.clients.insert(*token, client);
    }
    registry
}

fn socket() -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open("/dev/null").unwrap().into())
}

/// How many descriptors are left for the operator.
fn left(registry: &Registry) -> u64 {
    let fits = |count: &u64| registry.budget.take(0, true, *count);
    let left = (0..=1000).rev().find(fits).unwrap();
    registry.budget.give_back(0, left);
    left
}

#[test]
fn a_user_has_a_most_of_connections_with_numbers_of_their_own() {
    let mut registry = registry(&[]);
    assert!(registry.last_use.is_none());
    let mut add = |uid| registry.add_connection(&socket(), uid, 2);
    assert_eq!([add(UID), add(UID), add(UID), add(7), add(UID)], [Some(0), Some(1), None, Some(2), None]);
    assert!(registry.last_use.is_some());
    assert!(registry.budget.take(UID, false, 2));
    let before = left(&registry);
    registry.last_use = None;
    registry.remove_connection(0);
    assert_eq!((left(&registry), registry.last_use.is_some()), (before + 1, true), "its descriptor is free");
    registry.remove_connection(0);
    assert_eq!(left(&registry), before + 1);
    assert_eq!(registry.add_connection(&socket(), UID, 2), Some(3), "no number is used again");
}

#[test]
fn a_client_has_the_lowest_free_contexts_up_to_what_its_region_and_its_user_allow() {
    let mut registry = registry(&[(TOKEN, UID)]);
    let whole = left(&registry);
    let taken: Vec<_> = (0..5).map(|_| registry.take_context(TOKEN, |_| false)).collect();
    let id = ClientId(TOKEN as u32);
    assert_eq!(taken, [Some((id, 0)), Some((id, 1)), Some((id, 2)), Some((id, 3)), None]);
    assert_eq!(left(&registry), whole - 4 * CONTEXT);
    registry.free_contexts(TOKEN, 0b110_0010);
    assert_eq!(left(&registry), whole - 3 * CONTEXT, "those that were not taken give nothing back");
    registry.free_contexts(TOKEN, 0b1100);
    assert_eq!(left(&registry), whole - CONTEXT);
    registry.free_contexts(TOKEN + 1, 0b1);
    assert_eq!(registry.take_context(TOKEN, |_| false), Some((id, 1)));
    assert_eq!(registry.take_context(TOKEN + 1, |_| false), None, "there is no such client");
    registry.budget.take(0, true, left(&registry) - CONTEXT);
    assert_eq!(registry.take_context(TOKEN, |_| false), None, "its user has his share");
    assert_eq!(registry.take_context(TOKEN, |uid| uid == UID), Some((id, 2)), "an operator has all that is left");
    assert_eq!(registry.leave(TOKEN).map(|client| client.id), Some(id));
    assert_eq!(left(&registry), 3 * CONTEXT, "its contexts go with it");
}

#[test]
fn a_region_of_any_number_of_contexts_has_as_many_as_there_are_bits() {
    let mut registry = registry(&[(TOKEN, UID)]);
    registry.max_contexts = u32::MAX;
    let taken = std::iter::from_fn(|| registry.take_context(TOKEN, |_| true));
    assert_eq!(taken.count(), 64);
}

#[test]
fn a_doorbell_is_opened_anew_until_its_context_is_free() {
    let mut registry = registry(&[(TOKEN, UID), (TOKEN + 1, UID)]);
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    for context in 0..2 {
        assert_eq!(registry.take_context(TOKEN, |_| false).map(|(_, number)| number), Some(context));
        registry.keep_doorbell(TOKEN, context, &writing);
    }
    drop(writing);
    let (own, other) = (ClientId(TOKEN as u32), ClientId(TOKEN as u32 + 1));
    let doorbell = registry.open_doorbell(own, 1).unwrap();
    let flags = |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).unwrap();
    assert!(flags(&doorbell).contains(OFlags::NONBLOCK | OFlags::WRONLY));
    rustix::fs::fcntl_setfl(&doorbell, OFlags::empty()).unwrap();
    assert!(flags(&registry.open_doorbell(own, 1).unwrap()).contains(OFlags::NONBLOCK), "flags are the holder's own");
    rustix::io::write(&doorbell, b"x").unwrap();
    assert_eq!(rustix::io::read(&reading, &mut [0; 2]), Ok(1));
    assert!(registry.open_doorbell(other, 1).is_none() && registry.open_doorbell(own, 2).is_none());
    registry.free_contexts(TOKEN, 0b1);
    assert!(registry.open_doorbell(own, 0).is_none() && registry.open_doorbell(own, 1).is_some());
    registry.free_contexts(TOKEN, 0b10);
    assert!(registry.open_doorbell(own, 1).is_none());
}

#[test]
fn a_client_is_there_until_its_last_connection_leaves() {
    let mut registry = registry(&[(TOKEN, UID)]);
    registry.clients.get_mut(&TOKEN).unwrap().joined(None);
    registry.clients.get_mut(&TOKEN).unwrap().joined(None);
    registry.passed_sockets.name(7, TOKEN, 1, 1);
    assert!(registry.leave(TOKEN).is_none() && registry.leave(TOKEN).is_none());
    assert_eq!(registry.locate(Some(7), UID), Reply::Adopted { token: TOKEN, slot: 1, generation: 1 });
    assert!(registry.leave(TOKEN).is_some() && registry.clients.is_empty());
    assert_eq!(registry.locate(Some(7), UID), Reply::Refused { errno: libc::EAGAIN }, "its sockets are forgotten");
    assert!(registry.leave(TOKEN).is_none());
}

#[test]
fn a_client_belongs_to_a_network_namespace_while_all_its_processes_do() {
    let namespace = ClientNamespace::new(Some(5));
    let mut client = RegisteredClient::new(ClientId(1), UID, region(), Arc::default(), namespace.clone());
    client.joined(Some(5));
    assert!(namespace.is(Some(5)));
    client.joined(Some(6));
    assert!(!namespace.is(Some(5)));
}

#[test]
fn a_client_is_deserted_while_all_its_processes_have_ended() {
    let mut registry = registry(&[(TOKEN, UID)]);
    registry.clients.get_mut(&TOKEN).unwrap().joined(None);
    assert!(!registry.is_deserted(TOKEN));
    registry.process_ended(TOKEN);
    assert!(!registry.is_deserted(TOKEN));
    registry.process_ended(TOKEN);
    assert!(registry.is_deserted(TOKEN));
    registry.stops_serving(TOKEN);
    assert!(registry.leave(TOKEN).is_none() && registry.is_deserted(TOKEN), "the other connection's has ended, too");
    registry.clients.get_mut(&TOKEN).unwrap().joined(None);
    assert!(!registry.is_deserted(TOKEN) && !registry.is_deserted(TOKEN + 1));
}

#[test]
fn a_listening_socket_is_shown_for_one_listener_at_a_time() {
    let mut registry = registry(&[(TOKEN, UID)]);
    registry.passed_sockets.name(9, TOKEN, 1, 1);
    assert!(registry.add_listener(9) && !registry.add_listener(9) && registry.add_listener(10));
    registry.remove_listener(9, TOKEN);
    assert!(registry.passed_sockets.location(9).is_none());
    assert!(registry.add_listener(9) && !registry.add_listener(10));
}

#[test]
fn a_socket_is_told_to_processes_of_its_user_only() {
    let mut registry = registry(&[(TOKEN, UID)]);
    registry.passed_sockets.name(7, TOKEN, 3, 4);
    registry.passed_sockets.name(8, TOKEN + 1, 3, 4);
    let refused = |errno| Reply::Refused { errno };
    assert_eq!(registry.locate(Some(7), UID), Reply::Adopted { token: TOKEN, slot: 3, generation: 4 });
    assert_eq!(registry.locate(Some(7), UID + 1), refused(libc::EPERM));
    assert_eq!(registry.locate(Some(7), 0), refused(libc::EPERM), "root's process is another user's, too");
    assert_eq!(registry.locate(Some(8), UID), refused(libc::ENOENT));
    assert_eq!(registry.locate(Some(9), UID), refused(libc::EAGAIN));
    assert_eq!(registry.locate(None, UID), refused(libc::EINVAL));
}

#[test]
fn the_shares_are_those_of_all_clients() {
    let registry = registry(&[]);
    let shares = registry.shares();
    assert!(Arc::ptr_eq(&shares.descriptors, &registry.budget) && Arc::ptr_eq(&shares.regions, &registry.regions));
}

#[test]
fn sockets_of_other_stacks_are_known_to_their_user_until_many_have_come() {
    let mut registry = Registry::new(4, 1000);
    registry.passed_sockets.name_elsewhere(7, 1000, 2);
    assert_eq!(registry.locate(Some(7), 1000), Reply::AdoptedAt { stack: 2 });
    assert_eq!(registry.locate(Some(7), 1001), Reply::Refused { errno: libc::EAGAIN }, "another user's");
    (0..MAX_ELSEWHERE as u64).for_each(|cookie| registry.passed_sockets.name_elsewhere(100 + cookie, 1000, 0));
    assert_eq!(registry.locate(Some(7), 1000), Reply::Refused { errno: libc::EAGAIN });
}
