//! Pair regions count to the users of the clients that ask for them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, direct, port};
use std::sync::atomic::Ordering::Relaxed;
use towpath_contract_tests::app::{App, Few, eventually, small};
use towpath_runtime::Stack;

#[test]
fn who_has_his_share_of_descriptors_is_carried_by_the_stack() {
    let stack = direct();
    let port = port();
    let server = App::new(&stack, small(1));
    let mut listener = server.listen(LOCAL, port, 4).unwrap();
    for (count, is_direct) in [(0, false), (1, true)] {
        let (lease, few) = Few::lease(count);
        let client = App::leased(&stack, small(1), lease);
        let (ours, theirs) = client.pair(&mut listener, port);
        assert_eq!((ours.stack().pair.load(Relaxed) != 0, few.left()), (is_direct, 0));
        ours.close();
        theirs.close();
        stack.remove_client(client.id);
        eventually("all is given back", || few.left() == count);
    }
}
