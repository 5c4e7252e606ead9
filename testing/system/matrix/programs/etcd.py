"""etcd: a cluster of three, clients by gRPC, a member that ends and comes back."""
import pathlib

from frame import Program, until

program = Program("etcd", ["etcd-server", "etcd-client"], large=True)
CLIENTS, PEERS = (8811, 8812, 8813), (8821, 8822, 8823)


def member(place, n):
    peers = ",".join(f"m{i}=http://{place.address}:{port}" for i, port in enumerate(PEERS))
    own, among = f"http://{place.address}:{CLIENTS[n]}", f"http://{place.address}:{PEERS[n]}"
    words = ["--name", f"m{n}", "--data-dir", place.path(f"m{n}"), "--listen-client-urls", own, "--advertise-client-urls", own,
             "--listen-peer-urls", among, "--initial-advertise-peer-urls", among, "--initial-cluster", peers]
    return place.start(["/usr/bin/etcd", *words])


@program.check("three members: keys, watches, leases; one ends and comes back", quick=True, quick_ways=("stack",), seconds=180,
               ways=("direct", "stack", "network"))
def cluster(place, tally):
    members = [member(place, n) for n in range(3)]
    at = lambda *which: ["--endpoints", ",".join(f"http://{place.address}:{CLIENTS[n]}" for n in which or range(3))]
    ctl = lambda *words, on=(), **more: place.peer(["/usr/bin/etcdctl", *at(*on), *words], env={"ETCDCTL_API": "3"}, **more)
    members[0].until(lambda: ctl("endpoint", "health").ok(), "no answer", 60)
    watcher = place.start_peer(["/usr/bin/etcdctl", *at(1), "watch", "--prefix", "k/"], env={"ETCDCTL_API": "3"})
    count = 20 if place.quick else 100
    ctl("put", "k/first", "0", on=(0,))
    until(lambda: "k/first" in watcher.output() or not ctl("put", "k/first", "0", on=(0,)).ok(), "the watch")
    ran = [ctl("put", f"k/{n}", f"value {n}", on=(n % 3,)) for n in range(count)]
    tally.expect("puts at every member", all(r.out.strip() == "OK" for r in ran), ran[-1])
    for n in range(3):
        got = ctl("get", "--prefix", "k/", "--keys-only", on=(n,))
        tally.expect(f"all keys at member {n}", len(got.out.split()) == count + 1, got)
    until(lambda: f"value {count - 1}" in watcher.output(), "the last event")
    seen = [line for line in watcher.output().split("\n") if line.startswith("value ")]
    tally.expect("a watch sees all in order", seen == [f"value {n}" for n in range(count)], seen[-3:])
    body = "x" * 1_000_000
    put, got = ctl("put", "large", stdin=body), ctl("get", "large", "--print-value-only", on=(2,))
    tally.expect("a value of 1 MB", put.ok() and got.out.strip() == body, f"{put}{len(got.out)}")
    swap = 'value("k/1") = "value 1"\n\nput k/1 swapped\n\nput k/1 not\n\n'
    ran = ctl("txn", stdin=swap)
    tally.expect("a transaction", "SUCCESS" in ran.out and ctl("get", "k/1", "--print-value-only").out.strip() == "swapped", ran)
    lease = ctl("lease", "grant", "2").out.split()[1]
    ctl("put", "--lease", lease, "brief", "x")
    until(lambda: not ctl("get", "brief").out, "the end of a lease")
    tally.expect("a lease that ends", True)
    members[0].stop()
    until(lambda: ctl("put", "k/without", "one", on=(1, 2)).ok(), "an answer of two members", 60)
    tally.expect("two members go on", ctl("get", "k/without", "--print-value-only", on=(2,)).out.strip() == "one")
    members[0] = member(place, 0)
    members[0].until(lambda: ctl("endpoint", "health", on=(0,)).ok(), "no answer", 60)
    got = ctl("get", "k/without", "--print-value-only", on=(0,))
    tally.expect("the member comes back and has all", got.out.strip() == "one", got)
    tally.expect("the members are alive", all(m.alive() for m in members), members[0].output())
