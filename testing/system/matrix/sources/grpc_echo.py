#!/usr/bin/python3
"""A server that gives back what it is sent, by gRPC, and clients that print a line for each check. Messages are plain bytes.

Usage: grpc_echo.py ADDRESS serve | all ROUNDS | ask ROUNDS (from another host); cert.pem and key.pem are in the current directory.
"""
import concurrent.futures
import os
import sys
import time

import grpc

ADDRESS, ROLE = sys.argv[1], sys.argv[2]
PLAIN, TLS = f"{ADDRESS}:8791", f"{ADDRESS}:8792"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]


def echo(body, context):
    if body == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")
    if body == b"sleep":
        time.sleep(3)
    return body


def count(body, _):
    for n in range(int(body)):
        yield b"%d" % n


def serve():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", {
        "one": grpc.unary_unary_rpc_method_handler(echo),
        "down": grpc.unary_stream_rpc_method_handler(count),
        "up": grpc.stream_unary_rpc_method_handler(lambda parts, _: b"%d" % sum(map(len, parts))),
        "both": grpc.stream_stream_rpc_method_handler(lambda parts, _: parts),
    })])
    key, cert = (open(name, "rb").read() for name in ("key.pem", "cert.pem"))
    assert server.add_insecure_port(PLAIN) and server.add_secure_port(TLS, grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    print("listening")
    server.wait_for_termination()


def plain():
    return grpc.insecure_channel(PLAIN, OPTIONS + [("grpc.use_local_subchannel_pool", 1)])


def secure():
    trust = grpc.ssl_channel_credentials(open("cert.pem", "rb").read())
    return grpc.secure_channel(TLS, trust, OPTIONS + [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)])


def one(channel, body, **options):
    return channel.unary_unary("/echo/one")(body, timeout=options.pop("timeout", 30), **options)


def calls(channel, rounds):
    return all(one(channel, b"%d" % n) == b"%d" % n for n in range(rounds))


def together(channel, rounds):
    call = channel.unary_unary("/echo/one")
    bodies = [os.urandom(20_000) for _ in range(100)]
    return [f.result() for f in [call.future(b, timeout=60) for b in bodies]] == bodies


def fresh(_, rounds):
    for n in range(min(rounds, 100)):
        with plain() as channel:
            if one(channel, b"%d" % n) != b"%d" % n:
                return False
    return True


def large(channel, rounds):
    body = os.urandom(20_000_000)
    return one(channel, body, timeout=60) == body


def streams(channel, rounds):
    down = list(channel.unary_stream("/echo/down")(b"%d" % (rounds * 10), timeout=60))
    up = channel.stream_unary("/echo/up")((b"x" * 1000 for _ in range(rounds)), timeout=60)
    parts = [os.urandom(5000) for _ in range(rounds)]
    both = list(channel.stream_stream("/echo/both")(iter(parts), timeout=60))
    return down == [b"%d" % n for n in range(rounds * 10)] and up == b"%d" % (rounds * 1000) and both == parts


def code(act):
    try:
        act()
    except grpc.RpcError as e:
        return e.code()


def limit(channel, rounds):
    start = time.monotonic()
    return code(lambda: one(channel, b"sleep", timeout=0.3)) == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - start < 2


def failed(channel, rounds):
    return code(lambda: one(channel, b"fail")) == grpc.StatusCode.FAILED_PRECONDITION


def refused(_, rounds):
    with grpc.insecure_channel(f"{ADDRESS}:1") as channel:
        return code(lambda: one(channel, b"")) == grpc.StatusCode.UNAVAILABLE


def ask(rounds):
    checks = (("calls on one connection", plain, calls), ("100 calls at a time", plain, together), ("a new connection each time", plain, fresh),
              ("20 MB each way", plain, large), ("streams", plain, streams), ("streams, TLS", secure, streams), ("a limit of time", plain, limit),
              ("an error of the server's", plain, failed), ("a refused port", plain, refused))
    for name, channel, act in checks:
        if act is refused and ROLE == "ask":
            print(f"skip {name}")
            continue
        try:
            with channel() as open_channel:
                print(f"ok {name}" if act(open_channel, rounds) else f"not ok {name}: other bytes")
        except Exception as e:
            print(f"not ok {name}: {e!r}".replace("\n", " "))


serve() if ROLE == "serve" else ask(int(sys.argv[3]))
