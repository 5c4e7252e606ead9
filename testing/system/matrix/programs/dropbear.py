"""dropbear: the other SSH server, a process per connection; OpenSSH's client and its own."""
import hashlib
import pathlib

from frame import Program

program = Program("dropbear", ["dropbear-bin", "openssh-client"])
PORT = "2298"
# The server reads keys in the user's home, which this makes another directory.
HOME = """
home=$(getent passwd root | cut -d: -f6)
mount -t tmpfs none "$home" && mkdir -p "$home/.ssh" && cat "$1"/*.pub >"$home/.ssh/authorized_keys" && chmod -R go-rwx "$home"
exec /usr/sbin/dropbear -F -E -r "$1/host" -p "$2" -P "$1/pid"
"""


@program.check("ssh and dbclient: commands and data", quick=True, quick_ways=("direct",), ways=("direct", "stack", "network"))
def sessions(place, tally):
    for words in (["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place.path("key")],
                  ["dropbearkey", "-t", "ed25519", "-f", place.path("host")], ["dropbearkey", "-t", "ed25519", "-f", place.path("own")]):
        made = place.plain(words)
        if not made.ok():
            raise RuntimeError(made)
    # dropbearkey has printed the public part of its last key.
    pathlib.Path(place.path("own.pub")).write_text("".join(f"{line}\n" for line in made.out.splitlines() if line.startswith("ssh-")))
    server = place.start(["unshare", "-m", "sh", "-c", HOME, "sh", place.dir, f"{place.address}:{PORT}"])
    server.wait_for("Not backgrounding")
    options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes", "LogLevel=ERROR", "BatchMode=yes"]
    clients = {
        "ssh": ["ssh", "-F", "none", "-i", place.path("key"), "-p", PORT, *(word for o in options for word in ("-o", o)), f"root@{place.address}"],
        "dbclient": ["dbclient", "-y", "-y", "-i", place.path("own"), "-p", PORT, f"root@{place.address}"],
    }
    text = "\n".join(map(str, range(300_000)))
    for name, words in clients.items():
        ran = place.peer([*words, "seq 300000 | sha256sum; exit 7"])
        tally.expect(f"{name}: a command and its status", ran.code == 7 and len(ran.out.split()[0]) == 64, f"{ran}{server.output()}")
        ran = place.peer([*words, "cat"], stdin=text)
        tally.expect(f"{name}: two megabytes and back", ran.out == text, f"{len(ran.out)} bytes, {ran.err}")
        ran = place.peer([*words, "sha256sum"], stdin=text)
        tally.expect(f"{name}: two megabytes to a program", hashlib.sha256(text.encode()).hexdigest() in ran.out, ran)
    tally.expect("the server is alive", server.alive(), server.output())
