import asyncio


async def main():
    async def serve(reader, writer):
        while data := await reader.read(50_000):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def client(n):
        reader, writer = await asyncio.open_connection(*address)
        check(accelerated(writer.get_extra_info("socket")))
        data = bytes([n]) * 400_000

        async def send():
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        check(await reader.read(-1) == data)
        await sending
        writer.close()

    await asyncio.gather(*(client(n) for n in range(20)))
    server.close()
    # The same loop learns of a child's end by a kernel descriptor.
    child = await asyncio.create_subprocess_exec("true")
    check(await child.wait() == 0)


asyncio.run(main())
print("done")
