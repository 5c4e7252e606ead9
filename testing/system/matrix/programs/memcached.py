"""memcached with four threads, and its own test suite: the servers and the Perl clients under Towpath."""
import concurrent.futures
import re

from frame import Program, built, tap

program = Program("memcached", ["memcached", "libevent-dev", "pkg-config", "perl"])
PORT = "11311"

# 8 connections, each with a value of its own and requests in flight.
CLIENT = r"""
import socket, sys
address, count = sys.argv[1], int(sys.argv[2])
files = [socket.create_connection((address, PORT), 20).makefile("rwb") for _ in range(8)]
for i in range(count):
    for n, f in enumerate(files):
        value = b"%d-%d" % (n, i) * 100
        f.write(b"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n" % (n, len(value), value, n)); f.flush()
    for n, f in enumerate(files):
        value = b"%d-%d" % (n, i) * 100
        assert f.readline() == b"STORED\r\n"
        assert f.readline() == b"VALUE k%d 0 %d\r\n" % (n, len(value))
        assert f.readline() == value + b"\r\n" and f.readline() == b"END\r\n"
big = bytes(range(256)) * 4000
f.write(b"set big 0 0 %d\r\n%s\r\nget big\r\n" % (len(big), big)); f.flush()
assert f.readline() == b"STORED\r\n" and f.readline().startswith(b"VALUE big")
assert f.read(len(big)) == big and f.readline() == b"\r\n" and f.readline() == b"END\r\n"
f.write(b"stats\r\n"); f.flush()
stats = dict(line.split()[1:3] for line in iter(f.readline, b"END\r\n"))
print("done", stats[b"cmd_set"].decode(), stats[b"threads"].decode())
""".replace("PORT", PORT)

# Left out: tests that need other build options (TLS, a proxy, flash storage), UDP or UNIX sockets, and those that take minutes
# without using sockets.
LEFT_OUT = re.compile(r"ssl|udp|unixsocket|extstore|proxy|startfile|slabs|slabhang|lru-|chunked|00-startup|issue_67|stress|sasl|dyn-maxbytes")


@program.check("four threads, eight clients", quick=True, ways=("direct", "stack", "network"))
def threads(place, tally):
    server = place.start(["memcached", "-l", place.address, "-p", PORT, "-U", "0", "-t", "4", "-u", "root", "-I", "2m"])
    ask = lambda count: place.peer(["/usr/bin/python3", "-c", CLIENT, place.address, count])
    server.until(lambda: ask(1).ok(), "no answer")
    count = 100 if place.quick else 2000
    ran = ask(count)
    tally.expect("values come back as they were set", ran.out.split()[:1] == ["done"], ran)
    tally.expect("four threads", ran.out.split()[2:] == ["4"], ran)


def over_tcp(tree):
    """The suite prefers UNIX sockets if memcached has them. This keeps it from doing so."""
    path = tree / "t/lib/MemcachedTest.pm"
    text = path.read_text()
    edited = text.replace("sub supports_unix_socket {", "sub supports_unix_socket {\n    return 0;", 1)
    if edited == text:
        raise RuntimeError(f"{path} is not as expected")
    path.write_text(edited)


@program.check("its own test suite (t/*.t)", seconds=2400, many_sockets=True)
def suite(place, tally):
    # Some make 80,000 requests one after the other, and a second kernel is slow because it is traced.
    seconds = 900 if place.way == "uml" else 240
    steps = ["./configure", "make -j2 memcached memcached-debug timedrun testapp sizes"]
    tree = built("memcached", over_tcp, steps)
    names = sorted(f"t/{p.name}" for p in (tree / "t").glob("*.t") if not LEFT_OUT.search(p.name))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        # A test file starts and ends its own servers.
        for name, ran in zip(names, pool.map(lambda name: place.run(["perl", name], cwd=tree, seconds=seconds), names)):
            tap.count(tally, name, ran)
