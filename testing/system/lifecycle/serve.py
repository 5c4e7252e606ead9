"""Two servers that answer each line with itself: `asyncio PORT`, and `prefork PORT` of three processes."""

import asyncio
import ctypes
import os
import signal
import socket
import sys

kind, port = sys.argv[1], int(sys.argv[2])


async def answer(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except OSError:
        pass  # The connection has ended, as when a network goes down.
    writer.close()


async def serve():
    server = await asyncio.start_server(answer, "0.0.0.0", port)
    print("ready", flush=True)
    await server.serve_forever()


def prefork():
    listener = socket.create_server(("0.0.0.0", port), backlog=256)
    first = os.getpid()
    if os.fork() and os.fork():
        print("ready", flush=True)
    else:
        # It ends with the first process, however that ends.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != first:
            sys.exit()
    while True:
        connection, _ = listener.accept()
        try:
            while data := connection.recv(4096):
                connection.sendall(data)
        except OSError:
            pass
        connection.close()


if kind == "asyncio":
    asyncio.run(serve())
else:
    prefork()
