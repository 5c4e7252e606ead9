"""nats-server: a cluster of two; publishers and subscribers that speak its text protocol."""
import pathlib

from frame import Program, tap

program = Program("nats-server", ["nats-server"], large=True)
CLIENT = pathlib.Path(__file__).parent.parent / "sources/nats_ask.py"
FIRST, SECOND, ROUTE_1, ROUTE_2 = 8801, 8802, 8803, 8804


@program.check("messages, queues and requests in a cluster of two; a stream that is kept", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def cluster(place, tally):
    servers = []
    for port, route, name in (FIRST, ROUTE_1, "one"), (SECOND, ROUTE_2, "two"):
        words = ["-a", place.address, "-p", port, "-n", name, "--cluster_name", "c", "--cluster", f"nats://{place.address}:{route}",
                 "--routes", f"nats://{place.address}:{ROUTE_1}"]
        servers.append(place.start(["/usr/sbin/nats-server", *words]))
        servers[-1].wait_for("Server is ready")
    servers[1].wait_for("Route connection created")
    kept = place.start(["/usr/sbin/nats-server", "-a", place.address, "-p", 8805, "-js", "-sd", place.path("store")])
    kept.wait_for("Server is ready")
    tap.lines(tally, place.peer(["/usr/bin/python3", CLIENT, place.address, FIRST, SECOND, 8805, "1000" if place.quick else "20000"]), 6)
    tally.expect("the servers are alive", all(s.alive() for s in [*servers, kept]), "".join(s.output() for s in servers))
