"""dnsmasq: DNS over TCP, a process per connection, and one that asks another; dig."""
from frame import Program

program = Program("dnsmasq", ["dnsmasq-base", "bind9-dnsutils"])
PORT, FORWARDER = "8781", "8782"


@program.check("names and long texts over TCP, from it and through another; dig", quick=True, quick_ways=("stack",),
               ways=("direct", "stack", "network"))
def names(place, tally):
    count = 20 if place.quick else 400
    common = ["/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=", "--no-resolv", "--no-hosts",
              "--bind-interfaces", "--except-interface=none", f"--listen-address={place.address}", "--log-facility=-", "--log-queries"]
    own = [f"--host-record=h{n}.test,10.9.{n // 250}.{n % 250 + 1}" for n in range(count)]
    texts = [f"--txt-record=long.test,{str(n) * 200}" for n in range(1, 10)]
    first = place.start([*common, f"--port={PORT}", "--local=/test/", *own, *texts])
    second = place.start([*common, f"--port={FORWARDER}", f"--server=/test/{place.address}#{PORT}", "--cache-size=0"])
    dig = lambda port, *words: place.peer(["dig", f"@{place.address}", "-p", port, "+tcp", "+short", "+time=10", "+tries=1", *words])
    for server, port in (first, PORT), (second, FORWARDER):
        server.until(lambda: dig(port, "h1.test").out.strip() == "10.9.0.2", "no answer")
    wanted = [f"10.9.{n // 250}.{n % 250 + 1}" for n in range(count)]
    questions = [f"h{n}.test" for n in range(count)]
    for how, port in ("its own", PORT), ("through another", FORWARDER):
        ran = dig(port, *questions)
        tally.expect(f"{how}, a connection per question", ran.out.split() == wanted, ran)
        # dnsmasq ends a connection after 100 questions.
        ran = dig(port, "+keepopen", *questions[:100])
        tally.expect(f"{how}, questions on one connection", ran.out.split() == wanted[:100], ran)
        ran = dig(port, "long.test", "TXT")
        tally.expect(f"{how}, a long answer", all(f'"{str(n) * 200}"' in ran.out for n in range(1, 10)), ran)
        tasks = [place.start_peer(["dig", f"@{place.address}", "-p", port, "+tcp", "+short", "+time=20", *questions]) for _ in range(6)]
        for task in tasks:
            task.process.wait(240)
        tally.expect(f"{how}, six clients at a time", all(t.output().split() == wanted for t in tasks), [t.output()[-200:] for t in tasks])
        ran = place.peer(["dig", f"@{place.address}", "-p", port, "+tcp", "nothing.test"])
        tally.expect(f"{how}, a name that is not there", "NXDOMAIN" in ran.out, ran)
    tally.expect("the servers are alive", first.alive() and second.alive(), first.output() + second.output())
