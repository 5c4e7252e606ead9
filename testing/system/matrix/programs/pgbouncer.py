"""PgBouncer before PostgreSQL: pgbench and psql through it, and another PgBouncer that takes over its listener."""
import importlib
import pathlib
import re
import time

from frame import Program, until

postgresql = importlib.import_module("programs.postgresql")
program = Program("pgbouncer", ["pgbouncer", "postgresql"])
PORT = "8771"

CONFIG = """
[databases]
postgres = host=ADDRESS port=POSTGRES dbname=postgres
[pgbouncer]
listen_addr = ADDRESS
listen_port = PORT
unix_socket_dir = DIR
auth_type = trust
auth_file = DIR/users
admin_users = me
pool_mode = transaction
max_client_conn = 200
default_pool_size = 5
"""


def configured(place):
    pathlib.Path(place.path("users")).write_text('"me" ""\n')
    config = pathlib.Path(place.path("pgbouncer.ini"))
    names = {"DIR": place.dir, "ADDRESS": place.address, "PORT": PORT, "POSTGRES": postgresql.PORT}
    config.write_text(re.sub(r"\b(DIR|ADDRESS|PORT|POSTGRES)\b", lambda found: str(names[found[0]]), CONFIG))
    return config


@program.check("pgbench of 40 clients over five connections; psql; another takes over (-R)", quick=True, quick_ways=("direct",),
               ways=("direct", "stack", "network"), user=postgresql.NOBODY)
def pool(place, tally):
    postgresql.serve(place)
    words = ["/usr/sbin/pgbouncer", configured(place)]
    first = place.start(words, user=postgresql.NOBODY)
    sql = lambda text, *more, **options: postgresql.sql(place, text, *more, port=PORT, **options)
    first.until(lambda: sql("select 1").ok(), "no answer")
    bench = [postgresql.home() / "pgbench", "-h", place.address, "-p", PORT, "-U", "me"]
    made = place.peer([*bench, "-i", "-s", "1", "-q", "postgres"])
    tally.expect("pgbench -i (COPY)", made.ok(), made)
    load = lambda *more: [*bench, "-n", "-c", "40", "-j", "2", "-T", "1" if place.quick else "4", *more, "postgres"]
    good = lambda ran: ran.ok() and int((re.search(r"actually processed: (\d+)", ran.out) or [0, 0])[1]) > 10 and "aborted" not in ran.err
    loads = ("a connection per transaction", ["-S", "-C"]), ("read and write", [])
    for name, more in loads[:1] if place.quick else loads:
        ran = place.peer(load(*more))
        tally.expect(f"pgbench, {name}", good(ran), ran)
    count = sql("select count(*) from pg_stat_activity where usename = 'me' and backend_type = 'client backend'").out.strip()
    tally.expect("the server sees its pool", count.isdigit() and 1 <= int(count) <= 5, count)
    wide = sql("select repeat('y', 20000000)")
    tally.expect("a row of 20 MB", len(wide.out) > 20_000_000, wide.err)
    large = "".join(f"{n}\n" for n in range(500_000))
    back = sql("create table t (i int)", "-c", "copy t from stdin", "-c", "select count(*), sum(i) from t", stdin=large)
    tally.expect("COPY of 3 MB from the client", back.out.split()[-1:] == ["500000|124999750000"], back)
    stopped = place.peer(["timeout", "-s", "INT", "1", postgresql.home() / "psql", "-h", place.address, "-p", PORT, "-U", "me", "-d", "postgres",
                          "-AtX", "-c", "select pg_sleep(30)"])
    tally.expect("a query that is cancelled", "user request" in stopped.err, stopped)
    # The next asks the first for its sockets over a UNIX socket, and the first ends.
    running = place.start_peer(load("-S"))
    time.sleep(0.2)
    second = place.start([*words, "-R"], user=postgresql.NOBODY)
    until(lambda: not first.alive() or not second.alive(), "the end of the first")
    running.process.wait(60)
    tally.expect("load over the change", "actually processed" in running.output() and "aborted" not in running.output(), running.output())
    answer = sql("select 7")
    tally.expect("the second answers", second.alive() and answer.out.strip() == "7", f"{answer}{second.output()}")
