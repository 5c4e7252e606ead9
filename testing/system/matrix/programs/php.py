"""php-fpm behind nginx, over TCP: scripts, uploads, and a reload under load, over which it inherits its listener."""
import importlib
import pathlib
import re
import signal
import time

from frame import Asking, Program

nginx = importlib.import_module("programs.nginx")
program = Program("php-fpm", ["php8.2-fpm", "nginx-light", "curl", "wrk"])
FPM, WEB = 8731, 8732

POOL = """
[global]
error_log = DIR/fpm.log
process_control_timeout = 10s
[www]
user = root
group = root
listen = ADDRESS:FPM
pm = static
pm.max_children = 4
php_admin_value[post_max_size] = 0
"""

NGINX = """
daemon off; pid DIR/nginx.pid; error_log DIR/error.log;
events { worker_connections 512; }
http {
    access_log off; client_max_body_size 100m; keepalive_requests 100000;
    client_body_temp_path DIR/b; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
    server {
        listen ADDRESS:WEB;
        location / {
            fastcgi_pass ADDRESS:FPM; include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME DIR/www$document_uri;
        }
    }
}
"""

SCRIPTS = {
    "small.php": "<?php header('Content-Length: 200'); echo str_repeat('x', 200);",
    "echo.php": "<?php echo file_get_contents('php://input');",
    "large.php": "<?php for ($i = 0; $i < 20000; $i++) echo str_pad(strval($i), 1000), '';",
    # A connection of its own to the web server.
    "ask.php": "<?php echo strlen(file_get_contents('http://ADDRESS:WEB/small.php')), ' bytes';",
}


@program.check("scripts behind nginx; curl and wrk, reloaded under load", quick=True, quick_ways=("stack",), ways=("direct", "stack", "network"))
def scripts(place, tally):
    names = {"DIR": place.dir, "ADDRESS": place.address, "FPM": FPM, "WEB": WEB}
    filled = lambda text: re.sub("|".join(names), lambda found: str(names[found[0]]), text)
    pathlib.Path(place.path("www")).mkdir()
    for name, text in {"fpm.conf": POOL, "nginx.conf": NGINX, **{f"www/{name}": text for name, text in SCRIPTS.items()}}.items():
        pathlib.Path(place.path(name)).write_text(filled(text))
    server = place.start(["/usr/sbin/php-fpm8.2", "-F", "-R", "-n", "-y", place.path("fpm.conf")])
    web = place.start(["/usr/sbin/nginx", "-c", place.path("nginx.conf"), "-p", place.dir])
    at = f"http://{place.address}:{WEB}/"
    web.until(lambda: nginx.curl(place, "-f", at + "small.php").ok(), "no answer")
    nginx.echo(place, tally, "a script", at + "echo.php")
    ran = nginx.curl(place, at + "large.php")
    tally.expect("an answer of 20 MB", ran.out == "".join(str(n).ljust(1000) for n in range(20000)), ran.err)
    ran = nginx.curl(place, at + "ask.php")
    tally.expect("a script that asks the web server", ran.out == "200 bytes", ran)
    nginx.wrk(place, tally, "a script", at + "small.php")
    with Asking(place, WEB, 200, "/small.php") as asking:
        time.sleep(0.3)
        server.process.send_signal(signal.SIGUSR2)
        server.until(lambda: pathlib.Path(place.path("fpm.log")).read_text().count("ready to handle connections") == 2, "no new server")
        time.sleep(0.5)
    tally.expect("every request over a reload is answered", asking.clean(50), asking.result())
    tally.expect("the server is alive", server.alive(), server.output())
