#!/usr/bin/python3
"""Asks an HTTP server without a break, a connection per request, until the file STOP appears. It counts every failure.

Usage: ask.py ADDRESS PORT STOP THREADS EXPECTED-SIZE PATH; prints `asked N` and a line for each kind of failure.
"""
import collections
import os
import socket
import sys
import threading

ADDRESS, PORT, STOP, THREADS, SIZE, PATH = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
COUNTS = collections.Counter()


def once():
    with socket.create_connection((ADDRESS, PORT), 20) as s:
        s.sendall(f"GET {PATH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        got = b""
        while part := s.recv(65536):
            got += part
    head, _, body = got.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return f"status {head[:20]!r}"
    return "asked" if len(body) == SIZE else f"{len(body)} bytes of {SIZE}"


def work():
    while not os.path.exists(STOP):
        try:
            COUNTS[once()] += 1
        except OSError as e:
            COUNTS[f"{type(e).__name__} {e}"] += 1


threads = [threading.Thread(target=work) for _ in range(THREADS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
for what, n in COUNTS.items():
    print(what, n)
