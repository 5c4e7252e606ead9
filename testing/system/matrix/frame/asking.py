"""A client that asks an HTTP server without a break while the server is changed under it."""
import pathlib
import re
import time

ASK = pathlib.Path(__file__).parent.parent / "sources/ask.py"


class Asking:
    """`with Asking(place, port, size, path) as asking:` ... then `asking.result()`: {outcome: count} of all requests, one per connection.
    Without a failure the only key is `asked`."""

    def __init__(self, place, port, size, path, threads=4):
        self.place = place
        self.stop = pathlib.Path(place.path(f"stop-{port}-{time.monotonic_ns()}"))
        words = ["/usr/bin/python3", ASK, place.address, port, self.stop, threads, size, path]
        self.words = [str(w) for w in words]

    def __enter__(self):
        self.client = self.place.start_peer(self.words)
        return self

    def __exit__(self, *_):
        self.stop.touch()

    def result(self):
        """Waits until the client has finished the requests that it has begun."""
        self.client.process.wait(60)
        return {what: int(n) for what, n in re.findall(r"^(.*) (\d+)$", self.client.output(), re.M)}

    def clean(self, least):
        """Did nothing fail, and were at least so many requests answered?"""
        found = self.result()
        return set(found) == {"asked"} and found["asked"] >= least
