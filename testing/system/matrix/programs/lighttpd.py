"""lighttpd with two workers: files by sendfile, a proxy, CGI; curl and wrk."""
import hashlib
import importlib
import pathlib
import re

from frame import Program

nginx = importlib.import_module("programs.nginx")
program = Program("lighttpd", ["lighttpd", "curl", "wrk"])
PLAIN, PROXY = 8611, 8612

CONFIG = """
server.modules = ("mod_proxy", "mod_cgi")
server.document-root = "DIR/www"
server.bind = "ADDRESS"
server.port = PLAIN
server.errorlog = "DIR/error.log"
server.upload-dirs = ("DIR")
server.max-worker = 2
server.max-keep-alive-requests = 100000
cgi.assign = (".cgi" => "/bin/sh")
$SERVER["socket"] == "ADDRESS:PROXY" { proxy.server = ("" => (("host" => "ADDRESS", "port" => PLAIN))) }
"""


@program.check("files by sendfile and a proxy, CGI; curl and wrk", quick=True, quick_ways=("direct",), ways=("direct", "stack", "network"))
def files(place, tally):
    www = pathlib.Path(place.path("www"))
    www.mkdir()
    for name, size in nginx.FILES.items():
        (www / name).write_bytes(nginx.content(size))
    (www / "sum.cgi").write_text("echo Content-Type: text/plain; echo; sha256sum\n")
    config = pathlib.Path(place.path("lighttpd.conf"))
    names = {"DIR": place.dir, "ADDRESS": place.address, "PLAIN": PLAIN, "PROXY": PROXY}
    config.write_text(re.sub("|".join(names), lambda found: str(names[found[0]]), CONFIG))
    server = place.start(["/usr/sbin/lighttpd", "-D", "-f", config])
    server.until(lambda: nginx.curl(place, nginx.url(place, PLAIN, "small")).ok(), "no answer")
    got = place.path("got")
    for port, how in (PLAIN, "sendfile"), (PROXY, "proxy"):
        for name, size in nginx.FILES.items():
            ran = nginx.curl(place, "-o", got, nginx.url(place, port, name))
            tally.expect(f"{how}, {name}", ran.ok() and pathlib.Path(got).read_bytes() == nginx.content(size), ran)
        nginx.wrk(place, tally, how, nginx.url(place, port, "small"))
    ran = nginx.curl(place, "--data-binary", f"@{www}/large", "-H", "Expect:", nginx.url(place, PLAIN, "sum.cgi"))
    tally.expect("a program that reads 20 MB", hashlib.sha256(nginx.content(nginx.FILES["large"])).hexdigest() in ran.out, ran)
