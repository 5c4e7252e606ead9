//! Clients that end with bytes still to be sent.

use crate::app::{App, Sock, eventually};
use crate::hostile::Target;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_ring::Geometry;
use towpath_runtime::ClientId;

/// How long nothing moves when both sides are full.
const STILL: Duration = Duration::from_millis(500);

/// A client that has filled all that is between it and a peer that reads nothing, and how many bytes that was. All rings
/// of its region are in use.
pub fn full(app: &Arc<App>, sock: &mut Sock) -> usize {
    let (mut sent, mut since) = (0, Instant::now());
    while since.elapsed() < STILL {
        let bytes: Vec<u8> = (sent..sent + 4096).map(|i| i as u8).collect();
        let n = sock.try_write(&bytes);
        if n > 0 {
            (sent, since) = (sent + n, Instant::now());
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let Geometry { tx_bytes, slots, .. } = app.region.geometry();
    for slot in (0..slots).filter_map(|raw| app.region.slot(raw)).filter(|slot| *slot != sock.slot) {
        app.region.tx(slot).write(0, &vec![1; tx_bytes as usize]);
    }
    sent
}

/// A client is forgotten.
pub fn is_forgotten(target: &Target, id: ClientId) {
    eventually("the client is forgotten", || target.stack.status().clients.iter().all(|c| c.id != id));
}

/// Its region is given up at once, and what is queued arrives.
///
/// In this test the client's view of its region is the stack's own. So the client sees what the stack keeps.
pub fn what_is_queued_arrives_and_the_region_is_given_up(
    target: &Target,
    (app, mut sock): (Arc<App>, Sock),
    mut read: impl FnMut(&mut [u8]) -> usize,
) {
    let sent = full(&app, &mut sock);
    let other = app.region.layout().app_slots().find(|slot| *slot != sock.slot).unwrap();
    target.stack.remove_client(app.id);
    let mut byte = [9];
    app.region.tx(other).read(0, &mut byte);
    assert_eq!(byte, [0], "the memory of other slots is gone");
    let (mut got, mut buffer) = (0, vec![0; 16384]);
    loop {
        let n = read(&mut buffer);
        if n == 0 {
            break;
        }
        assert!((got..got + n).zip(&buffer).all(|(i, byte)| i as u8 == *byte), "other bytes from {got} on");
        got += n;
    }
    assert_eq!(got, sent, "all that the client has sent");
}

/// A connection that is too slow is reset when its time is over, and the client is forgotten.
pub fn what_is_too_slow_is_reset(
    target: &Target,
    (app, mut sock): (Arc<App>, Sock),
    mut is_reset: impl FnMut() -> bool,
) {
    full(&app, &mut sock);
    target.stack.remove_client(app.id);
    is_forgotten(target, app.id);
    eventually("the peer knows", &mut is_reset);
}

/// A peer that is no client of the stack: its end of a connection of `app`, with small buffers.
pub fn peer_of(app: &Arc<App>) -> (Sock, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 16384).unwrap();
    let SocketAddr::V4(at) = listener.local_addr().unwrap() else { panic!("it is bound to 127.0.0.1") };
    let sock = app.connect((*at.ip()).into(), at.port()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    (sock, peer)
}
