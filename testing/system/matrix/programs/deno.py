"""Deno, a runtime in Rust (tokio and hyper): HTTP, HTTPS and WebSocket by its own interfaces, sockets by Node's."""
import importlib
import os
import pathlib

from frame import Program, npm, tap

nginx = importlib.import_module("programs.nginx")
VERSION = "2.9.6"
SHA512 = "3md4TKLCuzsLDmfOoC5KN7NAZaxSVkMgm64vg6foD00JBADCpYS2/5QqXfzgnP5ZQz3iLP9vBQJtEgc116OAoQ=="
program = Program("deno", ["npm", "openssl", "wrk"], VERSION, large=True, commands={"npm": "npm"})
SOURCE = pathlib.Path(__file__).parent.parent / "sources/runtime.mjs"


@program.check("HTTP, HTTPS and WebSocket, sockets, server and clients; wrk", quick=True, ways=("direct", "stack", "network"))
def http(place, tally):
    binary = npm("@deno/linux-x64-glibc", VERSION, SHA512) / "deno"
    os.chmod(binary, 0o755)
    nginx.certificate(place)
    words = lambda *more: [binary, "run", "-A", "--unsafely-ignore-certificate-errors", SOURCE, place.address, *more]
    own = {"HOME": str(place.dir), "NO_COLOR": "1", "DENO_DIR": place.path("deno"), "DENO_NO_UPDATE_CHECK": "1"}
    server = place.start(words("serve"), env=own)
    server.wait_for("listening")
    ran = place.peer(words("ask" if place.way == "network" else "all", "20" if place.quick else "500"), env=own)
    tap.lines(tally, ran, 8)
    nginx.wrk(place, tally, "small answers", f"http://{place.address}:8851/once")
    tally.expect("the server is still there", server.alive(), server.output())
