"""Bun, whose sockets are libc's and whose waiting is by system calls of its own: HTTP, HTTPS and WebSocket by its own interfaces, sockets by Node's."""
import importlib
import os
import pathlib

from frame import Program, npm, tap

nginx = importlib.import_module("programs.nginx")
VERSION = "1.4.5"
SHA512 = "IWX9BELoGHAUtMonkeSaNaZwXzRk+oDw6Mk+HBFXd3KHYIBNBsIGRupMZPcgNoDbJpLu6gAJjIoIVPZtt1aJ1g=="
program = Program("bun", ["npm", "openssl", "wrk"], VERSION, large=True, commands={"npm": "npm"})
SOURCE = pathlib.Path(__file__).parent.parent / "sources/runtime.mjs"


@program.check("HTTP, HTTPS and WebSocket, sockets, server and clients; wrk", quick=True, ways=("direct", "stack", "network"))
def http(place, tally):
    binary = npm("@oven/bun-linux-x64", VERSION, SHA512) / "bin/bun"
    os.chmod(binary, 0o755)
    nginx.certificate(place)
    words = lambda *more: [binary, "run", SOURCE, place.address, *more]
    own = {"HOME": str(place.dir), "NO_COLOR": "1"}
    server = place.start(words("serve"), env=own)
    server.wait_for("listening")
    ran = place.peer(words("ask" if place.way == "network" else "all", "20" if place.quick else "500"), env=own)
    tap.lines(tally, ran, 8)
    nginx.wrk(place, tally, "small answers", f"http://{place.address}:8851/once")
    tally.expect("the server is still there", server.alive(), server.output())
