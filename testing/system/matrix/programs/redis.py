"""redis: server, benchmark and client, and its own test suite with every server and client of it under Towpath."""
import os
import re
import shutil

from frame import Program, source

program = Program("redis", ["redis-server", "redis-tools", "tcl"])
PORT = "6390"
# The suite's units, without those that only compute (bit operations, dump formats, Lua).
UNITS = """unit/type/list unit/type/set unit/type/hash unit/type/zset unit/type/stream unit/auth unit/keyspace unit/scan unit/info
    unit/expire unit/multi unit/quit unit/pubsub unit/other unit/protocol unit/type/string unit/querybuf unit/limits unit/obuf-limits
    unit/networking unit/maxmemory unit/tracking unit/introspection unit/wait unit/pendingquerybuf unit/tls unit/acl unit/client-eviction
    integration/block-repl integration/replication integration/replication-3 integration/replication-psync
    integration/aof integration/rdb integration/redis-cli integration/redis-benchmark integration/logging""".split()


def serve(place):
    server = place.start(["redis-server", "--bind", place.address, "--port", PORT, "--save", "", "--appendonly", "no"])
    server.wait_for("Ready to accept connections")


def cli(place, *words, **options):
    return place.run(["redis-cli", "-h", place.address, "-p", PORT, *words], **options)


@program.check("redis-benchmark and redis-cli", quick=True)
def benchmark(place, tally):
    serve(place)
    # A second kernel is traced, which makes small requests slow.
    requests = "5000" if place.quick or place.way == "uml" else "50000"
    for name, options in ("50 connections", ["-c", "50"]), ("16 requests in flight each", ["-c", "50", "-P", "16"]):
        ran = place.run(["redis-benchmark", "-h", place.address, "-p", PORT, "-q", "-n", requests, "-t", "get,set,lpush,mset", *options])
        tally.expect(f"redis-benchmark, {name}", ran.ok() and len(re.findall(r"[1-9].* requests per second", ran.out)) == 4, ran)
    value = "x" * 3_000_000
    put = cli(place, "-x", "set", "big", stdin=value)
    got = cli(place, "get", "big")
    tally.expect("redis-cli, a value of 3 MB", put.ok() and got.out.strip() == value, f"{put} {len(got.out)} bytes")
    info = cli(place, "info", "stats")
    tally.expect("redis-cli info", "total_connections_received:" in info.out, info)


@program.check("its own test suite (Tcl)", ways=("stack",), seconds=3600)
def suite(place, tally):
    tree = place.path("redis")
    shutil.copytree(source("redis"), tree, symlinks=True)
    for name in "redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "redis-sentinel":
        os.symlink(f"/usr/bin/{name}", f"{tree}/src/{name}")
    words = ["tclsh", "tests/test_helper.tcl", "--clients", "3", "--timeout", "900", "--tags", "-slow -needs:debug-module"]
    # A Debian patch adds this test, with an option's value that this version of redis lacks.
    words += ["--skiptest", "/Fullsync should not free scripting engine.*"]
    for unit in UNITS:
        words += ["--single", unit]
    ran = place.run(words, seconds=3500, cwd=tree)
    text = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    for state, name in re.findall(r"^\[(ok|err|exception|ignore)\]: (.*?)(?: \(\d+ ms\))?$", text, re.M):
        tally.count(name, {"ok": "passed", "ignore": "skipped"}.get(state, "failed"))
    # The suite does not name units that hang as failed.
    tally.expect("no unit runs past its time", "TIMEOUT" not in text, ran)
    tally.expect("the suite runs to its end", "All tests passed" in text or "The End" in text, ran)
