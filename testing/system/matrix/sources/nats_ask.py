#!/usr/bin/python3
"""Clients of nats-server by its text protocol; prints a line for each check.

Usage: nats_ask.py ADDRESS PORT OTHER-PORT STREAM-PORT MESSAGES; the first two ports are of servers in one cluster.
"""
import hashlib
import json
import os
import socket
import sys
import threading
import time

ADDRESS, (FIRST, SECOND, STREAM, COUNT) = sys.argv[1], map(int, sys.argv[2:6])


class Client:
    """A connection. What the server has to say by itself (INFO, PING) it hears between messages."""

    def __init__(self, port):
        self.socket = socket.create_connection((ADDRESS, port), 30)
        self.file = self.socket.makefile("rb")
        self.send(b'CONNECT {"verbose":false,"pedantic":true,"headers":true,"no_responders":false}\r\n')
        self.flush()

    def send(self, data):
        self.socket.sendall(data)

    def publish(self, subject, body, reply=""):
        self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")

    def subscribe(self, subject, queue=""):
        self.send(f"SUB {subject} {queue} 1\r\n".encode())
        self.flush()

    def flush(self):
        """Waits until the server has done all that it was sent."""
        self.send(b"PING\r\n")
        while (line := self.line()) != b"PONG":
            if line.startswith(b"MSG"):
                raise RuntimeError("a message too early")

    def line(self):
        while True:
            line = self.file.readline().rstrip()
            if line == b"PING":
                self.send(b"PONG\r\n")
            elif not line or line.startswith(b"-ERR"):
                raise RuntimeError(f"the server said {line!r}")
            elif not line.startswith(b"INFO") and line != b"+OK":
                return line

    def message(self):
        """(subject, reply, body) of the next message"""
        words = self.line().split()
        body = self.file.read(int(words[-1]) + 2)[:-2]
        return words[1].decode(), words[3].decode() if len(words) == 5 else "", body


def delivered(publisher_port, subscriber_port):
    subscriber, publisher = Client(subscriber_port), Client(publisher_port)
    subscriber.subscribe("a.*")
    settle()
    feed = threading.Thread(target=lambda: [publisher.publish("a.b", b"%d" % n) for n in range(COUNT)])
    feed.start()
    got = [subscriber.message()[2] for _ in range(COUNT)]
    feed.join()
    return got == [b"%d" % n for n in range(COUNT)]


def settle():
    """The other server of a cluster hears of a subscription soon, and says nothing about it."""
    time.sleep(0.3)


def large():
    subscriber, publisher = Client(SECOND), Client(FIRST)
    subscriber.subscribe("large")
    settle()
    bodies = [os.urandom(1_000_000) for _ in range(10)]
    feed = threading.Thread(target=lambda: [publisher.publish("large", body) for body in bodies])
    feed.start()
    got = [subscriber.message()[2] for _ in bodies]
    feed.join()
    return [hashlib.sha256(b).digest() for b in got] == [hashlib.sha256(b).digest() for b in bodies]


def queues():
    """Each message goes to one of the subscribers of a queue."""
    workers = [Client(port) for port in (FIRST, SECOND, FIRST, SECOND)]
    for worker in workers:
        worker.subscribe("jobs", "q")
    settle()
    publisher = Client(FIRST)
    for n in range(COUNT):
        publisher.publish("jobs", b"%d" % n)
    publisher.flush()
    # Each answers a PING after its messages.
    got = []
    settle()
    for worker in workers:
        worker.send(b"PING\r\n")
        while (line := worker.line()) != b"PONG":
            got.append(int(worker.file.read(int(line.split()[-1]) + 2)))
    return sorted(got) == list(range(COUNT))


def requests():
    def answer():
        for _ in range(COUNT // 10):
            _, reply, body = server.message()
            server.publish(reply, body[::-1])

    server, client = Client(SECOND), Client(FIRST)
    server.subscribe("service")
    client.subscribe("inbox.*")
    settle()
    thread = threading.Thread(target=answer)
    thread.start()
    good = True
    for n in range(COUNT // 10):
        client.publish("service", b"request %d" % n, f"inbox.{n}")
        subject, _, body = client.message()
        good &= subject == f"inbox.{n}" and body == (b"request %d" % n)[::-1]
    thread.join()
    return good


def kept():
    """A stream of JetStream: what was published before the subscriber came."""
    client = Client(STREAM)
    client.subscribe("inbox.>")

    def ask(subject, body):
        client.publish(subject, body, "inbox.1")
        return json.loads(client.message()[2])

    made = ask("$JS.API.STREAM.CREATE.S", json.dumps({"name": "S", "subjects": ["kept.*"], "storage": "file"}).encode())
    last = [ask("kept.a", b"%d" % n) for n in range(COUNT // 10)][-1]
    first = ask("$JS.API.STREAM.MSG.GET.S", b'{"seq": 1}')
    return "error" not in made and last["seq"] == COUNT // 10 and first["message"]["data"] == "MA=="


checks = (("messages in order", lambda: delivered(FIRST, FIRST)), ("messages in order through two servers", lambda: delivered(FIRST, SECOND)),
          ("messages of 1 MB", large), ("a queue of four", queues), ("requests and answers", requests), ("a stream that is kept", kept))
for name, act in checks:
    try:
        print(f"ok {name}" if act() else f"not ok {name}: other messages")
    except Exception as e:
        print(f"not ok {name}: {e!r}")
