"""puma, Ruby's server: two processes of four threads; it executes itself anew with its listener, and renews them."""
import importlib
import pathlib
import signal

from frame import Program

nginx = importlib.import_module("programs.nginx")
program = Program("puma", ["puma", "curl", "wrk"], large=True)
PORT = 8751

CONFIG = """
bind 'tcp://ADDRESS:PORT'
directory 'DIR'
workers 2
threads 4, 4
silence_single_worker_warning
app do |env|
  body = env['rack.input'].read
  body = 'x' * 200 if body.empty?
  [200, { 'Content-Type' => 'text/plain', 'Content-Length' => body.bytesize.to_s }, [body]]
end
"""


def renew(server, number):
    """Sends a signal, and waits for two new processes."""
    booted = server.output().count("booted in")
    server.process.send_signal(number)
    server.until(lambda: server.output().count("booted in") == booted + 2, "no new processes")


@program.check("two processes of four threads; curl and wrk, restarted", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def workers(place, tally):
    config = pathlib.Path(place.path("puma.rb"))
    config.write_text(CONFIG.replace("ADDRESS", place.address).replace("PORT", str(PORT)).replace("DIR", str(place.dir)))
    server = place.start(["/usr/bin/puma", "-C", config])
    at = f"http://{place.address}:{PORT}/"
    server.until(lambda: nginx.curl(place, at).ok(), "no answer")
    nginx.echo(place, tally, "PUT", at)
    nginx.wrk(place, tally, "200 bytes", at)
    # Not under load: on Linux too it then ends a few connections without an answer.
    for how, number in ("it has executed itself anew", signal.SIGUSR2), ("it has started its processes anew", signal.SIGUSR1):
        renew(server, number)
        nginx.echo(place, tally, f"after {how}, PUT", at)
        nginx.wrk(place, tally, f"after {how}", at)
    server.process.terminate()
    server.process.wait(30)
    tally.expect("it ends well", "Goodbye" in server.output(), server.output())
