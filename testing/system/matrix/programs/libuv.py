"""libuv, the event loop under Node: its own tests of TCP, each in a process of its own, as an ordinary user."""
import re

from frame import Program, built

program = Program("libuv1", ["cmake", "make", "gcc", "dpkg-dev"], version="1.44.2", large=True)
NOBODY = 65534

WANTED = re.compile(r"tcp|connect|shutdown|poll|ping_pong|callback_stack|delayed_accept|not_readable|closed_fd|write_queue|watcher_cross_stop|socket_buffer")
# Left out: UDP, pipes, files, and tests for Windows.
LEFT_OUT = re.compile(r"udp|pipe|^fs_|spawn|tty|getaddrinfo|poll_closesocket|ipc")
QUICK = re.compile(r"^(tcp_ping_pong|tcp_ping_pong_vec|tcp_write_to_half_open_connection|tcp_close_reset_\w+|tcp_oob|shutdown_\w+|tcp_bind_\w+)$")


@program.check("its tests of TCP", quick=True, seconds=600, user=NOBODY)
def suite(place, tally):
    tree = built("libuv1", lambda tree: None, ["cmake -S . -B out -DBUILD_TESTING=ON -DCMAKE_BUILD_TYPE=Debug", "make -C out -j2 uv_run_tests"])
    tests = str(tree / "out/uv_run_tests")
    listed = [line.split()[0] for line in place.plain([tests, "--list"], user=NOBODY, cwd=place.dir).out.splitlines() if line.strip()]
    names = sorted({n for n in listed if WANTED.search(n) and not LEFT_OUT.search(n) and (not place.quick or QUICK.search(n))})
    tally.expect("there are tests", len(names) >= 5, listed)
    # One after the other: they share ports.
    for name in names:
        ran = place.run([tests, name], cwd=place.dir, seconds=30)
        skipped = "# SKIP" in ran.out
        tally.count(name, "skipped" if skipped else "passed" if ran.ok() and re.search(r"^ok ", ran.out, re.M) else "failed", str(ran))
