"""gRPC's C core, by its Python module: calls and streams over HTTP/2, plain and TLS."""
import importlib
import pathlib

from frame import Program, tap

nginx = importlib.import_module("programs.nginx")
program = Program("grpc", ["python3-grpcio", "openssl"])
SOURCE = pathlib.Path(__file__).parent.parent / "sources/grpc_echo.py"


@program.check("calls, streams both ways, limits of time; plain and TLS", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def calls(place, tally):
    nginx.certificate(place)
    words = lambda role, *more: ["/usr/bin/python3", "-u", SOURCE, place.address, role, *more]
    server = place.start(words("serve"))
    server.wait_for("listening")
    tap.lines(tally, place.peer(words("ask" if place.way == "network" else "all", "50" if place.quick else "1000")), 9)
    tally.expect("the server is alive", server.alive(), server.output())
