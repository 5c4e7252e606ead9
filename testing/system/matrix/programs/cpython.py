"""CPython's own tests of TCP, with both ends in one process or its children."""
import xml.etree.ElementTree

from frame import Program

program = Program("cpython", ["python3.11", "libpython3.11-testsuite"])
PYTHON = "/usr/bin/python3.11"

QUICK = ["test_epoll", "test_socketserver", "test_httplib", "test_urllib2_localnet", "test_asyncio:test_sock_lowlevel.EPoll"]
WAITING = ["test_select", "test_poll", "test_epoll", "test_selectors"]
PROTOCOLS = ["test_socketserver", "test_ftplib", "test_httplib", "test_httpservers", "test_poplib", "test_imaplib", "test_smtplib",
             "test_urllib2_localnet", "test_xmlrpc", "test_asyncore", "test_asynchat"]
# Left out: other families and protocols, which stay with the kernel, and look-ups of names, which need a network.
NOT_TCP = ["UDP", "Udp", "IPv6", "CAN", "Unix", "SCTP", "VSOCK", "Bluetooth", "TIPC", "Linux*Alg", "RDS", "gethostby", "getaddrinfo"]
# How often a module is run at most, until all its tests pass.
TIMES = 3
# These tests must wake within 10 ms, which a busy machine may fail in three runs. So they are not in the short form, which must pass.
HASTY = ["test_epoll.*.test_control_and_wait", "test_epoll.*.test_unregister_closed"]
OPTIONS = {"test_socketserver": ["-u", "network"], "test_socket": [f"-i*{name}*" for name in NOT_TCP]}


def suite(place, tally, modules, seconds):
    """Runs test modules one after the other, and counts each test. `MODULE:PART` runs the tests with PART in their names."""
    for module in modules:
        # Failed modules run again, as on CPython's own machines: many tests measure time, and some expect data to arrive at once.
        any(run_module(place, tally, module, seconds, last=time == TIMES) for time in range(1, TIMES + 1))


def run_module(place, tally, module, seconds, last):
    """Runs a module. Counts its tests if all pass or this is the last run. Returns whether all passed."""
    module, _, part = module.partition(":")
    results = place.path(f"{module}.xml")
    words = [PYTHON, "-m", "test", "--timeout", str(seconds), "--junit-xml", results] + OPTIONS.get(module, [])
    words += [f"-i*{name}" for name in HASTY if place.quick]
    ran = place.run(words + ([f"-m*{part}*"] if part else []) + [module], seconds=seconds + 20)
    if not (ran.ok() or last):
        print(f"    {module} by {place.way} is run again: {ran}", flush=True)
        return False
    try:
        cases = xml.etree.ElementTree.parse(results).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError):
        cases = []
    for case in cases:
        wrong = [found for kind in ("failure", "error") for found in case.findall(kind)]
        skipped = case.find("skipped") is not None or case.get("status") == "notrun"
        text = "\n".join(found.text or "" for found in wrong)
        tally.count(case.get("name"), "failed" if wrong else "skipped" if skipped else "passed", text)
    tally.expect(module, ran.ok(), ran)
    return ran.ok()


@program.check("waiting and protocols (test_select … test_xmlrpc)", quick=True, seconds=600)
def short(place, tally):
    suite(place, tally, QUICK if place.quick else WAITING + PROTOCOLS, 240)


@program.check("test_socket without what is not TCP", seconds=300)
def sockets(place, tally):
    suite(place, tally, ["test_socket"], 240)


@program.check("test_ssl", seconds=300)
def tls(place, tally):
    suite(place, tally, ["test_ssl"], 240)


@program.check("test_asyncio", seconds=900)
def event_loops(place, tally):
    suite(place, tally, ["test_asyncio"], 800)
