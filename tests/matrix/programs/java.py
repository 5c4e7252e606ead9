"""A JVM: a server on a selector, clients with threads, selectors and asynchronous channels, HTTP."""
import pathlib

from frame import Program

program = Program("openjdk", ["openjdk-17-jdk-headless"], large=True)
SOURCE = pathlib.Path(__file__).parent.parent / "sources/Nio.java"
PORT = "8100"


@program.check("NIO, sockets and HTTP, server and clients", quick=True, ways=("direct", "stack", "network"))
def nio(place, tally):
    # Compiled first: the compiler's own sockets and files are none of the check.
    if not (made := place.plain(["javac", "-d", place.dir, SOURCE])).ok():
        raise RuntimeError(made)
    java = lambda *more: ["java", "-Xmx256m", "-cp", place.dir, "Nio", place.address, PORT, *more]
    server = place.start(java("serve", "0"))
    server.wait_for("listening")
    ran = place.peer(java("ask" if place.way == "network" else "all", "20" if place.quick else "500"), seconds=110)
    for line in ran.out.splitlines():
        state, _, name = line.rpartition("ok ")
        name, _, reason = name.partition(": ")
        tally.expect(name, state == "", reason)
    tally.expect("all checks ran", ran.ok() and len(ran.out.splitlines()) == 6, ran)
    tally.expect("the server is still there", server.alive(), server.output())
