"""The place in which a check runs: a network namespace of its own, on the kernel's TCP or with a service of its own."""
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import process, scene

# Refuses every TCP connection of the kernel, as a host without listeners does.
REFUSE = """
add table inet proof
add chain inet proof in { type filter hook input priority -300; }
add rule inet proof in tcp flags & rst == rst accept
add rule inet proof in meta l4proto tcp counter reject with tcp reset
"""

# Must be refused where REFUSE is in force.
PLAIN_CONNECT = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
try: socket.create_connection(listener.getsockname(), 10); print("connected")
except ConnectionRefusedError: print("refused")
"""

COUNT = itertools.count()


class Place:
    """`way` is one of `program.WAYS`. Programs find each other at `address`."""

    address = "127.0.0.1"

    def __init__(self, way, check, quick, bin_dir):
        self.way, self.check, self.quick, self.bin = way, check, quick, pathlib.Path(bin_dir)
        self.towpath = way != "kernel"
        self.deadline = time.monotonic() + check.seconds
        self.namespace = f"matrix-{os.getpid()}-{next(COUNT)}"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="towpath-matrix-"))
        self.dir.chmod(0o1777)
        self.service = None
        # Keeps the files for a person to read.
        self.keep = False
        self._files = itertools.count()
        self.socket = self.dir / "towpath.sock"

    # Set-up and end, by `with Place(...) as place`.

    def __enter__(self):
        try:
            self.make_namespace()
            if self.towpath:
                self.start_service()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind, *_):
        self.keep |= kind is not None
        self.end()

    def make_namespace(self):
        system("ip", "netns", "add", self.namespace)
        system("ip", "-n", self.namespace, "link", "set", "lo", "up")

    def serve_options(self):
        return ["--direct", "true" if self.way == "direct" else "false"]

    def start_service(self):
        words = [str(self.bin / "towpath"), "serve", "--socket", str(self.socket), "--admit", self.admitted()] + self.serve_options()
        self.service = process.Running(self.service_inside(words), str(self.dir / "service.log"), self.dir, None)
        self.service.until(self.socket.exists, "no socket")
        if self.check.refuse_kernel:
            self.refuse_kernel()

    def admitted(self):
        """Who may use the service."""
        return "all"

    def service_inside(self, words):
        """The command line of the service, in its namespace."""
        return self.inside(words)

    def refuse_kernel(self):
        """From here on only Towpath can carry TCP in this namespace. A plain connect checks that."""
        system(*self.inside(["nft", REFUSE]))
        said = subprocess.run(self.inside(["/usr/bin/python3", "-c", PLAIN_CONNECT]), capture_output=True, text=True, check=True).stdout
        if said.strip() != "refused":
            raise RuntimeError("the namespace's kernel carries TCP, so nothing here would prove who did")

    def end(self):
        """Ends every process of the namespace, and deletes it."""
        own = {self.service.process.pid} if self.service else set()
        for pid in set(self.processes()) - own:
            kill(pid)
        if self.service:
            self.service.stop()
        for pid in self.processes():
            kill(pid)
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True)
        if not self.keep:
            shutil.rmtree(self.dir, ignore_errors=True)

    def processes(self, namespace=None):
        done = subprocess.run(["ip", "netns", "pids", namespace or self.namespace], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    # Used by checks.

    def remaining(self):
        """Seconds until the check's time limit."""
        return self.deadline - time.monotonic()

    def path(self, name):
        """A path in the check's own directory, which every user may write."""
        return str(self.dir / name)

    def run(self, words, seconds=60, cwd=None, env=None, user=None, stdin=None):
        """Runs a program to its end, under Towpath unless `way` is `kernel`. `env` adds to the environment; `user` is a uid."""
        return self.finish(self.hooked(words), seconds, cwd, env, user or self.check.user, stdin)

    def plain(self, words, seconds=60, cwd=None, env=None, user=None, stdin=None):
        """Like `run`, but never under Towpath."""
        return self.finish(list(words), seconds, cwd, env, user, stdin)

    def peer(self, words, seconds=60, cwd=None, env=None, user=None, stdin=None):
        """Runs a program as the peer: with `network` on the kernel of the other namespace, else like `run`."""
        return self.run(words, seconds, cwd, env, user, stdin)

    def start(self, words, cwd=None, env=None, user=None):
        """Starts a program in the background, under Towpath unless `way` is `kernel`."""
        log = f"{self.dir}/{next(self._files)}-{os.path.basename(words[0])}.log"
        return process.Running(self.inside(self.hooked(words), user or self.check.user), log, cwd or self.dir, self.environment(env))

    def start_plain(self, words, cwd=None, env=None, user=None, namespace=None):
        """Like `start`, but never under Towpath."""
        log = f"{self.dir}/{next(self._files)}-{os.path.basename(words[0])}.log"
        return process.Running(self.inside(list(words), user, namespace), log, cwd or self.dir, self.environment(env))

    def start_peer(self, words, cwd=None, env=None, user=None):
        """Starts a program in the background as the peer (see `peer`)."""
        return self.start(words, cwd, env, user)

    def wrapper(self, program, name=None):
        """Writes a script that executes `program` like `run`, for suites that start programs themselves. Returns its path."""
        path = self.dir / "bin" / (name or os.path.basename(program))
        path.parent.mkdir(exist_ok=True)
        words = " ".join(f"'{w}'" for w in self.hooked([program]))
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def hooked(self, words):
        words = [str(w) for w in words]
        if not self.towpath:
            return words
        return [str(self.bin / "towpath"), "run", "--require", "--hook", self.check.hook, "--socket", str(self.socket), "--"] + words

    def inside(self, words, user=None, namespace=None):
        """The command line that runs `words` in the namespace."""
        drop = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"] if user else []
        return ["nsenter", f"--net=/run/netns/{namespace or self.namespace}", "--"] + drop + [str(w) for w in words]

    def finish(self, words, seconds, cwd, env, user, stdin, namespace=None):
        log = f"{self.dir}/{next(self._files)}-{os.path.basename(words[0])}"
        def stuck():
            if self.towpath:
                found = self.processes() + (self.processes(namespace) if namespace else [])
                scene.record(f"{log}.stuck", found, self.bin / "towpath", self.socket)

        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        seconds = min(seconds, self.remaining())
        return process.run(self.inside(words, user, namespace), seconds, log, cwd or self.dir, self.environment(env), stdin, stuck)

    def environment(self, env):
        return {**os.environ, "LC_ALL": "C.UTF-8", "TMPDIR": str(self.dir), **(env or {})}

    def status(self):
        """`towpath status --json`."""
        words = [str(self.bin / "towpath"), "status", "--json", "--socket", str(self.socket)]
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout)

    def segments(self):
        """Segments that the fast path has handled so far."""
        return sum(group["stages"]["protocol"] for group in self.status()["flow_groups"])

    def check_alive(self):
        if not self.service.alive():
            raise RuntimeError(f"the service has ended:\n{self.service.output()[-2000:]}")

    def proof(self):
        """The proof that Towpath carried the traffic, as text. Raises an error if there is none."""
        self.check_alive()
        words = ["the kernel's TCP is refused"] if self.check.refuse_kernel else []
        if self.way != "direct":
            segments = self.segments()
            if segments < self.check.segments_min:
                raise RuntimeError(f"the stack carried {segments} segments, fewer than {self.check.segments_min}")
            words.append(f"{segments} segments")
        if not words:
            raise RuntimeError("nothing proves who carried the traffic: refuse_kernel is off and there are no segments to count")
        return ", ".join(words)


def system(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def kill(pid):
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
