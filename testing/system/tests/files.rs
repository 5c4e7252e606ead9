//! `sendfile` behind the ring: the program names a part of a file, and the stack's kernel reads and sends it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use towpath_system_tests::{Program, Service, bin, require_program, until};

/// Sends `argv[1]` between two words to several peers, to each in another way.
const SENDER: &str = "import os, select, socket, sys
path = sys.argv[1]; size = os.path.getsize(path)
l = socket.socket(); l.setsockopt(1, 2, 1); l.bind(('127.0.0.1', int(sys.argv[2]))); l.listen()
print('ready', flush=True)
for way in sys.argv[3:]:
    a, _ = l.accept(); f = open(path, 'rb')
    a.sendall(b'HEAD')
    at = 0
    if way == 'waits':
        while at < size:
            at += os.sendfile(a.fileno(), f.fileno(), at, size - at)
    elif way == 'position':
        while at < size:
            at += os.sendfile(a.fileno(), f.fileno(), None, size - at)
        assert os.lseek(f.fileno(), 0, os.SEEK_CUR) == size
    elif way == 'shrinks':
        a.setblocking(False)
        while True:
            try: os.sendfile(a.fileno(), f.fileno(), at, size); at += 1 << 20
            except BlockingIOError: break
        os.truncate(path, 1000)
        open(path + '.shrunk', 'w').close()
        a.setblocking(True)
    else:
        a.setblocking(False); e = select.epoll()
        e.register(a, select.EPOLLOUT | (select.EPOLLET if way == 'edge' else 0))
        while at < size:
            try: at += os.sendfile(a.fileno(), f.fileno(), at, size - at)
            except BlockingIOError: assert e.poll(60), 'there is no event'
        a.setblocking(True)
    if way != 'shrinks': a.sendall(b'TAIL')
    a.shutdown(socket.SHUT_WR)
    try: a.recv(1)
    except ConnectionError: pass
";

/// Reads to the end, from so many seconds after connecting or from when a file is there. Prints the number of bytes and
/// their hash, or the error.
const READER: &str = "import hashlib, os, socket, sys, time
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 90); h = hashlib.md5(); n = 0; start = sys.argv[2]
if os.path.isabs(start):
    while not os.path.exists(start): time.sleep(0.01)
else: time.sleep(float(start))
try:
    while got := c.recv(1 << 20): h.update(got); n += len(got)
    print(n, h.hexdigest())
except ConnectionError as error: print('reset after', n)
";

/// Makes a file that is longer than all buffers. Returns its path, and the line that the reader prints for it.
fn file(service: &Service, bytes: usize) -> (PathBuf, String) {
    let body: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = service.scratch.path("body");
    std::fs::write(&path, &body).expect("the file");
    std::fs::write(service.scratch.path("whole"), [b"HEAD".as_slice(), &body, b"TAIL"].concat()).expect("a file");
    let sum = Program::line("md5sum").arg(service.scratch.path("whole")).run(20).ok();
    (path, format!("{} {}", bytes + 8, sum.split(' ').next().expect("a sum")))
}

fn sender(service: &Service, path: &Path, port: u16, ways: &[&str]) -> towpath_system_tests::program::Running {
    let program = service.accelerated("/usr/bin/python3 -c").arg(SENDER).arg(path).arg(port.to_string());
    let program = ways.iter().fold(program, |program, way| program.arg(way));
    let mut sender = program.start(service.scratch.path("sender.log"));
    sender.wait_for("ready", 30);
    sender
}

fn read(port: u16, start: impl AsRef<OsStr>) -> String {
    let reader = Program::line("/usr/bin/python3 -c").arg(READER).arg(port.to_string()).arg(start);
    reader.run(100).ok().trim().to_owned()
}

#[test]
fn a_file_that_is_sent_does_not_pass_through_the_ring() {
    let service = Service::kernel();
    let (path, whole) = file(&service, 40_000_000);
    let ways = ["waits", "position", "level", "edge"];
    let mut sender = sender(&service, &path, 7631, &ways);
    for (way, delay) in ways.into_iter().zip(["0", "0.3", "0", "0.3"]) {
        assert_eq!(read(7631, delay), whole, "{way}: {}", sender.output());
    }
    sender.wait_end(20);
    assert!(!sender.output().contains("Error"), "{}", sender.output());
    until("all is counted, and only the words before and after have passed the ring", 20, || {
        service.stage("file_bytes") == 4 * 40_000_000 && service.stage("sent_bytes") == 4 * 8
    });
}

#[test]
fn the_peer_of_a_file_that_shrinks_while_it_is_sent_gets_a_reset() {
    let service = Service::kernel();
    let (path, _) = file(&service, 40_000_000);
    let _sender = sender(&service, &path, 7632, &["shrinks"]);
    let read = read(7632, path.with_extension("shrunk"));
    assert!(read.starts_with("reset after"), "{read}");
    assert!(service.stage("file_bytes") > 0);
}

#[test]
fn a_changed_file_is_sent_as_it_is_and_a_short_one_through_the_ring() {
    let service = Service::kernel();
    let script = "import os, socket, sys
path = sys.argv[1]; l = socket.socket(); l.setsockopt(1, 2, 1); l.bind(('127.0.0.1', 7633)); l.listen(); print('ready', flush=True)
for n, size in enumerate([100_000, 200_000, 200_000, 20_000]):
    with open(path, 'wb') as f: f.write(bytes([65 + n]) * size)
    a, _ = l.accept(); f = open(path, 'rb')
    at = 0
    while at < size: at += os.sendfile(a.fileno(), f.fileno(), at, size)
    a.close()
";
    let path = service.scratch.path("body");
    let mut sender =
        service.accelerated("/usr/bin/python3 -c").arg(script).arg(&path).start(service.scratch.path("log"));
    sender.wait_for("ready", 30);
    let drain = "import socket
c = socket.create_connection(('127.0.0.1', 7633), 60); d = b''
while got := c.recv(1 << 20): d += got
print(len(d), set(d))";
    for (size, byte) in [(100_000, 65), (200_000, 66), (200_000, 67), (20_000, 68)] {
        let got = Program::line("/usr/bin/python3 -c").arg(drain).run(70).ok();
        assert_eq!(got.trim(), format!("{size} {{{byte}}}"), "{}", sender.output());
    }
    until("all is counted", 20, || (service.stage("file_bytes"), service.stage("sent_bytes")) == (500_000, 20_000));
}

/// Fetches by TLS of version `argv[2]`; the end of the stream must be announced by an alert.
const FETCHER: &str = "import hashlib, socket, ssl, sys
context = ssl._create_unverified_context()
context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, sys.argv[2])
raw = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60)
s = context.wrap_socket(raw, suppress_ragged_eofs=False)
s.sendall(b'GET /whole HTTP/1.0\\r\\n\\r\\n'); got = b''
while more := s.recv(1 << 20): got += more
body = got.partition(b'\\r\\n\\r\\n')[2]
print(len(body), hashlib.md5(body).hexdigest())
";

/// Uploads the file `argv[3]` by TLS of version `argv[2]`.
const UPLOADER: &str = "import socket, ssl, sys
context = ssl._create_unverified_context()
context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, sys.argv[2])
s = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 90))
body = open(sys.argv[3], 'rb').read()
s.sendall(b'PUT /put/%s HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n' % (sys.argv[2].encode(), len(body)))
s.sendall(body); print(s.recv(4096).decode())
";

/// nginx with kTLS and sendfile, in the service's directory.
fn nginx(service: &Service, port: u16) -> towpath_system_tests::program::Running {
    let dir = service.scratch.0.display();
    Program::line(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -keyout key.pem -out cert.pem",
    )
    .dir(&service.scratch.0)
    .run(60)
    .ok();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log notice;
         events {{ worker_connections 64; }}
         http {{ access_log off; sendfile on; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;
                fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
                server {{ listen 127.0.0.1:{port} ssl; root {dir}; ssl_certificate {dir}/cert.pem;
                          ssl_certificate_key {dir}/key.pem; ssl_protocols TLSv1.2 TLSv1.3;
                          ssl_conf_command Options KTLS;
                          client_max_body_size 64m; location /put/ {{ dav_methods PUT; }} }} }}"
    );
    std::fs::write(service.scratch.path("nginx.conf"), config).expect("config");
    service.accelerated("nginx -c").arg(service.scratch.path("nginx.conf")).start(service.scratch.path("nginx.log"))
}

#[test]
fn a_second_kernel_reads_nginxs_files_itself_and_encrypts_them() {
    for (program, package) in [("linux.uml", "user-mode-linux"), ("nginx", "nginx-light"), ("openssl", "openssl")] {
        require_program(program, package);
    }
    let mut service = Service::start(|program| program.arg("--stack").arg("uml"));
    service.running.wait_for("stack=\"uml\"", 90);
    let (_, whole) = file(&service, 10_000_000);
    let mut server = nginx(&service, 7634);
    let fetch =
        |version: &str| service.accelerated("/usr/bin/python3 -c").arg(FETCHER).arg("7634").arg(version).run(100);
    until("nginx answers", 30, || {
        assert!(server.alive(), "{}", server.output());
        fetch("TLSv1_3").code == 0
    });
    // The program decrypts received data itself: it asks for kTLS there too, and is refused.
    std::fs::create_dir(service.scratch.path("put")).expect("a directory");
    let upload = std::fs::read(service.scratch.path("body")).expect("the file");
    for version in ["TLSv1_3", "TLSv1_2"] {
        let put = service.accelerated("/usr/bin/python3 -c").arg(UPLOADER).arg("7634").arg(version);
        let answer = put.arg(service.scratch.path("body")).run(100).ok();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer} {}", server.output());
        let put = service.scratch.path(&format!("put/{version}"));
        assert!(std::fs::read(put).expect("the uploaded file") == upload, "{version}");
    }
    let before = (service.stage("file_bytes"), service.stage("sent_bytes"));
    for version in ["TLSv1_3", "TLSv1_2"] {
        assert_eq!(fetch(version).ok().trim(), whole, "{version}");
    }
    let after = (service.stage("file_bytes"), service.stage("sent_bytes"));
    assert_eq!(after.0 - before.0, 2 * 10_000_008, "the stack's kernel read both bodies");
    assert!(after.1 - before.1 < 50_000, "{} bytes went through the rings", after.1 - before.1);
    let exec = Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--");
    let figures = exec.arg("cat").arg("/proc/net/tls_stat").run(30).ok();
    let encrypting = figures.lines().find_map(|line| line.strip_prefix("TlsTxSw")).map(str::trim).unwrap_or_default();
    assert!(encrypting.parse::<u32>().is_ok_and(|count| count >= 3), "{figures}");
}
