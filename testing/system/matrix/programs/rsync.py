"""rsync: a tree to a daemon and back, with checksums, changes and deletions."""
import hashlib
import os
import pathlib

from frame import Program

program = Program("rsync", ["rsync"])
PORT = "8730"

CONFIG = """
port = PORT
use chroot = no
uid = 0
gid = 0
pid file = DIR/rsyncd.pid
log file = DIR/rsyncd.log
[tree]
path = DIR/there
read only = no
munge symlinks = no
"""


def content(seed, size):
    """Bytes that do not repeat soon."""
    block = b"".join(hashlib.sha256(b"%s %d" % (seed.encode(), n)).digest() for n in range(2048))
    return (block * (size // len(block) + 1))[:size]


def plant(root, files):
    """A tree of small files, an empty one, a link, one with a hole and one of 8 MB."""
    for n in range(files):
        path = root / f"{n % 7}" / f"{n % 11}" / f"file {n}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(str(n), n * 37 % 5000))
    (root / "link").symlink_to("0/0")
    (root / "large").write_bytes(content("large", 8_000_000))
    with open(root / "hole", "wb") as hole:
        hole.seek(3_000_000)
        hole.write(b"end")


def known(root):
    """The content of a tree: names, link targets, hashes."""
    found = {}
    for base, folders, files in os.walk(root):
        for name in folders + files:
            path = pathlib.Path(base) / name
            what = os.readlink(path) if path.is_symlink() else "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = what
    return found


@program.check("a tree to a daemon and back", quick=True, ways=("direct", "stack", "network"))
def both_ways(place, tally):
    here, there, back = (pathlib.Path(place.path(name)) for name in ("here", "there", "back"))
    for root in (here, there, back):
        root.mkdir()
    plant(here, 200 if place.quick else 3000)
    config = pathlib.Path(place.path("rsyncd.conf"))
    config.write_text(CONFIG.replace("PORT", PORT).replace("DIR", str(place.dir)))
    server = place.start(["rsync", "--daemon", "--no-detach", f"--address={place.address}", f"--config={config}"])
    far = f"rsync://{place.address}:{PORT}/tree/"
    server.until(lambda: place.peer(["rsync", far]).ok(), "no answer")
    rsync = lambda *words: place.peer(["rsync", "-a", "--checksum", *words])
    tally.expect("there", (ran := rsync(f"{here}/", far)).ok() and known(there) == known(here), ran)
    tally.expect("and back", (ran := rsync(far, f"{back}/")).ok() and known(back) == known(here), ran)
    # Changes for the delta algorithm: a few bytes in the middle of the large file, one file less, one file more.
    with open(here / "large", "r+b") as large:
        large.seek(4_000_000)
        large.write(b"changed")
    (here / "hole").unlink()
    (here / "more").write_bytes(content("more", 100_000))
    tally.expect("changes there", (ran := rsync("--delete", "--stats", f"{here}/", far)).ok() and known(there) == known(here), ran)
    sent = next((line for line in ran.out.splitlines() if line.startswith("Total bytes sent")), "").split(":")[-1]
    tally.expect("only the differences", 0 < int(sent.replace(",", "") or 0) < 1_000_000, ran.out)
    tally.expect("and back, compressed", (ran := rsync("-z", "--delete", far, f"{back}/")).ok() and known(back) == known(here), ran)
    tally.expect("within a limit", (ran := rsync("--bwlimit=20000", "--whole-file", "--ignore-times", far, f"{back}/")).ok(), ran)
