"""Go, which has no libc: HTTP, HTTPS, HTTP/2 and a relay, server and clients, statically linked."""
import pathlib
import subprocess

from frame import Program, tap

SOURCE = pathlib.Path(__file__).parent.parent / "sources/serve.go"
PORTS = ["8200", "8201", "8202"]


def version():
    return subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True).stdout.strip().removeprefix("go")


# Go need not come from Debian.
program = Program("go", ["golang-go"], version, large=True, commands={"golang-go": "go"})


@program.check("HTTP, HTTPS, HTTP/2 and a relay, server and clients", quick=True, ways=("direct", "stack", "network"), seconds=280)
def http(place, tally):
    # The first run also builds Go's library.
    made = place.plain(["go", "build", "-o", place.path("serve"), SOURCE], seconds=200, env={"CGO_ENABLED": "0"})
    if not made.ok():
        raise RuntimeError(made)
    go = lambda role, *more: [place.path("serve"), place.address, *PORTS, role, *more]
    server = place.start(go("serve", "0"))
    server.wait_for("listening")
    ran = place.peer(go("ask" if place.way == "network" else "all", "20" if place.quick else "500"))
    tap.lines(tally, ran, 10)
    tally.expect("the server is still there", server.alive(), server.output())
