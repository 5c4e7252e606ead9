# close_range of everything ends connections, and leaves the library its own descriptors. Among them are those of the pairs that
# it has just kept for the next connections.
import ctypes, os, socket

def own():
    return {int(name) for name in os.listdir("/proc/self/fd") if int(name) >= 400}

def connect(listener):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    return client, server

listener = socket.create_server(("127.0.0.1", 0))
pairs = [connect(listener) for _ in range(6)]
before = own()
lowest = min(end.fileno() for pair in pairs for end in pair)
check(ctypes.CDLL(None).close_range(lowest, 0xFFFF_FFFF, 0) == 0, "close_range")
check(before < own(), f"{sorted(before)} have become {sorted(own())}")
[end.detach() for pair in pairs for end in pair]
for _ in range(8):
    client, server = connect(listener)
    client.sendall(b"x")
    check(server.recv(10) == b"x", "a byte")
    server.close()
    check(client.recv(10) == b"", "the end")
    client.close()
print("done")
