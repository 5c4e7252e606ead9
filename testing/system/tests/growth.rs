//! Rings grow on a long path, with the memory of whom they serve.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::wire::Wire;
use towpath_system_tests::{Program, Service};

/// What goes each way. The rings begin with 128 KiB.
const BYTES: u32 = 24 << 20;

/// Takes all, then gives as much; prints the sizes of its buffers before and after that, and a sum of what it was given.
const SERVER: &str = "import socket, sys, zlib
BYTES = int(sys.argv[1]); piece = bytes(range(251)) * 1045
l = socket.create_server(('10.77.1.1', 7000)); print('listening', flush=True)
c, _ = l.accept(); sizes = lambda: [c.getsockopt(socket.SOL_SOCKET, o) for o in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
first = sizes(); got = total = 0
while taken := c.recv(1 << 20): total = zlib.crc32(taken, total); got += len(taken)
for at in range(0, BYTES, len(piece)): c.sendall(piece[:BYTES - at])
last = sizes(); c.close(); print('took', got, total, *first, *last, flush=True)";

/// The other side, on Linux; prints what it was given.
const CLIENT: &str = "import socket, sys, zlib
BYTES = int(sys.argv[1]); piece = bytes(range(251)) * 1045
c = socket.create_connection(('10.77.1.1', 7000)); got = total = sent = 0
for at in range(0, BYTES, len(piece)):
    c.sendall(piece[:BYTES - at]); sent = zlib.crc32(piece[:BYTES - at], sent)
c.shutdown(socket.SHUT_WR)
while taken := c.recv(1 << 20): total = zlib.crc32(taken, total); got += len(taken)
print(got, total, sent)";

fn python(script: &str) -> Program {
    Program::new(&["python3", "-c", script]).arg(BYTES.to_string())
}

/// Sizes of the receive and the send ring, when the connection begins and when it ends.
fn transfer(setting: &str) -> [u32; 4] {
    transfer_of("python3 -c", setting)
}

/// The same of a program that is started by this line.
fn transfer_of(program: &str, setting: &str) -> [u32; 4] {
    let wire = Wire::new();
    let _relay = wire.relay("--delay 15ms");
    let config = wire.scratch.path("towpathd.toml");
    std::fs::write(&config, format!("interface = \"eth1\"\n{setting}")).unwrap();
    let service = Service::start(|program| wire.under(0, program.arg("--config").arg(config)));
    let server = service.accelerated(program).arg(SERVER).arg(BYTES.to_string());
    let mut server = wire.under(0, server).start(wire.scratch.path("server.log"));
    server.wait_for("listening", 30);
    let told = wire.under(1, python(CLIENT)).run(120).ok();
    let told: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    server.wait_for("took", 60);
    let output = server.output();
    let took: Vec<u64> = output
        .lines()
        .find_map(|line| line.strip_prefix("took "))
        .unwrap()
        .split(' ')
        .map(|w| w.parse().unwrap())
        .collect();
    let all = u64::from(BYTES);
    assert_eq!((told[0], took[0]), (all, all), "every byte came");
    assert_eq!((told[1], took[1]), (told[2], told[2]), "unchanged");
    server.wait_end(20);
    [2, 3, 4, 5].map(|at| took[at] as u32)
}

#[test]
fn on_a_long_path_both_rings_grow_and_no_byte_is_lost() {
    let sizes = transfer("send_buffer_max = \"2MiB\"\nreceive_buffer_max = \"2MiB\"\n");
    assert_eq!(sizes[..2], [131_072; 2], "{sizes:?}");
    // How far depends on how the machine's load lets the window grow.
    assert!(sizes[2] > 131_072 && sizes[3] > 131_072, "{sizes:?}");
}

#[test]
fn rings_grow_by_default_but_not_those_of_a_program_whose_addresses_are_limited() {
    let sizes = transfer("");
    assert!(sizes[2] > 131_072 && sizes[3] > 131_072, "{sizes:?}");
    let sizes = transfer_of("prlimit --as=50000000000 python3 -c", "");
    assert_eq!(sizes, [131_072; 4]);
}

#[test]
fn rings_grow_no_further_than_they_may() {
    let sizes = transfer("receive_buffer = \"64KiB\"\nreceive_buffer_max = \"256KiB\"\nsend_buffer_max = \"128KiB\"\n");
    assert_eq!([sizes[0], sizes[1], sizes[3]], [65_536, 131_072, 131_072], "{sizes:?}");
    assert!(sizes[2] > 65_536 && sizes[2] <= 262_144, "{sizes:?}");
}
