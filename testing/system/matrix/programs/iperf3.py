"""iperf3 forward, in reverse, both ways at once, and with parallel connections."""
import json

from frame import Program

program = Program("iperf3", ["iperf3"])
RUNS = {"forward": [], "reverse": ["-R"], "four in parallel": ["-P", "4"], "four in reverse": ["-P", "4", "-R"], "both ways": ["--bidir"],
        "by sendfile": ["-Z"], "paced at 50 Mbit/s": ["-b", "50M"], "in pieces of 100 bytes": ["-l", "100", "-N"]}
QUICK = ["forward", "reverse", "four in parallel"]


@program.check("forward, reverse, parallel, both ways", quick=True, quick_ways=("direct", "network"), ways=("direct", "stack", "network"))
def runs(place, tally):
    server = place.start(["iperf3", "-s", "-4", "-B", place.address, "--forceflush"])
    chosen = {name: options for name, options in RUNS.items() if not place.quick or name in QUICK}
    for number, (name, options) in enumerate(chosen.items(), 1):
        # It listens anew for each run. A SYN that comes before Towpath has the new listener is the kernel's, whose answers are dropped here.
        server.wait_for(f"(test #{number})")
        seconds = "1" if place.quick else "3"
        ran = place.peer(["iperf3", "-4", "-c", place.address, "-t", seconds, "-J", *options], seconds=60)
        end = json.loads(ran.out or "{}").get("end", {})
        sums = [end.get(key, {}).get("bytes", 0) for key in ("sum_sent", "sum_received")]
        if name == "both ways":
            sums += [end.get(key, {}).get("bytes", 0) for key in ("sum_sent_bidir_reverse", "sum_received_bidir_reverse")]
        tally.expect(name, ran.ok() and min(sums) > 100_000, f"{sums} {ran}")
    tally.expect("the server is still there", server.alive(), server.output())
