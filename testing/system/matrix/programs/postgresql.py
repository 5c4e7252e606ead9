"""PostgreSQL, a process per connection: pgbench, large values by COPY, a query that is cancelled, and a replica that follows."""
import os
import pathlib
import re

from frame import Program

PORT = "5499"
# PostgreSQL refuses to run as root.
NOBODY = 65534


def home():
    return sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]


program = Program("postgresql", ["postgresql"], version=lambda: home().parent.name)


def directory(place, name):
    path = place.path(name)
    os.mkdir(path, 0o700)
    os.chown(path, NOBODY, NOBODY)
    return path


def options(place, port=PORT):
    given = {"listen_addresses": place.address, "port": port, "unix_socket_directories": "", "fsync": "off", "max_connections": "60"}
    return [word for key, value in given.items() for word in ("-c", f"{key}={value}")]


def serve(place):
    data = directory(place, "data")
    made = place.plain([home() / "initdb", "-D", data, "-A", "trust", "-U", "me", "--no-sync"], user=NOBODY)
    if not made.ok():
        raise RuntimeError(made)
    with open(f"{data}/pg_hba.conf", "a") as rules:
        rules.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
    server = place.start([home() / "postgres", "-D", data, *options(place)], user=NOBODY)
    server.until(lambda: sql(place, "select 1").ok(), "no answer")
    return server


def sql(place, text, *words, port=PORT, **more):
    return place.peer([home() / "psql", "-h", place.address, "-p", port, "-U", "me", "-d", "postgres", "-AtX", "-c", text, *words], **more)


@program.check("pgbench, ten clients; COPY, cancelled queries", quick=True, quick_ways=("stack",), ways=("direct", "stack", "network"), user=NOBODY)
def bench(place, tally):
    server = serve(place)
    bench = [home() / "pgbench", "-h", place.address, "-p", PORT, "-U", "me"]
    made = place.peer([*bench, "-i", "-s", "1" if place.quick else "5", "-q", "postgres"])
    tally.expect("pgbench -i (COPY)", made.ok(), made)
    each = 10 if place.quick else 500
    for name, words in ("read and write", []), ("select only, prepared", ["-S", "-M", "prepared"]), ("a connection per transaction", ["-S", "-C"]):
        ran = place.peer([*bench, "-c", "10", "-j", "2", "-t", str(each), *words, "postgres"])
        count = re.search(r"actually processed: (\d+)", ran.out)
        tally.expect(f"pgbench, {name}", ran.ok() and count and int(count[1]) == 10 * each and "aborted" not in ran.err, ran)
    sums = sql(place, "select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts")
    tally.expect("the books balance", sums.out.strip() in ("t", ""), sums)
    large = sql(place, "copy (select i, md5(i::text) from generate_series(1, 200000) i) to stdout")
    tally.expect("COPY of 8 MB to the client", large.out.count("\n") == 200_000 and large.out.endswith("\n"), large.err)
    back = sql(place, "create table t (i int, h text)", "-c", "copy t from stdin", "-c", "select count(*), bool_and(h = md5(i::text)) from t",
               stdin=large.out)
    tally.expect("COPY of 8 MB from the client", back.out.split()[-1:] == ["200000|t"], back)
    wide = sql(place, "select length(repeat('x', 50000000)), repeat('y', 20000000)")
    tally.expect("a row of 20 MB", len(wide.out) > 20_000_000, wide.err)
    limit = sql(place, "set statement_timeout = '300ms'", "-c", "select pg_sleep(30)")
    tally.expect("a statement's time limit", "statement timeout" in limit.err, limit)
    # On SIGINT psql asks for the cancellation on a connection of its own.
    stopped = place.peer(["timeout", "-s", "INT", "2", home() / "psql", "-h", place.address, "-p", PORT, "-U", "me", "-d", "postgres",
                          "-AtX", "-c", "select pg_sleep(30)"])
    tally.expect("a query that is cancelled", "user request" in stopped.err, stopped)
    tally.expect("the server is still there", server.alive(), server.output())


@program.check("a replica: pg_basebackup, then the stream", ways=("direct", "stack"), seconds=180, user=NOBODY)
def replica(place, tally):
    serve(place)
    sql(place, "create table t (i int)", "-c", "insert into t select generate_series(1, 300000)")
    data = directory(place, "copy")
    ran = place.run([home() / "pg_basebackup", "-h", place.address, "-p", PORT, "-U", "me", "-D", data, "-R", "-X", "stream", "--no-sync",
                     "-c", "fast"], user=NOBODY)
    tally.expect("pg_basebackup", ran.ok(), ran)
    follower = place.start([home() / "postgres", "-D", data, *options(place, "5498")], user=NOBODY)
    follower.until(lambda: sql(place, "select 1", port="5498").ok(), "no answer")
    sql(place, "insert into t select generate_series(1, 100000)")
    count = lambda: sql(place, "select count(*) from t", port="5498").out.strip()
    follower.until(lambda: count() == "400000", "the replica does not follow", 60)
    tally.expect("the replica follows", count() == "400000")
    streaming = sql(place, "select state from pg_stat_replication")
    tally.expect("by streaming", streaming.out.strip() == "streaming", streaming)
