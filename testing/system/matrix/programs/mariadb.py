"""MariaDB: a thread per connection and a pool of threads; its client and mysqlslap."""
import pathlib

from frame import Program

program = Program("mariadb", ["mariadb-server", "mariadb-client"], large=True)


def serve(place, port, *more):
    data = place.path(f"data-{port}")
    words = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]
    if not (made := place.plain(words)).ok():
        raise RuntimeError(made)
    words = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", f"--bind-address={place.address}", f"--port={port}",
             f"--socket={data}/s", "--skip-name-resolve", "--max-allowed-packet=64M", "--innodb-flush-log-at-trx-commit=0", *more]
    server = place.start(words)
    server.wait_for("ready for connections", 60)
    made = place.plain(["mariadb", "--no-defaults", f"--socket={data}/s", "-e", "create user m@'%'; grant all on *.* to m@'%'; create database m"])
    if not made.ok():
        raise RuntimeError(made)
    return server


@program.check("queries, a large value, mysqlslap with 16 clients", quick=True, quick_ways=("direct",), ways=("direct", "stack", "network"), seconds=180)
def queries(place, tally):
    for port, how, more in ("8681", "a thread each", []), ("8682", "a pool of threads", ["--thread-handling=pool-of-threads", "--thread-pool-size=2"]):
        server = serve(place, port, *more)
        at = ["--no-defaults", "--protocol=tcp", "-h", place.address, "-P", port, "-u", "m"]
        client = lambda *words, **options: place.peer(["mariadb", *at, "--max-allowed-packet=64M", "-N", *words], **options)
        ran = client("-e", "create table t (n int primary key, v longtext) select seq as n, md5(seq) as v from seq_1_to_20000; select count(*) from t", "m")
        tally.expect(f"{how}: a table", ran.out.strip() == "20000", ran)
        ran = client("-e", "select n, v from t order by n", "m")
        tally.expect(f"{how}: all its rows", ran.ok() and len(ran.out.splitlines()) == 20_000, f"{len(ran.out)} {ran.err}")
        ran = client("m", stdin=f"insert into t values (0, '{'z' * 10_000_000}'); select length(v) from t where n = 0;\n")
        tally.expect(f"{how}: a value of 10 MB", ran.out.strip() == "10000000", ran)
        count = "400" if place.quick else "4000"
        ran = place.peer(["mariadb-slap", *at, "-c", "16", "--auto-generate-sql", "--number-of-queries", count, "--auto-generate-sql-load-type=mixed"])
        tally.expect(f"{how}: 16 clients", ran.ok() and "Average number of seconds" in ran.out, ran)
        server.stop()
