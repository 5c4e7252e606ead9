"""mosquitto: a broker by epoll, subscribers and publishers over MQTT."""
import pathlib

from frame import Program

program = Program("mosquitto", ["mosquitto", "mosquitto-clients"])
PORT = "8661"


@program.check("messages by three qualities, large ones, a last will", quick=True, ways=("direct", "stack", "network"))
def messages(place, tally):
    config = pathlib.Path(place.path("mosquitto.conf"))
    config.write_text(f"listener {PORT} {place.address}\nallow_anonymous true\nuser root\nmax_queued_messages 0\n")
    server = place.start(["/usr/sbin/mosquitto", "-v", "-c", config])
    at = ["-h", place.address, "-p", PORT]
    count = 300 if place.quick else 5000
    lines = "".join(f"message {n}\n" for n in range(count))
    server.wait_for("running")
    for quality in "0", "1", "2":
        subscriber = place.start_peer(["mosquitto_sub", *at, "-q", quality, "-t", f"a/{quality}/+", "-C", str(count), "-i", f"sub{quality}"])
        server.until(lambda: f"Sending SUBACK to sub{quality}" in server.output(), "no subscriber")
        ran = place.peer(["mosquitto_pub", *at, "-q", quality, "-t", f"a/{quality}/b", "-l"], stdin=lines)
        subscriber.process.wait(60)
        tally.expect(f"quality {quality}: all messages in order", ran.ok() and subscriber.output() == lines, f"{ran}{subscriber.output()[-300:]}")
    large = "".join(f"{n:07}\n" for n in range(300_000))
    pathlib.Path(place.path("large")).write_text(large)
    ran = place.peer(["mosquitto_pub", *at, "-r", "-q", "1", "-t", "large", "-f", place.path("large")])
    got = place.peer(["mosquitto_sub", *at, "-t", "large", "-C", "1"])
    tally.expect("a retained message of 2.4 MB", ran.ok() and got.out.rstrip("\n") == large.rstrip("\n"), f"{ran}{len(got.out)} bytes")
    watcher = place.start_peer(["mosquitto_sub", *at, "-t", "will", "-C", "1", "-i", "watcher"])
    server.until(lambda: "Sending SUBACK to watcher" in server.output(), "no watcher")
    victim = place.start_peer(["mosquitto_sub", *at, "-t", "none", "-i", "victim", "--will-topic", "will", "--will-payload", "gone"])
    server.until(lambda: "Sending SUBACK to victim" in server.output(), "no victim")
    victim.process.kill()
    watcher.process.wait(30)
    tally.expect("the last will of a client that is killed", watcher.output() == "gone\n", watcher.output())
