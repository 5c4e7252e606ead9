//! The native API against itself and against sockets under the library, over the stack and directly.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::time::{Duration, Instant};
use towpath_native::{Connection, Event, Listener, Readiness, Stack};
use towpath_system_tests::native::*;
use towpath_system_tests::{Scratch, until};

#[test]
fn spans_carry_every_byte_around_the_end_of_the_rings() {
    both_ways("spans_carry_every_byte_around_the_end_of_the_rings", || {
        const TOTAL: usize = 3_000_000;
        let (_stack, mut ours, mut theirs) = pair();
        let sender = std::thread::spawn(move || {
            let mut done = 0;
            // The length is a prime, so that pieces meet the end of the ring everywhere.
            while done < TOTAL {
                let piece = pattern(done, 4_999.min(TOTAL - done));
                let mut room = match ours.reserve(piece.len()) {
                    Ok(room) => room,
                    Err(error) if is_later(&error) => {
                        assert!(ours.wait(Readiness::WRITABLE, Some(LIMIT)).unwrap());
                        continue;
                    }
                    Err(error) => panic!("reserve: {error}"),
                };
                let half = piece.len() / 2;
                let put = room.put(&piece[..half]);
                if put == half {
                    room.put(&piece[half..]);
                }
                done += room.commit();
            }
            ours.shutdown().unwrap();
            ours
        });
        let (mut done, mut wrapped) = (0, 0);
        loop {
            let received = match theirs.received() {
                Ok(received) => received,
                Err(error) if is_later(&error) => {
                    assert!(theirs.wait(Readiness::READABLE, Some(LIMIT)).unwrap());
                    continue;
                }
                Err(error) => panic!("received: {error}"),
            };
            if received.is_empty() {
                break;
            }
            wrapped += usize::from(!received.spans()[1].is_empty());
            let bytes: Vec<u8> = received.iter().collect();
            assert_eq!(bytes, pattern(done, bytes.len()), "at {done}");
            // Only a part of it, so that spans begin anywhere.
            let count = bytes.len().div_ceil(2);
            theirs.consume(count);
            done += count;
        }
        assert_eq!(done, TOTAL);
        assert!(wrapped > 0, "no span ever went past the end of the ring");
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_native_server_serves_a_socket_client() {
    both_ways("a_native_server_serves_a_socket_client", || {
        let mut stack = Stack::open().unwrap();
        let mut listener = Listener::bind(&stack, anywhere(), 16).unwrap();
        let port = listener.local_addr().port();
        let client = std::thread::spawn(move || {
            let script = format!(
                "import threading, os\ns = socket.create_connection(('127.0.0.1', {port}))\ndata = os.urandom(3_000_000)\n\
                 def send():\n s.sendall(data)\n s.shutdown(socket.SHUT_WR)\n\
                 threading.Thread(target=send).start()\ngot = b''\n\
                 while True:\n more = s.recv(65536)\n if not more: break\n got += more\nprint(got == data)"
            );
            python(&script).run(120).ok()
        });
        serve(&mut stack, &mut listener, 1);
        assert_eq!(client.join().unwrap().trim(), "True");
    });
}

#[test]
fn a_native_client_talks_to_a_socket_server() {
    both_ways("a_native_client_talks_to_a_socket_server", || {
        let scratch = Scratch::new("native");
        let script = "l = socket.create_server(('127.0.0.1', 0))\nprint('port', l.getsockname()[1], '.', flush=True)\n\
                      s, _ = l.accept()\n\
                      while True:\n d = s.recv(65536)\n if not d: break\n s.sendall(d)\ns.sendall(b'done')\ns.close()\ntime.sleep(60)";
        let mut server = python(script).start(scratch.path("server.log"));
        server.wait_for(" .", 30);
        let port: u16 = server.output().split_whitespace().nth(1).unwrap().parse().unwrap();
        let mut stack = Stack::open().unwrap();
        let mut connection = connect(&mut stack, ([127, 0, 0, 1], port).into());
        let mut got = Vec::new();
        for at in 0..200 {
            give(&mut connection, &pattern(at * 5_000, 5_000)).unwrap();
            while got.len() < (at + 1) * 5_000 {
                got.extend(take(&mut connection, 5_000).unwrap());
            }
        }
        assert_eq!(got, pattern(0, 1_000_000));
        connection.shutdown().unwrap();
        assert_eq!(take_all(&mut connection).unwrap(), b"done");
    });
}

#[test]
fn half_a_connection_goes_on() {
    both_ways("half_a_connection_goes_on", || {
        let (mut stack, mut ours, mut theirs) = pair();
        stack.watch(&theirs, 7).unwrap();
        give(&mut ours, b"last words").unwrap();
        ours.shutdown().unwrap();
        let event = await_event(&mut stack, "the end of the stream", |event| event.token == 7);
        assert!(event.readiness.is_readable() && !event.readiness.is_closed(), "{event:?}");
        assert_eq!(take_all(&mut theirs).unwrap(), b"last words");
        assert_eq!(ours.send(b"more").unwrap_err().raw_os_error(), Some(libc::EPIPE));
        give(&mut theirs, &pattern(0, 200_000)[..60_000]).unwrap();
        let sender = std::thread::spawn(move || {
            give(&mut theirs, &pattern(60_000, 140_000)).unwrap();
            theirs.shutdown().unwrap();
            theirs
        });
        assert_eq!(take_all(&mut ours).unwrap(), pattern(0, 200_000));
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_reset_and_a_refusal_are_told() {
    both_ways("a_reset_and_a_refusal_are_told", || {
        let (mut stack, ours, mut theirs) = pair();
        stack.watch(&theirs, 9).unwrap();
        ours.reset();
        await_event(&mut stack, "the reset", |event| event.token == 9 && event.readiness.is_closed());
        assert_eq!(take(&mut theirs, 10).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        assert_eq!(theirs.send(b"x").unwrap_err().raw_os_error(), Some(libc::EPIPE));
        drop(theirs);
        // Nobody listens there any more.
        let listener = Listener::bind(&stack, anywhere(), 16).unwrap();
        let closed = listener.local_addr();
        drop(listener);
        until("the port's end", 20, || {
            let Ok(mut refused) = Connection::connect(&stack, closed) else { return true };
            stack.watch(&refused, 11).unwrap();
            let event = await_event(&mut stack, "the refusal", |event| event.token == 11);
            event.readiness.is_closed()
                && refused.is_established().unwrap_err().raw_os_error() == Some(libc::ECONNREFUSED)
        });
    });
}

#[test]
fn a_full_ring_says_so_and_then_tells_of_room() {
    both_ways("a_full_ring_says_so_and_then_tells_of_room", || {
        let (mut stack, mut ours, mut theirs) = pair();
        stack.watch(&ours, 3).unwrap();
        let mut sent = 0;
        // The peer does not read: its window closes, and then the ring stays full.
        let full = || Instant::now() + Duration::from_millis(500);
        let mut quiet = full();
        while Instant::now() < quiet {
            match ours.send(&pattern(sent, 10_000)) {
                Ok(count) => (sent, quiet) = (sent + count, full()),
                Err(error) => assert!(is_later(&error), "{error}"),
            }
        }
        assert!(sent >= ours.capacities().0, "{sent} bytes were sent");
        let mut events = [Event::default(); 4];
        while stack.wait(&mut events, Some(Duration::ZERO)).unwrap() > 0 {}
        assert_eq!(stack.wait(&mut events, Some(Duration::from_millis(100))).unwrap(), 0, "{events:?}");
        let mut got = Vec::new();
        let end = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < end, "no event of room");
            if let Ok(received) = theirs.received() {
                got.extend(received.iter());
                let count = received.len();
                theirs.consume(count);
            }
            let count = stack.wait(&mut events, Some(Duration::from_millis(1))).unwrap();
            if events[..count].iter().any(|event| event.token == 3 && event.readiness.is_writable()) {
                break;
            }
        }
        assert!(!ours.reserve(ours.capacities().0 / 3).unwrap().is_empty());
        ours.shutdown().unwrap();
        got.extend(take_all(&mut theirs).unwrap());
        assert_eq!(got, pattern(0, sent));
    });
}

#[test]
fn a_thousand_connections_on_one_thread() {
    both_ways("a_thousand_connections_on_one_thread", || {
        const COUNT: usize = 1_000;
        let mut stack = Stack::open().unwrap();
        let mut listener = Listener::bind(&stack, anywhere(), COUNT as u32).unwrap();
        let address = listener.local_addr();
        let server = std::thread::spawn(move || serve(&mut Stack::open().unwrap(), &mut listener, COUNT));
        let mut connections = Vec::new();
        for token in 0..COUNT as u64 {
            let connection = Connection::connect(&stack, address).unwrap();
            stack.watch(&connection, token).unwrap();
            connections.push((connection, Vec::new(), false));
        }
        let (mut over, mut events) = (0, [Event::default(); 32]);
        while over < COUNT {
            let count = stack.wait(&mut events, Some(LIMIT)).unwrap();
            assert!(count > 0, "nothing happens, {over} are over");
            for event in &events[..count] {
                let (connection, got, asked) = &mut connections[event.token as usize];
                if !*asked && connection.is_established().unwrap() {
                    *asked = true;
                    give(connection, &event.token.to_le_bytes()).unwrap();
                    connection.shutdown().unwrap();
                }
                let end = loop {
                    match connection.received() {
                        Ok(received) => {
                            got.extend(received.iter());
                            let count = received.len();
                            connection.consume(count);
                            if count == 0 {
                                break true;
                            }
                        }
                        Err(error) => {
                            assert!(is_later(&error), "{error}");
                            break false;
                        }
                    }
                };
                if end {
                    assert_eq!(got[..], event.token.to_le_bytes(), "bytes of another connection");
                    over += 1;
                    stack.unwatch(connection).unwrap();
                }
            }
        }
        server.join().unwrap();
    });
}

#[test]
fn threads_share_a_port_each_with_its_own_listener() {
    both_ways("threads_share_a_port_each_with_its_own_listener", || {
        const COUNT: usize = 64;
        let mut stack = Stack::open().unwrap();
        let first = Listener::bind_shared(&stack, "[::1]:0".parse().unwrap(), 128).unwrap();
        let address = first.local_addr();
        assert!(Listener::bind(&stack, address, 16).is_err(), "one that does not share has the port too");
        let second = Listener::bind_shared(&stack, address, 128).unwrap();
        let mut ours: Vec<_> = (0..COUNT).map(|_| connect(&mut stack, address)).collect();
        let mut listeners = [first, second];
        let mut theirs: [Vec<Connection>; 2] = Default::default();
        until("all are accepted", 60, || {
            for (listener, taken) in listeners.iter_mut().zip(&mut theirs) {
                while let Ok((connection, peer)) = listener.accept() {
                    assert_eq!(peer, connection.peer_addr());
                    taken.push(connection);
                }
            }
            theirs[0].len() + theirs[1].len() == COUNT
        });
        // One of them would get none in 2 of 2^64 runs.
        assert!(theirs.iter().all(|taken| !taken.is_empty()), "{} and {}", theirs[0].len(), theirs[1].len());
        for connection in &mut ours {
            give(connection, b"six").unwrap();
        }
        for connection in theirs.iter_mut().flatten() {
            assert_eq!(take(connection, 10).unwrap(), b"six");
        }
    });
}

#[test]
fn connections_that_the_stack_does_not_splice_go_on() {
    both_ways("connections_that_the_stack_does_not_splice_go_on", || {
        let (_stack, mut ours, mut theirs) = pair();
        let refused = |one: &Connection, other: &Connection| one.splice(other).unwrap_err().raw_os_error();
        assert_eq!(refused(&ours, &theirs), Some(libc::EOPNOTSUPP));
        assert_eq!(refused(&ours, &ours), Some(libc::EINVAL));
        assert_eq!(ours.send(b"goes on").unwrap(), 7);
        assert_eq!(take(&mut theirs, 7).unwrap(), b"goes on");
    });
}
