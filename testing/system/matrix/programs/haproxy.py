"""haproxy between nginx and its clients: HTTP and TCP, with splice(2) and without, two threads, health checks, TLS."""
import importlib
import pathlib
import re
import signal
import time

from frame import Asking, Program, until

nginx = importlib.import_module("programs.nginx")

program = Program("haproxy", ["haproxy", "nginx-light", "curl", "wrk", "openssl"])
PORTS = {"http": 9001, "http, splice": 9002, "tcp": 9003, "tcp, splice": 9004, "TLS": 9005}

CONFIG = """
global
    nbthread 2
    maxconn 2000
    stats socket DIR/haproxy.sock mode 600 level admin expose-fd listeners
defaults
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    retries 3
backend http
    mode http
    server one ADDRESS:PLAIN check inter 200 fall 30
backend http-splice
    mode http
    option splice-auto
    option splice-request
    option splice-response
    server one ADDRESS:PLAIN check inter 200 fall 30
backend tcp
    mode tcp
    server one ADDRESS:PLAIN check inter 200 fall 30
backend tcp-splice
    mode tcp
    option splice-auto
    option splice-request
    option splice-response
    server one ADDRESS:PLAIN check inter 200 fall 30
frontend f1
    mode http
    bind ADDRESS:9001
    default_backend http
frontend f2
    mode http
    option splice-auto
    option splice-request
    option splice-response
    bind ADDRESS:9002
    default_backend http-splice
frontend f3
    mode tcp
    bind ADDRESS:9003
    default_backend tcp
frontend f4
    mode tcp
    option splice-auto
    option splice-request
    option splice-response
    bind ADDRESS:9004
    default_backend tcp-splice
frontend f5
    mode http
    bind ADDRESS:9005 ssl crt DIR/both.pem
    default_backend http
"""


def serve(place, mode="-db"):
    nginx.serve(place)
    both = pathlib.Path(place.path("both.pem"))
    both.write_text("".join(pathlib.Path(place.path(name)).read_text() for name in ("cert.pem", "key.pem")))
    config = pathlib.Path(place.path("haproxy.cfg"))
    text = CONFIG.replace("DIR", str(place.dir)).replace("ADDRESS", place.address).replace("PLAIN", str(nginx.PLAIN))
    config.write_text(text)
    server = place.start(["/usr/sbin/haproxy", mode, "-f", config])
    server.until(lambda: nginx.curl(place, url(place, "http", "small")).ok(), "no answer")
    return server


def url(place, how, name):
    return f"{'https' if how == 'TLS' else 'http'}://{place.address}:{PORTS[how]}/{name}"


@program.check("HTTP, TCP, splice, TLS between nginx and curl", quick=True, quick_ways=("stack",), ways=("direct", "stack"))
def files(place, tally):
    server = serve(place)
    got = place.path("got")
    for how in PORTS:
        for name, size in nginx.FILES.items():
            ran = nginx.curl(place, "-o", got, url(place, how, name))
            tally.expect(f"{how}, {name}", ran.ok() and pathlib.Path(got).read_bytes() == nginx.content(size), ran)
    counts = place.plain(["/usr/bin/python3", "-c", ASK, place.path("haproxy.sock"), "show info"]).out
    tally.expect("haproxy is alive, with two threads", server.alive() and "Nbthread: 2" in counts, counts)
    servers = place.plain(["/usr/bin/python3", "-c", ASK, place.path("haproxy.sock"), "show stat"]).out
    up = [line for line in servers.splitlines() if ",one," in line and ",UP," in line]
    tally.expect("health checks find all four servers", len(up) == 4, servers)


@program.check("wrk through HTTP, TCP, splice, TLS", quick=True, quick_ways=("direct",), ways=("direct", "stack"))
def load(place, tally):
    serve(place)
    for how in ["tcp, splice"] if place.quick else PORTS:
        for name in ["middle"] if place.quick else ["small", "middle"]:
            ran = place.peer(["wrk", "-t", "2", "-c", "40", "-d", "1s" if place.quick else "4s", "--timeout", "30s", url(place, how, name)])
            count = re.search(r"(\d+) requests in", ran.out)
            clean = "Socket errors" not in ran.out and "Non-2xx" not in ran.out
            tally.expect(f"wrk, {how}, {name}", ran.ok() and clean and count and int(count[1]) > 20, ran)


def reloads(place, tally, again):
    """`again()` starts the next haproxy, and returns a function that tells whether the one before has ended."""
    got = place.path("slow")
    # Each download is from another process, which carries it to its end after the reload.
    slow = []
    asked = {how: Asking(place, PORTS[how], nginx.FILES["small"], "/small", threads=2) for how in ("http", "tcp, splice")}
    with asked["http"], asked["tcp, splice"]:
        for turn in range(2 if place.quick else 4):
            words = ["curl", "-sS", "--limit-rate", "8M", "-o", f"{got}-{turn}", url(place, ("tcp", "http, splice")[turn % 2], "large")]
            slow.append(place.start_peer(words))
            time.sleep(0.4)
            ended = again()
            time.sleep(0.4)
        until(ended, "the end of the haproxy before the last")
    for how, asking in asked.items():
        tally.expect(f"every request is answered, {how}", asking.clean(50), asking.result())
    for turn, download in enumerate(slow):
        download.process.wait(30)
        same = pathlib.Path(f"{got}-{turn}").read_bytes() == nginx.content(nginx.FILES["large"])
        tally.expect(f"a download goes on over reload {turn + 1}", same, download.output())


@program.check("the next takes the listeners over the stats socket (-x, -sf), under load", quick=True, quick_ways=("direct",),
               ways=("direct", "stack", "network"))
def takeover(place, tally):
    running = [serve(place)]

    def again():
        before = running[-1]
        # The process id is haproxy's own: nsenter and `towpath run` have executed it in their place.
        words = ["/usr/sbin/haproxy", "-db", "-f", place.path("haproxy.cfg"), "-x", place.path("haproxy.sock"), "-sf", before.process.pid]
        running.append(place.start(words))
        return lambda: not before.alive()

    reloads(place, tally, again)
    # Each ends with its last connection.
    until(lambda: not any(r.alive() for r in running[:-1]), "the end of all before the last")
    said = "".join(r.output() for r in running)
    tally.expect("the sockets came from the one before", "Failed to get the sockets" not in said, said)
    tally.expect("all before the last have ended", [r.alive() for r in running] == [False] * (len(running) - 1) + [True], said)


@program.check("a master with workers is reloaded (-W, SIGUSR2), under load", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def master(place, tally):
    server = serve(place, "-W")
    children = lambda: set(pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split())

    def again():
        before = children()
        server.process.send_signal(signal.SIGUSR2)
        until(lambda: children() - before, "a new worker")
        return lambda: not children() & before

    reloads(place, tally, again)
    tally.expect("the master is alive, with one worker", server.alive() and len(children()) == 1, server.output())


ASK = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode() + b"\\n")
print(s.makefile().read())
"""
