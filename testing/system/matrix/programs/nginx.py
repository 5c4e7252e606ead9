"""nginx with four workers, sendfile and TLS, as a server and as a proxy; curl and wrk at the other end."""
import hashlib
import os
import pathlib
import re
import signal
import time

from frame import Asking, Program, until

program = Program("nginx", ["nginx-light", "curl", "wrk", "openssl"])
PLAIN, TLS, PROXY = 8080, 8443, 8081
FILES = {"small": 200, "middle": 300_000, "large": 20_000_000}

CONFIG = """
user USER; worker_processes 4; daemon DAEMON; pid DIR/nginx.pid; error_log DIR/error.log notice;
events { worker_connections 512; }
http {
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
    client_body_temp_path DIR/b; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
    client_max_body_size 100m;
    upstream plain { server ADDRESS:PLAIN; keepalive 16; }
    server {
        listen ADDRESS:PLAIN; root DIR/www;
        location /upload { dav_methods PUT; create_full_put_path on; }
        location /who { return 200 "$pid\\n"; }
    }
    server {
        listen ADDRESS:TLS ssl http2; root DIR/www;
        ssl_certificate DIR/cert.pem; ssl_certificate_key DIR/key.pem;
        location /who { return 200 "$pid\\n"; }
    }
    server {
        listen ADDRESS:PROXY;
        location / { proxy_pass http://plain; proxy_http_version 1.1; proxy_set_header Connection ""; }
    }
}
"""


def content(size):
    """Bytes that hardly compress and do not repeat."""
    block = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(4096))
    return (block * (size // len(block) + 1))[:size]


def www(place):
    """A directory with FILES."""
    made = pathlib.Path(place.path("www"))
    made.mkdir()
    for name, size in FILES.items():
        (made / name).write_bytes(content(size))
    return made


def certificate(place):
    """Makes cert.pem and key.pem for localhost."""
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    if not (made := place.plain(words.split())).ok():
        raise RuntimeError(made)


def serve(place, daemon="off", user="root"):
    """Starts nginx with CONFIG, and returns it when it answers."""
    www(place)
    certificate(place)
    names = {"USER": user, "DAEMON": daemon, "DIR": place.dir, "ADDRESS": place.address, "PLAIN": PLAIN, "TLS": TLS, "PROXY": PROXY}
    text = re.sub("|".join(names), lambda found: str(names[found[0]]), CONFIG)
    config = pathlib.Path(place.path("nginx.conf"))
    config.write_text(text)
    server = place.start(["/usr/sbin/nginx", "-c", config, "-p", place.dir])
    if daemon == "on":
        server.process.wait(30)
        until(lambda: curl(place, url(place, PLAIN, "small")).ok(), "an answer")
        return None
    server.until(lambda: curl(place, url(place, PLAIN, "small")).ok(), "no answer")
    return server


def url(place, port, name):
    scheme = "https" if port == TLS else "http"
    return f"{scheme}://{place.address}:{port}/{name}"


def curl(place, *words, **options):
    # A connection that comes between a server's `listen` and the stack's taking of it is the kernel's, whose TCP is dropped here.
    # The next one is the stack's.
    return place.peer(["curl", "-sSk", "--connect-timeout", "5", "--max-time", "60", *words], **options)


def fetch(place, tally, how, at):
    """Does a server give each of FILES as it is?"""
    got = place.path("got")
    for name, size in FILES.items():
        ran = curl(place, "-o", got, at + name)
        tally.expect(f"{how}, {name}", ran.ok() and pathlib.Path(got).read_bytes() == content(size), ran)


def echo(place, tally, how, at, size=3_000_000):
    """Does a server give back what is sent to it?"""
    sent, got = place.path("sent"), place.path("got")
    pathlib.Path(sent).write_bytes(content(size))
    ran = curl(place, "-T", sent, "-o", got, at)
    tally.expect(f"{how}, an echo of {size} bytes", ran.ok() and pathlib.Path(got).read_bytes() == content(size), ran)


def wrk(place, tally, what, at, seconds=1, kept=True):
    """Load of 40 connections without an error. Without `kept`, errors by idle connections that the server ends do not count."""
    # In a second kernel, which is traced, the 40 connections alone may take a second on a busy machine.
    seconds = max(seconds, 4) if place.way == "uml" else seconds
    ran = place.peer(["wrk", "-t", "2", "-c", "40", "-d", f"{seconds}s", "--timeout", "30s", at])
    count = re.search(r"(\d+) requests in", ran.out)
    errors = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", ran.out)
    clean = not errors or (not kept and (errors[1], errors[3], errors[4]) == ("0", "0", "0"))
    tally.expect(f"wrk, {what}", ran.ok() and clean and "Non-2xx" not in ran.out and count and int(count[1]) > 50, ran)


@program.check("files by sendfile, TLS and a proxy; curl", quick=True, ways=("direct", "stack", "network"))
def files(place, tally):
    serve(place)
    got = place.path("got")
    for port, how in (PLAIN, "sendfile"), (TLS, "TLS"), (PROXY, "proxy"):
        fetch(place, tally, how, url(place, port, ""))
    ran = curl(place, "-r", "1000000-1999999", "-o", got, url(place, PLAIN, "large"))
    tally.expect("a range", ran.ok() and pathlib.Path(got).read_bytes() == content(FILES["large"])[1_000_000:2_000_000], ran)
    ran = curl(place, "-T", f"{place.dir}/www/large", url(place, PLAIN, "upload/large"))
    kept = pathlib.Path(place.path("www/upload/large"))
    tally.expect("an upload of 20 MB", ran.ok() and kept.exists() and kept.read_bytes() == content(FILES["large"]), ran)
    ran = curl(place, "--http1.1", "-w", "%{num_connects}\n", "-o", got, url(place, PLAIN, "small"), "-o", got, url(place, PLAIN, "middle"))
    tally.expect("a second request on one connection", ran.out.split() == ["1", "0"], ran)
    for port, how in (PLAIN, "plain"), (TLS, "HTTP/2 over TLS"):
        many = [word for _ in range(20) for word in ("-o", got, url(place, port, "middle"))]
        ran = curl(place, "-Z", "--parallel-max", "10", *many)
        tally.expect(f"20 in parallel, {how}", ran.ok(), ran)


@program.check("wrk on four workers: plain, TLS, proxy", quick=True, quick_ways=("network",), ways=("direct", "stack", "network"))
def load(place, tally):
    serve(place)
    seconds = 1 if place.quick else 5
    for port, how in (PLAIN, "sendfile"), (TLS, "TLS"), (PROXY, "proxy"):
        for name in ["small"] if place.quick else ["small", "middle"]:
            wrk(place, tally, f"{how}, {name}", url(place, port, name), seconds)


@program.check("new workers under load (nginx -s reload)", ways=("direct", "stack", "network"))
def reload(place, tally):
    server = serve(place)
    who = lambda: {curl(place, url(place, PLAIN, "who")).out.strip() for _ in range(12)}
    before = who()
    with Asking(place, PLAIN, FILES["small"], "/small", threads=2) as asking:
        for turn in range(3):
            place.plain(["/usr/sbin/nginx", "-c", place.path("nginx.conf"), "-p", place.dir, "-s", "reload"])
            ran = place.peer(["wrk", "-t", "1", "-c", "10", "-d", "2s", "--timeout", "20s", url(place, PROXY, "small")])
            # A worker that ends closes idle connections, which wrk counts as read errors before it connects again.
            errors = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", ran.out)
            clean = not errors or (errors[1], errors[3], errors[4]) == ("0", "0", "0")
            tally.expect(f"load over reload {turn + 1}", ran.ok() and clean and "Non-2xx" not in ran.out, ran)
    tally.expect("every request with a connection of its own is answered", asking.clean(50), asking.result())
    after = who()
    tally.expect("other workers answer", server.alive() and after and not before & after, f"{before} {after}")


def named(place, name):
    """The process id in a pid file of nginx; 0 = none."""
    try:
        return int(pathlib.Path(place.path(name)).read_text())
    except (OSError, ValueError):
        return 0


def workers(master):
    """The children of a process."""
    try:
        return set(pathlib.Path(f"/proc/{master}/task/{master}/children").read_text().split())
    except OSError:
        return set()


@program.check("a new binary takes over the listeners (USR2, WINCH, QUIT), under load", quick=True, quick_ways=("network",),
               ways=("direct", "stack", "network"))
def upgrade(place, tally):
    # As a daemon, because nginx accepts USR2 only if its parent has ended. The workers are not root.
    serve(place, "on", "www-data")
    old = named(place, "nginx.pid")
    slow = place.start_peer(["curl", "-sS", "--limit-rate", "6M", "-o", place.path("slow"), url(place, PLAIN, "large")])
    with Asking(place, PLAIN, FILES["small"], "/small") as plain, Asking(place, PROXY, FILES["small"], "/small") as proxy:
        time.sleep(0.5)
        os.kill(old, signal.SIGUSR2)
        until(lambda: named(place, "nginx.pid") not in (0, old) and len(workers(named(place, "nginx.pid"))) == 4, "a new master")
        new = named(place, "nginx.pid")
        tally.expect("a new master with four workers beside the old one", named(place, "nginx.pid.oldbin") == old, place.dir)
        time.sleep(0.5)
        os.kill(old, signal.SIGWINCH)
        # The old master's children are the new master, and the worker that still sends.
        until(lambda: len(workers(old)) <= 2, "the end of idle old workers")
        time.sleep(0.5)
        os.kill(old, signal.SIGQUIT)
        until(lambda: not workers(old), "the end of the old master")
        time.sleep(0.5)
    for what, asking in ("plain", plain), ("through the proxy", proxy):
        tally.expect(f"every request is answered, {what}", asking.clean(50), asking.result())
    slow.process.wait(30)
    same = pathlib.Path(place.path("slow")).read_bytes() == content(FILES["large"])
    tally.expect("a download from an old worker goes on to its end", same, slow.output())
    answers = {curl(place, url(place, PLAIN, "who")).out.strip() for _ in range(12)}
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in answers}
    tally.expect("the workers are not root", owners and 0 not in owners, owners)
    tally.expect("the new workers answer", answers and answers <= workers(new), f"{answers} {workers(new)}")
