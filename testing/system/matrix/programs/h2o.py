"""h2o with four threads: files, HTTP/2 over TLS and a proxy; its master hands the listeners on under load."""
import importlib
import os
import pathlib
import re
import signal
import time

from frame import Asking, Program

nginx = importlib.import_module("programs.nginx")
program = Program("h2o", ["h2o", "perl", "curl", "wrk", "openssl"])
PLAIN, TLS, PROXY = 8711, 8712, 8713

CONFIG = """
user: root
num-threads: 4
pid-file: DIR/h2o.pid
error-log: DIR/error.log
listen:
  host: ADDRESS
  port: PLAIN
listen:
  host: ADDRESS
  port: TLS
  ssl:
    certificate-file: DIR/cert.pem
    key-file: DIR/key.pem
hosts:
  "*:PLAIN":
    paths: { "/": { file.dir: DIR/www } }
  "*:TLS":
    paths: { "/": { file.dir: DIR/www } }
  "*:PROXY":
    listen:
      host: ADDRESS
      port: PROXY
    paths: { "/": { proxy.reverse.url: "http://ADDRESS:PLAIN/" } }
"""


@program.check("files, HTTP/2 over TLS, a proxy; curl and wrk, replaced under load", quick=True, quick_ways=("direct",),
               ways=("direct", "stack", "network"))
def files(place, tally):
    nginx.www(place)
    nginx.certificate(place)
    config = pathlib.Path(place.path("h2o.conf"))
    names = {"DIR": place.dir, "ADDRESS": place.address, "PLAIN": PLAIN, "TLS": TLS, "PROXY": PROXY}
    config.write_text(re.sub("|".join(names), lambda found: str(names[found[0]]), CONFIG))
    # The master is a Perl program, which binds the listeners. Its servers inherit them over exec.
    server = place.start(["/usr/bin/h2o", "-m", "master", "-c", config])
    plain, secure, proxy = f"http://{place.address}:{PLAIN}/", f"https://{place.address}:{TLS}/", f"http://{place.address}:{PROXY}/"
    server.until(lambda: nginx.curl(place, proxy + "small").ok(), "no answer")
    for how, at in ("files", plain), ("TLS", secure), ("proxy", proxy):
        nginx.fetch(place, tally, how, at)
        if not place.quick or how == "proxy":
            nginx.wrk(place, tally, how, at + "small")
    many = [word for _ in range(20) for word in ("-o", place.path("got"), secure + "middle")]
    ran = nginx.curl(place, "-Z", "--parallel-max", "10", "--http2", "-w", "%{http_version}\n", *many)
    tally.expect("20 in parallel, HTTP/2", ran.out.split() == ["2"] * 20, ran)
    with Asking(place, PROXY, nginx.FILES["small"], "/small") as asking:
        time.sleep(0.3)
        os.kill(nginx.named(place, "h2o.pid"), signal.SIGHUP)
        server.until(lambda: pathlib.Path(place.path("error.log")).read_text().count("is ready to serve") == 2, "no new server")
        time.sleep(1)
    tally.expect("every request is answered while the next server takes over", asking.clean(50), asking.result())
    tally.expect("the server is alive", server.alive(), server.output())
