"""Sources of Debian packages, for test suites that the packages leave out, and programs from npm that Debian lacks. They go to target/matrix, never into the source tree."""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
HOME = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "matrix"

SOURCES = """\
deb-src http://deb.debian.org/debian bookworm main
deb-src http://deb.debian.org/debian bookworm-updates main
deb-src http://security.debian.org/debian-security bookworm-security main
"""


def source(name):
    """The unpacked source of Debian's source package `name`, fetched once. The machine's own lists of sources stay unchanged."""
    home = HOME / "source" / name
    done = home / "done"
    if not done.exists():
        apt = HOME / "apt"
        for sub in ("lists/partial", "cache/archives/partial"):
            (apt / sub).mkdir(parents=True, exist_ok=True)
        (apt / "sources.list").write_text(SOURCES)
        options = {"Dir::Etc::sourcelist": apt / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": apt / "lists",
                   "Dir::Cache": apt / "cache", "APT::Sandbox::User": "root"}
        words = ["apt-get", "-q"] + [f"-o{key}={value}" for key, value in options.items()]
        home.mkdir(parents=True, exist_ok=True)
        for step in (["update"], ["source", name]):
            ran = subprocess.run(words + step, cwd=home, capture_output=True, text=True)
            if ran.returncode:
                raise RuntimeError(f"cd {home} && {' '.join(words + step)}:\n{ran.stdout[-500:]}{ran.stderr[-1000:]}")
        done.touch()
    return next(path for path in home.iterdir() if path.is_dir())


def built(name, edit, commands):
    """Debian's source package `name`, edited by `edit(directory)` and built by `commands`, once."""
    tree = HOME / "built" / name
    done = tree / "done"
    if not done.exists():
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(source(name), tree, symlinks=True)
        edit(tree)
        for command in commands:
            ran = subprocess.run(command, shell=True, cwd=tree, capture_output=True, text=True)
            if ran.returncode:
                raise RuntimeError(f"cd {tree} && {command}:\n{ran.stdout[-1000:]}{ran.stderr[-2000:]}")
        done.touch()
    return tree


def npm(name, version, sha512):
    """The unpacked npm package `name`, fetched once. `sha512` is the checksum of its archive, as npm's `integrity` has it."""
    home = HOME / "npm" / f"{name.replace('/', '-')}-{version}"
    done = home / "done"
    if not done.exists():
        home.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", "--silent", f"{name}@{version}"]
        ran = subprocess.run(words, cwd=home, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"cd {home} && {' '.join(words)}:\n{ran.stdout[-500:]}{ran.stderr[-1000:]}")
        archive = next(home.glob("*.tgz"))
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != sha512:
            raise RuntimeError(f"{archive} has the checksum {found}, not {sha512}")
        with tarfile.open(archive) as packed:
            packed.extractall(home)
        archive.unlink()
        done.touch()
    return home / "package"
