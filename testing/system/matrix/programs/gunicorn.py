"""gunicorn: Python's prefork server, by processes and by threads, reloaded under load."""
import importlib
import pathlib
import signal
import time

from frame import Asking, Program

nginx = importlib.import_module("programs.nginx")
program = Program("gunicorn", ["gunicorn", "curl", "wrk"])
PORT = 8631

APPLICATION = """
import os
def app(environ, start):
    body = environ["wsgi.input"].read() if environ["REQUEST_METHOD"] == "PUT" else b"x" * 200
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


@program.check("three workers by processes and by threads, reloaded under load", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def workers(place, tally):
    pathlib.Path(place.path("application.py")).write_text(APPLICATION)
    pathlib.Path(place.path("sent")).write_bytes(nginx.content(3_000_000))
    for port, kind, more in (PORT, "processes", []), (PORT + 1, "threads", ["--threads", "4"]):
        words = ["/usr/bin/gunicorn", "-w", "3", "-b", f"{place.address}:{port}", "--worker-tmp-dir", place.dir, *more, "application:app"]
        server = place.start(words)
        at = nginx.url(place, port, "")
        server.until(lambda: nginx.curl(place, at).ok(), "no answer")
        got = place.path("got")
        ran = nginx.curl(place, "-T", place.path("sent"), "-o", got, at + "echo")
        tally.expect(f"{kind}: an echo of 3 MB", ran.ok() and pathlib.Path(got).read_bytes() == nginx.content(3_000_000), ran)
        with Asking(place, port, 200, "/") as asking:
            time.sleep(0.5)
            server.process.send_signal(signal.SIGHUP)
            time.sleep(2)
        tally.expect(f"{kind}: every request is answered", asking.clean(50), asking.result())
        server.process.terminate()
        server.process.wait(30)
        tally.expect(f"{kind}: it ends well", server.process.returncode == 0, server.output())
