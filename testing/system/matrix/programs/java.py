"""A JVM: a server on a selector, clients with threads, selectors and asynchronous channels, HTTP."""
import pathlib

from frame import Program, tap

program = Program("openjdk", ["openjdk-17-jdk-headless"], large=True)
SOURCE = pathlib.Path(__file__).parent.parent / "sources/Nio.java"
PORT = "8100"


@program.check("NIO, sockets and HTTP, server and clients", quick=True, ways=("direct", "stack", "network"))
def nio(place, tally):
    # Compiled outside the check, which is not about the compiler's own sockets.
    if not (made := place.plain(["javac", "-d", place.dir, SOURCE])).ok():
        raise RuntimeError(made)
    java = lambda *more: ["java", "-Xmx256m", "-cp", place.dir, "Nio", place.address, PORT, *more]
    server = place.start(java("serve", "0"))
    server.wait_for("listening")
    ran = place.peer(java("ask" if place.way == "network" else "all", "20" if place.quick else "500"), seconds=110)
    tap.lines(tally, ran, 6)
    tally.expect("the server is still there", server.alive(), server.output())
