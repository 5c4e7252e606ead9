"""Varnish before nginx: what it fetches, what it keeps, and its command line over TCP."""
import importlib
import pathlib
import re

from frame import Program

nginx = importlib.import_module("programs.nginx")
program = Program("varnish", ["varnish", "gcc", "libc6-dev", "nginx-light", "curl", "wrk", "openssl"])
PORT, COMMANDS = 8721, 8722


@program.check("files from nginx and from its memory; curl, wrk and varnishadm", quick=True, quick_ways=("direct",),
               ways=("direct", "stack", "network"))
def cache(place, tally):
    nginx.serve(place)
    home = place.path("varnish")
    secret = pathlib.Path(place.path("secret"))
    secret.write_text("not known to others\n")
    server = place.start(["/usr/sbin/varnishd", "-F", "-j", "none", "-n", home, "-a", f"{place.address}:{PORT}", "-s", "malloc,128m",
                          "-b", f"{place.address}:{nginx.PLAIN}", "-T", f"{place.address}:{COMMANDS}", "-S", secret])
    at = f"http://{place.address}:{PORT}/"
    server.until(lambda: nginx.curl(place, "-f", at + "small").ok(), "no answer")
    for how in "fetched", "kept":
        nginx.fetch(place, tally, how, at)
    nginx.wrk(place, tally, "kept", at + "small")
    # Two numbers: this request, and the one that has fetched it.
    found = lambda: len(re.search(r"X-Varnish: (.*)", nginx.curl(place, "-I", at + "middle").out)[1].split())
    tally.expect("an answer from memory", found() == 2, nginx.curl(place, "-I", at + "middle"))
    adm = lambda *words: place.peer(["varnishadm", "-T", f"{place.address}:{COMMANDS}", "-S", secret, *words])
    ran = adm("ban", "req.url", "~", ".")
    tally.expect("a ban by varnishadm", ran.ok() and found() == 1, ran)
    ran = adm("status")
    tally.expect("its child runs", "running" in ran.out, ran)
    ran = nginx.curl(place, "-r", "1000000-1999999", "-o", place.path("got"), at + "large")
    same = pathlib.Path(place.path("got")).read_bytes() == nginx.content(nginx.FILES["large"])[1_000_000:2_000_000]
    tally.expect("a range", ran.ok() and same, ran)
    passed = [word for _ in range(20) for word in ("-o", place.path("got"), at + "large")]
    ran = nginx.curl(place, "-Z", "--parallel-max", "5", *passed)
    tally.expect("20 in parallel", ran.ok(), ran)
    tally.expect("the server is alive", server.alive(), server.output())
