"""Prometheus, which scrapes itself and a program in Python; questions by its interface over HTTP."""
import importlib
import json
import pathlib

from frame import Program, until

nginx = importlib.import_module("programs.nginx")
program = Program("prometheus", ["prometheus", "curl", "wrk"], large=True)
PORT, TARGET = 8831, 8832

CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: own
    static_configs: [{ targets: ["ADDRESS:PORT"] }]
  - job_name: other
    metrics_path: /metrics.txt
    static_configs: [{ targets: ["ADDRESS:TARGET"] }]
  - job_name: gone
    static_configs: [{ targets: ["ADDRESS:1"] }]
"""


@program.check("scrapes of itself and another, questions; curl and wrk", quick=True, quick_ways=("stack",), ways=("direct", "stack", "network"))
def scrapes(place, tally):
    text = CONFIG.replace("ADDRESS", place.address).replace("PORT", str(PORT)).replace("TARGET", str(TARGET))
    pathlib.Path(place.path("prometheus.yml")).write_text(text)
    pathlib.Path(place.path("metrics.txt")).write_text("".join(f'thing{{n="{n}"}} {n}\n' for n in range(5000)))
    target = place.start(["/usr/bin/python3", "-u", "-m", "http.server", TARGET, "--bind", place.address])
    target.wait_for("Serving HTTP")
    server = place.start(["/usr/bin/prometheus", f"--config.file={place.dir}/prometheus.yml", f"--storage.tsdb.path={place.dir}/data",
                          f"--web.listen-address={place.address}:{PORT}", "--web.enable-lifecycle"])
    at = f"http://{place.address}:{PORT}/"

    def ask(question):
        """{labels' n or job: value}"""
        ran = nginx.curl(place, "-G", at + "api/v1/query", "--data-urlencode", f"query={question}")
        try:
            found = json.loads(ran.out)["data"]["result"]
        except (ValueError, KeyError):
            return {}
        return {r["metric"].get("n") or r["metric"].get("job", ""): r["value"][1] for r in found}

    server.until(lambda: ask("up") == {"own": "1", "other": "1", "gone": "0"}, "no scrapes")
    tally.expect("two targets are up, and one is not there", True)
    until(lambda: float(ask('sum_over_time(up{job="other"}[1m])').get("other", 0)) >= 3, "three good scrapes")
    tally.expect("three good scrapes", True)
    tally.expect("a sum of 5,000 series", ask("sum(thing)") == {"": "12497500"}, ask("sum(thing)"))
    every = ask("thing")
    tally.expect("5,000 series in one answer", every == {str(n): str(n) for n in range(5000)}, len(every))
    nginx.wrk(place, tally, "questions", at + "api/v1/query?query=up")
    ran = nginx.curl(place, "-X", "POST", "-f", at + "-/reload")
    tally.expect("it reads its configuration anew", ran.ok() and server.alive(), f"{ran}{server.output()}")
    nginx.curl(place, "-X", "POST", at + "-/quit")
    server.process.wait(30)
    tally.expect("it ends well", server.process.returncode == 0, server.output())
