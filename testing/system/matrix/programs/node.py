"""Node's HTTP and HTTPS servers and clients: keep-alive, pipelining, many connections, resets."""
import pathlib

from frame import Program, tap

program = Program("nodejs", ["nodejs", "openssl"], large=True)
SOURCE = pathlib.Path(__file__).parent.parent / "sources/http.js"
PORT, TLS = "8000", "8001"


@program.check("HTTP and HTTPS, server and clients", quick=True, ways=("direct", "stack", "network"))
def http(place, tally):
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    if not (made := place.plain(words.split())).ok():
        raise RuntimeError(made)
    node = lambda role, *more: ["node", SOURCE, place.address, PORT, TLS, role, *more]
    server = place.start(node("serve", "0", place.path("key.pem"), place.path("cert.pem")))
    server.wait_for("listening")
    ran = place.peer(node("ask" if place.way == "network" else "all", "20" if place.quick else "500"))
    tap.lines(tally, ran, 8)
    tally.expect("the server is still there", server.alive(), server.output())
