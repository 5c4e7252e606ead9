//! Registration messages: any 64 bytes are refused, or mean one message that is written as it was read.

use towpath_ring::control::{MESSAGE_BYTES, Reply, Request};
use towpath_ring::layout::VERSION;

/// Every kind of message, with these numbers.
fn requests(a: u32, b: u32, long: u64) -> [Request; 15] {
    [
        Request::Hello { version: a, join: long, features: u32::MAX },
        Request::Attach { slot: a, generation: b, end: a },
        Request::Reattach { slot: a, generation: b, end: b },
        Request::Reserve { slot: a, seq: b, listens: true },
        Request::Join { slot: a, seq: b, remote_addr: u128::from(long).into(), remote_port: a },
        Request::Context,
        Request::DropContext { context: a },
        Request::Name { slot: a, generation: b },
        Request::Adopt,
        Request::Stack { stack: a },
        Request::StackOf { namespace: long },
        Request::NameAt { stack: b },
        Request::File { replaces: a },
        Request::Stats,
        Request::Region,
    ]
}

fn check(packet: &[u8; MESSAGE_BYTES]) {
    if let Ok(request) = Request::decode(packet) {
        assert_eq!(Request::decode(&request.encode()).ok(), Some(request));
        assert!(request.descriptors() <= 1);
        assert!(Reply::decode(packet).is_err(), "{request:?} is a reply, too");
    }
    if let Ok(reply) = Reply::decode(packet) {
        assert_eq!(Reply::decode(&reply.encode()).ok(), Some(reply));
        reply.descriptors();
    }
}

#[test]
fn fuzz_registration_messages() {
    type Edit = (u8, u8);
    bolero::check!().with_type::<(u8, u32, u32, u64, Vec<Edit>)>().with_iterations(10_000).for_each(
        |(nth, a, b, long, edits)| {
            let requests = requests(*a, *b, *long);
            let mut packet = requests[usize::from(*nth) % requests.len()].encode();
            check(&packet);
            // Kinds and versions that exist, and anything.
            packet[4] = [packet[4], 101, 102, 103, 107, 108, 111, *nth][usize::from(*nth) % 8];
            for (at, byte) in edits.iter().take(6) {
                packet[usize::from(*at) % MESSAGE_BYTES] = *byte;
            }
            check(&packet);
            packet[..4].copy_from_slice(&VERSION.to_ne_bytes());
            check(&packet);
        },
    );
}
