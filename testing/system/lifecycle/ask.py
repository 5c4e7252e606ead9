"""Asks servers again and again: `load HOST BROKEN_MAY`, until SIGTERM, or once each: `once HOST`.

A connection that is cut is counted; where BROKEN_MAY is `no`, that is an error. A refused connection, an answer that is
another's, and a wait of a minute are errors always.
"""

import signal
import socket
import sys

mode, host = sys.argv[1], sys.argv[2]
may_break = mode == "load" and sys.argv[3] == "yes"
# A peer on another host is not told that the service has died while it waits for an answer.
limit = 3 if mode == "load" and may_break and sys.argv[4:] == ["far"] else 60
ECHO = lambda n: (b"%d\n" % n, b"%d\n" % n, b"")
# By port: the question, and how the answer begins and ends.
SERVERS = {
    7901: lambda n: (b"ECHO %d\r\n" % n, b"$%d\r\n%d\r\n" % (len(str(n)), n), b""),
    7902: lambda n: (b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n, b"HTTP/1.1 204", b"\r\n\r\n"),
    7903: lambda n: (b"get %d\r\n" % n, b"END\r\n", b""),
    7904: ECHO,
    7905: ECHO,
}
counts = {"done": 0, "cut": 0}
stopping = False


def stop(*_):
    global stopping
    stopping = True


def talk(port, times):
    question = SERVERS[port]
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.settimeout(limit)
        for n in range(times):
            ask, expected, end = question(n)
            connection.sendall(ask)
            got = b""
            while len(got) < len(expected) or not got.endswith(end):
                part = connection.recv(4096)
                if not part:
                    raise ConnectionResetError("the end of the stream")
                got += part
            assert got.startswith(expected), (port, n, got)


def attempt(port):
    try:
        talk(port, 3)
    except ConnectionRefusedError as why:
        raise AssertionError(f"port {port} refuses") from why
    except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, TimeoutError) as why:
        told = isinstance(why, TimeoutError) and why.errno is None and limit == 60
        assert may_break and not told, (port, repr(why))
        counts["cut"] += 1
        return
    counts["done"] += 1


signal.signal(signal.SIGTERM, stop)
if mode == "once":
    for port in SERVERS:
        try:
            talk(port, 1)
        except OSError as why:
            sys.exit(f"port {port}: {why!r}")
    print("all", flush=True)
    sys.exit()
rounds = 0
while not stopping:
    for port in SERVERS:
        attempt(port)
    rounds += 1
    print("round", rounds, flush=True)
print("over", counts, flush=True)
