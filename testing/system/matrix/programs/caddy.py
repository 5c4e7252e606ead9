"""caddy, a server in Go: files, HTTP/2 over TLS and a proxy, another configuration."""
import importlib
import pathlib
import re

from frame import Program

nginx = importlib.import_module("programs.nginx")
program = Program("caddy", ["caddy", "curl", "wrk", "openssl"], large=True)
PLAIN, TLS, PROXY = 8701, 8702, 8703

CONFIG = """
{
    admin unix/DIR/admin
    storage file_system DIR/storage
    auto_https off
    default_sni localhost
    servers {
        protocols h1 h2
    }
}
http://:PLAIN {
    bind ADDRESS
    root * DIR/www
    file_server
    header Turn TURN
}
https://:TLS {
    bind ADDRESS
    tls DIR/cert.pem DIR/key.pem
    root * DIR/www
    file_server
}
http://:PROXY {
    bind ADDRESS
    reverse_proxy ADDRESS:PLAIN
}
"""


def configured(place, turn):
    config = pathlib.Path(place.path("Caddyfile"))
    names = {"DIR": place.dir, "ADDRESS": place.address, "PLAIN": PLAIN, "TLS": TLS, "PROXY": PROXY, "TURN": turn}
    config.write_text(re.sub("|".join(names), lambda found: str(names[found[0]]), CONFIG))
    return config


@program.check("files, HTTP/2 over TLS, a proxy; curl and wrk, reloaded", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def files(place, tally):
    nginx.www(place)
    nginx.certificate(place)
    server = place.start(["/usr/bin/caddy", "run", "--adapter", "caddyfile", "--config", configured(place, 1)], env={"HOME": str(place.dir)})
    plain, secure, proxy = f"http://{place.address}:{PLAIN}/", f"https://{place.address}:{TLS}/", f"http://{place.address}:{PROXY}/"
    server.until(lambda: nginx.curl(place, proxy + "small").ok(), "no answer")
    for how, at in ("files", plain), ("TLS", secure), ("proxy", proxy):
        nginx.fetch(place, tally, how, at)
        if not place.quick or how == "proxy":
            nginx.wrk(place, tally, how, at + "small")
    many = [word for _ in range(20) for word in ("-o", place.path("got"), secure + "middle")]
    ran = nginx.curl(place, "-Z", "--parallel-max", "10", "--http2", "-w", "%{http_version}\n", *many)
    tally.expect("20 in parallel, HTTP/2", ran.out.split() == ["2"] * 20, ran)
    # On Linux too, a reload resets a few connections that are not accepted yet.
    words = ["/usr/bin/caddy", "reload", "--adapter", "caddyfile", "--config", configured(place, 2), "--address", f"unix/{place.dir}/admin"]
    ran = place.plain(words, env={"HOME": str(place.dir)})
    tally.expect("a new configuration", ran.ok() and "Turn: 2" in nginx.curl(place, "-I", plain + "small").out, ran)
    nginx.fetch(place, tally, "after it", proxy)
    tally.expect("the server is alive", server.alive(), server.output())
