"""Apache with threads (mpm_event) and with processes (mpm_prefork), reloaded under load."""
import importlib
import os
import pathlib
import signal
import time

from frame import Asking, Program

nginx = importlib.import_module("programs.nginx")
program = Program("apache2", ["apache2", "curl", "wrk"])
PORT = 8621

CONFIG = """
ServerRoot DIR
ServerName localhost
PidFile DIR/apache.pid
DefaultRuntimeDir DIR
Mutex file:DIR
ErrorLog DIR/error.log
Listen ADDRESS:8621
LoadModule mpm_MPM_module /usr/lib/apache2/modules/mod_mpm_MPM.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User www-data
Group www-data
StartServers 3
MaxKeepAliveRequests 0
EnableSendfile On
DocumentRoot DIR/www
"""


def mpm(place, tally, name):
    www = pathlib.Path(place.path("www"))
    www.mkdir()
    for file, size in nginx.FILES.items():
        (www / file).write_bytes(nginx.content(size))
    config = pathlib.Path(place.path("apache.conf"))
    config.write_text(CONFIG.replace("DIR", str(place.dir)).replace("ADDRESS", place.address).replace("MPM", name))
    server = place.start(["/usr/sbin/apache2", "-D", "FOREGROUND", "-f", config])
    at = lambda file: nginx.url(place, PORT, file)
    server.until(lambda: nginx.curl(place, at("small")).ok(), "no answer")
    got = place.path("got")
    for file, size in nginx.FILES.items():
        ran = nginx.curl(place, "-o", got, at(file))
        tally.expect(f"a file, {file}", ran.ok() and pathlib.Path(got).read_bytes() == nginx.content(size), ran)
    # With threads Apache ends idle connections when all threads are busy, on Linux too.
    nginx.wrk(place, tally, "small", at("small"), kept=False)
    with Asking(place, PORT, nginx.FILES["small"], "/small") as asking:
        for _ in range(1 if place.quick else 3):
            time.sleep(0.5)
            os.kill(int(pathlib.Path(place.path("apache.pid")).read_text()), signal.SIGUSR1)
        time.sleep(1.5)
    tally.expect("a graceful restart: every request is answered", asking.clean(50), asking.result())
    tally.expect("the server is alive", server.alive(), server.output())


@program.check("threads (mpm_event), restarted under load", quick=True, quick_ways=("stack",), ways=("direct", "stack", "network"))
def event(place, tally):
    mpm(place, tally, "event")


@program.check("processes (mpm_prefork), restarted under load", quick=True, quick_ways=("stack",), ways=("direct", "stack", "network"))
def prefork(place, tally):
    mpm(place, tally, "prefork")
