"""systemd's socket activation: the launcher listens, and the program that it executes has the listener or the connection."""
import pathlib

from frame import Program

program = Program("systemd", ["systemd", "gcc"])
SOURCES = pathlib.Path(__file__).parent.parent / "sources"


@program.check("systemd-socket-activate: listeners and connections by exec", quick=True, ways=("direct", "stack", "network"))
def activation(place, tally):
    if not (made := place.plain(["gcc", "-O1", "-o", place.path("echo"), SOURCES / "echo.c"])).ok():
        raise RuntimeError(made)
    launch = lambda port, *words: place.start(["systemd-socket-activate", "-l", f"{place.address}:{port}", *words])
    talk = lambda port, *texts: place.peer(["/usr/bin/python3", SOURCES / "talk.py", place.address, str(port), *texts])

    server = launch(8501, place.path("echo"), "-", "0", "3")
    server.wait_for("Listening")
    ran = talk(8501, "one", "two", "three")
    tally.expect("the listener, as LISTEN_FDS says", ran.out == "one\ntwo\nthree\n", f"{ran}{server.output()}")
    server.process.wait(30)
    tally.expect("what was activated ends well", "served" in server.output() and server.process.returncode == 0, server.output())

    for port, what, words in (8502, "a program on each connection", ["cat"]), (8503, "a shell on each connection", ["sh", "-c", "read a; echo $a"]):
        launch(port, "-a", "--inetd", *words).wait_for("Listening")
        ran = talk(port, "one", "two", "three")
        tally.expect(what, ran.out == "one\ntwo\nthree\n", ran)
