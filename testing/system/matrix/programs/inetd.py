"""inetd: programs whose standard input and output is the connection, or the listener."""
import pathlib

from frame import Program

program = Program("inetd", ["openbsd-inetd"])
TALK = pathlib.Path(__file__).parent.parent / "sources/talk.py"

CONFIG = """
ADDRESS:8511 stream tcp nowait root /bin/cat cat
ADDRESS:8512 stream tcp nowait root /bin/sh sh DIR/script
ADDRESS:8513 stream tcp wait root /usr/bin/python3 python3 DIR/waits
"""
SCRIPT = "while read a; do echo script $a; done\n"
# Serves until a second has passed without a connection; the next one starts it again.
WAITS = """
import socket
listener = socket.socket(fileno=0)
listener.settimeout(1)
while True:
    s, _ = listener.accept()
    s.settimeout(20)
    while text := s.recv(100): s.sendall(b"waits " + text)
    s.close()
"""


@program.check("cat, a shell script, and a server that is given the listener", quick=True, ways=("direct", "stack", "network"))
def services(place, tally):
    for name, text in ("inetd.conf", CONFIG), ("script", SCRIPT), ("waits", WAITS):
        pathlib.Path(place.path(name)).write_text(text.replace("ADDRESS", place.address).replace("DIR", str(place.dir)))
    server = place.start(["/usr/sbin/inetd", "-i", "-d", place.path("inetd.conf")])
    server.wait_for("8513")
    talk = lambda port, *texts: place.peer(["/usr/bin/python3", TALK, place.address, str(port), *texts])
    for port, what, before in (8511, "cat", ""), (8512, "a shell script", "script "), (8513, "a server that waits", "waits "):
        ran = talk(port, "one", "two", "three")
        tally.expect(what, ran.out == "".join(f"{before}{n}\n" for n in ("one", "two", "three")), f"{ran}{server.output()}")
    server.wait_for("restored")
    ran = talk(8513, "again")
    tally.expect("it is started again", ran.out == "waits again\n", f"{ran}{server.output()}")
