#!/usr/bin/python3
"""Servers and clients on uvloop, both in this process; prints a line for each check.

Usage: uvloop_echo.py ADDRESS ROUNDS; cert.pem and key.pem are in the current directory.
"""
import asyncio
import os
import socket
import ssl
import sys

import uvloop

ADDRESS, ROUNDS = sys.argv[1], int(sys.argv[2])


async def echo(reader, writer):
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


async def talk(port, data, context=None):
    reader, writer = await asyncio.open_connection(ADDRESS, port, ssl=context)

    async def send():
        writer.write(data)
        await writer.drain()
        if not context:
            writer.write_eof()

    sending = asyncio.create_task(send())
    got = await (reader.readexactly(len(data)) if context else reader.read())
    await sending
    writer.close()
    return got == data


async def served(act, context=None):
    server = await asyncio.start_server(echo, ADDRESS, 0, ssl=context)
    async with server:
        return await act(server.sockets[0].getsockname()[1])


async def fresh():
    async def act(port):
        return all([await talk(port, os.urandom(1000)) for _ in range(ROUNDS)])
    return await served(act)


async def many():
    async def act(port):
        return all(await asyncio.gather(*(talk(port, os.urandom(50_000)) for _ in range(100))))
    return await served(act)


async def large():
    return await served(lambda port: talk(port, os.urandom(10_000_000)))


async def secured():
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain("cert.pem", "key.pem")
    client = ssl.create_default_context(cafile="cert.pem")
    client.check_hostname = False

    async def act(port):
        return all(await asyncio.gather(*(talk(port, os.urandom(300_000), client) for _ in range(10))))
    return await served(act, server)


async def raw():
    """The loop's calls on sockets of the program's own."""
    loop = asyncio.get_running_loop()
    data = os.urandom(1_000_000)
    with socket.create_server((ADDRESS, 0)) as listener, socket.socket() as client:
        listener.setblocking(False)
        client.setblocking(False)
        accepting = asyncio.create_task(loop.sock_accept(listener))
        await loop.sock_connect(client, listener.getsockname())
        server, _ = await accepting
        with server:
            sending = asyncio.create_task(loop.sock_sendall(client, data))
            got = b""
            while len(got) < len(data):
                got += await loop.sock_recv(server, 65536)
            await sending
    return got == data


async def refused():
    try:
        await asyncio.open_connection(ADDRESS, 1)
    except ConnectionRefusedError:
        return True


async def main():
    checks = (("a new connection each time", fresh), ("many connections at a time", many), ("10 MB, half-closed", large), ("TLS", secured),
              ("sockets of its own", raw), ("a refused port", refused))
    for name, act in checks:
        try:
            good = await asyncio.wait_for(act(), 60)
            print(f"ok {name}" if good else f"not ok {name}: other bytes")
        except Exception as e:
            print(f"not ok {name}: {e!r}")


uvloop.install()
asyncio.run(main())
