//! A program with one thread takes its sockets' locks in a cheaper way, until it makes threads or children. All bytes
//! that these send on one socket arrive once.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::Service;
use towpath_system_tests::direct::PEER;

/// Each sender has a letter. The only thread sends first, then two threads at once, then two processes, then the first
/// thread alone. The peer counts letters.
const SCRIPT: &str = r#"
import threading
s, p = peer("""
count = [0] * 256
while True:
    d = s.recv(65536)
    if not d: break
    for byte in set(d): count[byte] += d.count(byte)
print([count[byte] for byte in b'abcdefg'], sum(count))
""")
def several(byte):
    for n in range(20000): s.sendall(byte * 64)
several(b'a')
thread = threading.Thread(target=several, args=(b'b',)); thread.start(); several(b'c'); thread.join()
several(b'd'); sys.stdout.flush()
if (child := os.fork()) == 0:
    several(b'e'); os._exit(0)
several(b'f'); assert os.waitpid(child, 0)[1] == 0
several(b'g'); s.close(); print(p.communicate()[0].strip())
"#;

#[test]
fn what_the_threads_and_children_of_a_program_that_was_alone_send_arrives_once() {
    let service = Service::embedded();
    let out = service.accelerated("python3 -c").arg(format!("{PEER}{SCRIPT}")).run(120).ok();
    let (each, senders) = (20_000 * 64, 7);
    assert_eq!(out.trim(), format!("{:?} {}", vec![each; senders], each * senders));
    assert!(service.segments() > 0, "the stack carried nothing");
}
