"""What a place looked like when one of its programs ran past its time: who waited where, and the words of every region."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

SECONDS_EACH = 5
# A check's own time goes on.
TRACED_MAX = 10


def record(folder, processes, towpath, socket):
    """Writes it to files in `folder`. Parts that cannot be had are left out, because this runs when something is wrong already."""
    try:
        folder = pathlib.Path(folder)
        folder.mkdir()
        for name, words in ("sockets.json", ["sockets", "-a", "--json"]), ("status.json", ["status", "--json"]):
            said(folder / name, [towpath, *words, "--socket", socket])
        regions = set()
        for pid in processes:
            place = pathlib.Path(f"/proc/{pid}")
            waits = {t.name: {name: text(t / name) for name in ("comm", "wchan", "syscall")} for t in entries(place / "task")}
            (folder / f"{pid}.json").write_text(json.dumps({"command": text(place / "cmdline"), "threads": waits}, indent=1) + "\n")
            for descriptor in entries(place / "fd"):
                save_region(descriptor, folder, regions)
        if shutil.which("gdb"):
            for pid in processes[:TRACED_MAX]:
                stacks(pid, folder / f"{pid}.stacks")
    except OSError as error:
        print(f"    no record of who waited where: {error}", flush=True)


def stacks(pid, path):
    """What each thread of a process is in the middle of. A debugger that is ended early leaves the process stopped."""
    said(path, ["gdb", "-nx", "-iex", "set debuginfod enabled off", "-p", pid, "-batch", "-ex", "thread apply all bt"])
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def save_region(descriptor, folder, known):
    """Copies the memory behind a descriptor, if it is Towpath's and new."""
    try:
        name, inode = os.readlink(descriptor), descriptor.stat().st_ino
    except OSError:
        return
    if name.startswith("/memfd:towpath") and inode not in known:
        known.add(inode)
        said(os.devnull, ["cp", "--sparse=always", descriptor, folder / f"region-{inode}"])


def entries(folder):
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def text(path):
    try:
        return path.read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def said(path, words):
    try:
        with open(path, "wb") as out:
            subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=SECONDS_EACH)
    except (OSError, subprocess.TimeoutExpired):
        pass
