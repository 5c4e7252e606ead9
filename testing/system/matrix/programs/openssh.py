"""OpenSSH: sshd, which executes itself anew for each connection and gives up its rights; ssh, scp, sftp and forwarded ports."""
import hashlib
import os
import pathlib

from frame import Program

program = Program("openssh", ["openssh-server", "openssh-client", "curl"])
PORT = "2299"
BEHIND = pathlib.Path(__file__).parent.parent / "sources/behind_system.py"

CONFIG = """\
Port PORT
ListenAddress ADDRESS
HostKey DIR/host
AuthorizedKeysFile DIR/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
Subsystem sftp internal-sftp
"""


def configured(place):
    """Makes keys and a configuration; returns its path."""
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    for name in "host", "key":
        made = place.plain(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place.path(name)])
        if not made.ok():
            raise RuntimeError(made)
    pathlib.Path(place.path("authorized")).write_text(pathlib.Path(place.path("key.pub")).read_text())
    config = pathlib.Path(place.path("sshd_config"))
    config.write_text(CONFIG.replace("PORT", PORT).replace("ADDRESS", place.address).replace("DIR", str(place.dir)))
    return config


def serve(place):
    server = place.start(["/usr/sbin/sshd", "-D", "-e", "-f", configured(place)])
    server.until(lambda: ssh(place, "true").ok(), "no answer")
    return server


def options(place):
    given = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes", "LogLevel=ERROR", "BatchMode=yes"]
    return ["-F", "none", "-i", place.path("key")] + [word for option in given for word in ("-o", option)]


def ssh(place, *command, **more):
    return place.peer(["ssh", *options(place), "-p", PORT, f"root@{place.address}", *command], **more)


@program.check("ssh, scp, sftp, multiplexed sessions", quick=True, quick_ways=("network",), ways=("direct", "stack", "network"))
def sessions(place, tally):
    server = serve(place)
    block = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(4096))
    file = pathlib.Path(place.path("file"))
    file.write_bytes(block * (20 if place.quick else 200))
    sum_of = lambda path: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    out = ssh(place, "seq 200000 | md5sum")
    tally.expect("a command", out.out == place.plain(["sh", "-c", "seq 200000 | md5sum"]).out, out)
    text = "\n".join(map(str, range(200_000)))
    into = ssh(place, "md5sum", stdin=text)
    tally.expect("what a command reads", hashlib.md5(text.encode()).hexdigest() in into.out, into)
    status = ssh(place, "exit 7")
    tally.expect("its exit status", status.code == 7, status)
    remote = f"root@{place.address}:{file}"
    for name, words in ("scp from there", [remote, place.path("got")]), ("scp to there", [file, f"root@{place.address}:{place.path('put')}"]):
        ran = place.peer(["scp", "-q", *options(place), "-P", PORT, *words])
        target = place.path("got" if "from" in name else "put")
        tally.expect(name, ran.ok() and sum_of(target) == sum_of(file), ran)
    batch = f"get {file} {place.path('sftp')}\n"
    ran = place.peer(["sftp", "-q", *options(place), "-P", PORT, "-b", "-", f"root@{place.address}"], stdin=batch)
    tally.expect("sftp", ran.ok() and sum_of(place.path("sftp")) == sum_of(file), ran)
    control = ["-o", f"ControlPath={place.path('mux')}", "-o", "ControlMaster=auto", "-o", "ControlPersist=20"]
    ran = [place.peer(["ssh", *options(place), *control, "-p", PORT, f"root@{place.address}", f"echo {n}"]) for n in range(5)]
    tally.expect("five sessions on one connection", [r.out.strip() for r in ran] == ["0", "1", "2", "3", "4"], ran[-1])
    tally.expect("the server is still there", server.alive(), server.output())


@program.check("sshd -i behind system(), which starts a shell for each connection", quick=True, quick_ways=("network",),
               ways=("direct", "stack", "network"))
def behind_system(place, tally):
    config = configured(place)
    server = place.start(["/usr/bin/python3", "-u", BEHIND, place.address, PORT, f"/usr/sbin/sshd -i -e -f {config} 2>>{place.dir}/sshd.log"])
    server.until(lambda: ssh(place, "true").ok(), "no answer")
    out = ssh(place, "seq 200000 | md5sum")
    tally.expect("a command", out.out == place.plain(["sh", "-c", "seq 200000 | md5sum"]).out, out)
    text = "\n".join(map(str, range(200_000)))
    into = ssh(place, "md5sum", stdin=text)
    tally.expect("what a command reads", hashlib.md5(text.encode()).hexdigest() in into.out, into)
    status = ssh(place, "exit 7")
    tally.expect("its exit status", status.code == 7, status)
    ran = [place.start_peer(["ssh", *options(place), "-p", PORT, f"root@{place.address}", f"echo {n}"]) for n in range(5)]
    for session in ran:
        session.process.wait(60)
    # The user's start-up files may write to standard error, which is in this output too, when five shells start at once.
    said = [session.output().splitlines()[-1:] for session in ran]
    tally.expect("five at a time", said == [["0"], ["1"], ["2"], ["3"], ["4"]], [session.output() for session in ran])
    tally.expect("the server is still there", server.alive(), server.output())


@program.check("forwarded ports, both ways and by SOCKS", ways=("direct", "stack"))
def forwarding(place, tally):
    serve(place)
    www = pathlib.Path(place.path("www"))
    www.mkdir()
    (www / "body").write_bytes(os.urandom(2_000_000))
    web = place.start(["/usr/bin/python3", "-u", "-m", "http.server", "8099", "--bind", place.address], cwd=www)
    web.wait_for("Serving HTTP")
    words = ["-N", "-L", f"{place.address}:7001:{place.address}:8099", "-R", f"7002:{place.address}:8099", "-D", f"{place.address}:7003"]
    tunnel = place.start(["ssh", *options(place), *words, "-o", "ExitOnForwardFailure=yes", "-p", PORT, f"root@{place.address}"])
    got = place.path("got")
    fetch = lambda *more: place.run(["curl", "-sS", "--max-time", "30", "-o", got, *more])
    tunnel.until(lambda: fetch(f"http://{place.address}:7001/body").ok(), "no answer")
    same = lambda: pathlib.Path(got).read_bytes() == (www / "body").read_bytes()
    for name, more in (("-L", [f"http://{place.address}:7001/body"]), ("-R", ["http://127.0.0.1:7002/body"]),
                       ("-D", ["--socks5", f"{place.address}:7003", f"http://{place.address}:8099/body"])):
        ran = fetch(*more)
        tally.expect(name, ran.ok() and same(), ran)
