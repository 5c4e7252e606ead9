"""uvicorn with uvloop and httptools: an ASGI application in two processes; a client of uvloop's own."""
import importlib
import pathlib

from frame import Program, tap

nginx = importlib.import_module("programs.nginx")
program = Program("uvicorn", ["uvicorn", "python3-uvloop", "python3-httptools", "curl", "wrk", "openssl"])
CLIENT = pathlib.Path(__file__).parent.parent / "sources/uvloop_echo.py"
PORT, TLS = 8741, 8742

APPLICATION = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/stream":
        for n in range(2000):
            await send({"type": "http.response.body", "body": str(n).ljust(1000).encode(), "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body or (b"" if scope["path"] == "/stream" else b"x" * 200)})
"""


@program.check("two processes, plain and TLS; curl and wrk", quick=True, quick_ways=("direct",), ways=("direct", "stack", "network"))
def serve(place, tally):
    pathlib.Path(place.path("application.py")).write_text(APPLICATION)
    nginx.certificate(place)
    secure = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem"]
    turns = (PORT, "plain, two processes", ["--workers", "2"]), (TLS, "TLS", secure)
    for port, how, more in turns[:1] if place.quick else turns:
        words = ["--host", place.address, "--port", port, "--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--no-access-log"]
        server = place.start(["/usr/bin/python3", "-m", "uvicorn", *words, *more, "application:app"])
        at = f"http{'s' if more == secure else ''}://{place.address}:{port}/"
        server.until(lambda: nginx.curl(place, at).ok(), "no answer")
        nginx.echo(place, tally, how, at + "echo")
        ran = nginx.curl(place, at + "stream")
        tally.expect(f"{how}, a stream of 2 MB", ran.out == "".join(str(n).ljust(1000) for n in range(2000)), ran.err)
        nginx.wrk(place, tally, how, at)
        server.process.terminate()
        server.process.wait(30)
        tally.expect(f"{how}, it ends well", server.process.returncode == 0, server.output())


@program.check("uvloop's servers and clients: streams, TLS, half-closed, raw sockets", quick=True, quick_ways=("stack",),
               ways=("direct", "stack"))
def loop(place, tally):
    nginx.certificate(place)
    tap.lines(tally, place.run(["/usr/bin/python3", CLIENT, place.address, "20" if place.quick else "200"]), 6)
