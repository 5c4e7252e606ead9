"""RabbitMQ on Erlang's machine: AMQP by librabbitmq's tools, and rabbitmqctl, which joins the broker as another node."""
import pathlib

from frame import Program

program = Program("rabbitmq", ["rabbitmq-server", "amqp-tools"], large=True)
SCRIPTS = "/usr/lib/rabbitmq/bin"
PORT, NODES = "8841", "8842"


@program.check("queues by AMQP, large messages; rabbitmqctl by Erlang's distribution", quick=True, quick_ways=("stack",), seconds=240,
               ways=("direct", "stack", "network"))
def queues(place, tally):
    for name in "data", "log":
        pathlib.Path(place.path(name)).mkdir()
    pathlib.Path(place.path("plugins")).write_text("[].\n")
    # Guests are let in from everywhere: the client may be on another host.
    pathlib.Path(place.path("rabbitmq.conf")).write_text(f"listeners.tcp.1 = {place.address}:{PORT}\nloopback_users = none\n")
    env = {"HOME": str(place.dir), "RABBITMQ_NODENAME": "matrix@localhost", "RABBITMQ_MNESIA_BASE": place.path("data"),
           "RABBITMQ_LOG_BASE": place.path("log"), "RABBITMQ_ENABLED_PLUGINS_FILE": place.path("plugins"),
           "RABBITMQ_CONFIG_FILE": place.path("rabbitmq.conf"), "RABBITMQ_DIST_PORT": NODES, "RABBITMQ_PID_FILE": place.path("pid"),
           "RABBITMQ_CONF_ENV_FILE": "/dev/null"}
    server = place.start([f"{SCRIPTS}/rabbitmq-server"], env=env)
    server.until(lambda: "completed with" in server.output(), "no start", 90)
    ctl = lambda *words: place.run([f"{SCRIPTS}/rabbitmqctl", "-q", *words], env=env)
    amqp = lambda tool, *words, **more: place.peer([f"amqp-{tool}", "-s", f"{place.address}:{PORT}", *words], **more)
    made = amqp("declare-queue", "-q", "lines", "-d")
    tally.expect("a queue", made.out.strip() == "lines", made)
    # A process for each message.
    count = 200 if place.quick else 1000
    lines = "".join(f"message {n}\n" for n in range(count))
    put = amqp("publish", "-r", "lines", "-l", stdin=lines)
    got = amqp("consume", "-q", "lines", "-c", str(count), "-p", "50", "cat")
    tally.expect("lines in order", put.ok() and got.out == lines, f"{put}{got.out[-200:]}{got.err}")
    body = "".join(f"{n:07}\n" for n in range(1_000_000))
    amqp("declare-queue", "-q", "large")
    put = amqp("publish", "-r", "large", "-p", stdin=body)
    got = amqp("get", "-q", "large")
    tally.expect("a message of 8 MB", put.ok() and got.out == body, f"{put}{len(got.out)}{got.err}")
    consumers = [place.start_peer(["amqp-consume", "-s", f"{place.address}:{PORT}", "-q", "lines", "-p", "1", "-c", "100", "cat"]) for _ in range(4)]
    amqp("publish", "-r", "lines", "-l", stdin="".join(f"{n}\n" for n in range(400)))
    for consumer in consumers:
        consumer.process.wait(60)
    found = sorted(int(line) for c in consumers for line in c.output().split("\n") if line.isdigit())
    tally.expect("400 messages to four consumers", found == list(range(400)), len(found))
    listed = ctl("list_queues", "name", "messages")
    tally.expect("rabbitmqctl list_queues", "lines\t0" in listed.out and "large\t0" in listed.out, listed)
    ended = ctl("stop")
    server.process.wait(60)
    tally.expect("rabbitmqctl stop", ended.ok() and server.process.returncode == 0, f"{ended}{server.output()}")
