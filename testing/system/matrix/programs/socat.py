"""socat: a process per connection, pipes, TLS, a relay of relays."""
import hashlib

from frame import Program

program = Program("socat", ["socat", "openssl"])
ECHO, HASH, TLS, RELAY, INHERIT = 7001, 7002, 7003, 7004, 7005


def content(size):
    """Text, because output is read as text."""
    block = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(1024))
    return (block * (size // len(block) + 1))[:size]


def digest(text):
    return [hashlib.sha256(text.encode()).hexdigest()]


def listener(place, address, other, *options):
    server = place.start(["socat", "-dd", *options, address, other])
    server.wait_for("listening on")
    return server


@program.check("a process per connection, EXEC, PIPE, TLS, relays", quick=True, ways=("direct", "stack", "network"))
def runs(place, tally):
    at = lambda kind, port: f"{kind}:{port},bind={place.address},reuseaddr,fork"
    small, large = content(20_000), content(300_000 if place.quick else 20_000_000)
    talk = lambda words, data, **more: place.peer(["socat", "-t20", *words], stdin=data, **more)

    listener(place, at("TCP4-LISTEN", ECHO), "PIPE")
    ran = talk(["-", f"TCP4:{place.address}:{ECHO}"], small)
    tally.expect("a pipe echoes", ran.ok() and ran.out == small, ran)
    several = f"for n in $(seq 20); do (printf %05000d $n | socat -t20 - TCP4:{place.address}:{ECHO} | wc -c) & done; wait"
    ran = place.peer(["sh", "-c", several])
    tally.expect("twenty at a time", ran.out.split() == ["5000"] * 20, ran)

    listener(place, at("TCP4-LISTEN", HASH), "EXEC:sha256sum")
    ran = talk(["-", f"TCP4:{place.address}:{HASH}"], large)
    tally.expect("a program through a socket pair", ran.out.split()[:1] == digest(large), ran)

    # The executed program has the connection itself as standard input and output.
    listener(place, at("TCP4-LISTEN", INHERIT), "EXEC:cat,nofork")
    ran = talk(["-", f"TCP4:{place.address}:{INHERIT}"], small)
    tally.expect("a program on the connection itself", ran.ok() and ran.out == small, ran)

    listener(place, at("TCP4-LISTEN", RELAY), f"TCP4:{place.address}:{ECHO}")
    ran = talk(["-", f"TCP4:{place.address}:{RELAY}"], small)
    tally.expect("a relay to the echo", ran.ok() and ran.out == small, ran)

    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    if not (made := place.plain(words.split())).ok():
        raise RuntimeError(made)
    listener(place, f"OPENSSL-LISTEN:{TLS},bind={place.address},pf=ip4,reuseaddr,fork,cert=cert.pem,key=key.pem,verify=0", "EXEC:sha256sum")
    ran = talk(["-", f"OPENSSL:{place.address}:{TLS},verify=0"], large)
    tally.expect("TLS", ran.out.split()[:1] == digest(large), ran)
