"""A static program of musl's: echo servers by epoll and by processes, and their clients."""
import pathlib

from frame import Program, tap

program = Program("musl", ["musl-tools"])
SOURCE = pathlib.Path(__file__).parent.parent / "sources/musl.c"
PORT = "8300"


@program.check("echoes by epoll, threads, processes and stdio, static", quick=True, ways=("direct", "stack", "network"))
def echoes(place, tally):
    if not (made := place.plain(["musl-gcc", "-static", "-O1", "-pthread", "-o", place.path("echo"), SOURCE])).ok():
        raise RuntimeError(made)
    echo = lambda role, rounds: [place.path("echo"), place.address, PORT, role, rounds]
    server = place.start(echo("serve", "0"))
    server.wait_for("listening")
    ran = place.peer(echo("ask" if place.way == "network" else "all", "50" if place.quick else "1000"))
    tap.lines(tally, ran, 9)
    tally.expect("the server is still there", server.alive(), server.output())
