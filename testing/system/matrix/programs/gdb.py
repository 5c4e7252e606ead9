"""A server that gdb, strace or Valgrind starts, or to which gdb or strace attaches."""
import pathlib
import re

from frame import Program

program = Program("gdb", ["gdb", "strace", "valgrind", "gcc"])
SOURCES = pathlib.Path(__file__).parent.parent / "sources"


@program.check("a server that is looked at by gdb, strace -f and valgrind", quick=True, quick_ways=("direct",),
               ways=("direct", "stack", "network"), seconds=240)
def looked_at(place, tally):
    if not (made := place.plain(["gcc", "-g", "-O1", "-o", place.path("echo"), SOURCES / "echo.c"])).ok():
        raise RuntimeError(made)
    ports = iter(range(8400, 8500))

    def asked(what, tool=(), beside=None, seconds=60):
        """The server answers two connections, started by `tool` or with `beside(pid)` attached. Returns its output."""
        port = next(ports)
        server = place.start([*tool, place.path("echo"), place.address, port, "2"])
        server.wait_for("listening", seconds)
        looker = beside(server.process.pid) if beside else None
        ran = place.peer(["/usr/bin/python3", SOURCES / "talk.py", place.address, str(port), "one", "two"])
        tally.expect(f"{what}: two connections", ran.out == "one\ntwo\n", f"{ran}{server.output()}")
        server.process.wait(90)
        if looker:
            looker.process.wait(30)
        return server.output() + (looker.output() if looker else "")

    said = asked("strace -f", ["strace", "-f", "-o", place.path("trace")])
    tally.expect("strace -f: the server ends well", "served" in said and "+++ exited with 0 +++" in pathlib.Path(place.path("trace")).read_text(), said)
    said = asked("strace -p", beside=lambda pid: attached(place, ["strace", "-f", "-p", pid]))
    tally.expect("strace -p: it sees calls and the end", "served" in said and "+++ exited with 0 +++" in said, said)
    script = pathlib.Path(place.path("script"))
    script.write_text("set debuginfod enabled off\nset breakpoint pending on\nbreak accept\nrun\nbacktrace\ncontinue\ndelete\ncontinue\n")
    said = asked("gdb", ["gdb", "-q", "-batch", "-x", script, "--args"])
    tally.expect("gdb: a breakpoint in accept, called by main", re.search(r"#0 .*accept[^#]*#1 .*main", said) and "exited normally" in said, said)
    words = ["gdb", "-q", "-batch", "-ex", "set debuginfod enabled off", "-ex", "backtrace", "-ex", "detach", "-p"]
    said = asked("gdb -p", beside=lambda pid: ended(place.start_plain([*words, pid])))
    tally.expect("gdb -p: main is on the stack, and it goes on", re.search(r" main \(", said) and "served" in said, said)
    # The search for leaks would read gigabytes of mapped rings.
    said = asked("valgrind", ["valgrind", "-q", "--leak-check=no", "--error-exitcode=9"])
    # Valgrind 3.19 does not know futex_waitv.
    errors = [line for line in said.splitlines() if line.startswith("==")]
    tally.expect("valgrind: no error, and at most one warning", not errors and said.count("WARNING") <= 1 and "served" in said, said)


def attached(place, words):
    looker = place.start_plain(words)
    looker.wait_for("attached")
    return looker


def ended(looker):
    looker.process.wait(60)
    return looker
