"""stunnel: TLS before a server without it, as server and as client, a thread per connection."""
import importlib
import pathlib

from frame import Program

nginx = importlib.import_module("programs.nginx")
program = Program("stunnel", ["stunnel4", "nginx-light", "curl", "wrk", "openssl"])
SERVER, CLIENT = 8651, 8652

CONFIG = """
foreground = yes
pid = DIR/stunnel.pid
[server]
accept = ADDRESS:8651
connect = ADDRESS:8080
cert = DIR/cert.pem
key = DIR/key.pem
[client]
client = yes
accept = ADDRESS:8652
connect = ADDRESS:8651
verifyChain = no
"""


@program.check("files through TLS and back to plain; curl and wrk", quick=True, quick_ways=("direct",), ways=("direct", "stack", "network"))
def files(place, tally):
    nginx.serve(place)
    config = pathlib.Path(place.path("stunnel.conf"))
    config.write_text(CONFIG.replace("DIR", str(place.dir)).replace("ADDRESS", place.address))
    server = place.start(["/usr/bin/stunnel4", config])
    ports = (("TLS", f"https://{place.address}:{SERVER}/"), ("TLS and back", f"http://{place.address}:{CLIENT}/"))
    server.until(lambda: nginx.curl(place, ports[1][1] + "small").ok(), "no answer")
    got = place.path("got")
    for how, at in ports:
        for name, size in nginx.FILES.items():
            ran = nginx.curl(place, "-o", got, at + name)
            tally.expect(f"{how}, {name}", ran.ok() and pathlib.Path(got).read_bytes() == nginx.content(size), ran)
        nginx.wrk(place, tally, how, at + "small")
    tally.expect("the server is alive", server.alive(), server.output())
