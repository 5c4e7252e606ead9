"""What is run: a program, its checks, and how a check counts."""
import dataclasses
import shutil
import subprocess

# Every way a check can run. `kernel` is the comparison; the others are Towpath's.
#   direct   both ends under Towpath, joined ring to ring
#   stack    both ends under Towpath, through the stack (`direct = false`), in memory
#   network  one end under Towpath at an interface, the other on the kernel of another namespace
#   kernel-stack  both ends under Towpath, through the kernel stack in another namespace
#   uml      the same in a second kernel, user-mode Linux
WAYS = ("kernel", "direct", "stack", "network", "kernel-stack", "uml")
# The ways of each stack, by its name for `--stack`. Over a kernel stack runs what runs through the fast one.
STACKS = {"fast": ("direct", "stack", "network"), "kernel": ("kernel-stack",), "uml": ("uml",)}


class Tally:
    """What one check has found, by name. A name that comes again gets a number."""

    def __init__(self):
        self.states = {}
        self.reasons = {}

    def count(self, name, state, reason=""):
        """`state`: passed, failed or skipped."""
        unique, n = name, 1
        while unique in self.states:
            n += 1
            unique = f"{name} ({n})"
        self.states[unique] = state
        if reason:
            self.reasons[unique] = reason

    def expect(self, name, holds, reason=""):
        """Counts `name` as passed if `holds`, else as failed for `reason` (only then turned into text)."""
        self.count(name, "passed" if holds else "failed", "" if holds else str(reason))
        return bool(holds)

    def names(self, state):
        return [name for name, s in self.states.items() if s == state]


@dataclasses.dataclass
class Check:
    """One check of a program: `act(place, tally)`, in each of `ways` and on the kernel."""

    name: str
    act: object
    ways: tuple = ("direct", "stack")
    # Part of the short form, by all ways or by these.
    quick: bool = False
    quick_ways: tuple = ()
    seconds: int = 120
    # {name: reason} of what passes on the kernel and is allowed to fail under Towpath.
    known: dict = dataclasses.field(default_factory=dict)
    # The namespace's kernel refuses every TCP connection, so what works was carried by Towpath. False only for a check that
    # needs the kernel's TCP as well, which then has to prove by `segments_min` who carried it.
    refuse_kernel: bool = True
    # By the way `stack` and `network` at least so many segments must have gone through the stack.
    segments_min: int = 10
    # A program of it opens more connections than a second kernel usually gives each.
    many_sockets: bool = False
    # `towpath run --hook`.
    hook: str = "auto"

    def over(self, stacks, quick):
        """The ways in which it runs over these stacks, by their names."""
        ways = self.quick_ways or self.ways if quick else self.ways
        kernels = [w for stack in ("kernel", "uml") if stack in stacks and "stack" in self.ways for w in STACKS[stack]]
        return tuple(ways if "fast" in stacks else ()) + tuple(kernels)


class Program:
    """A program, the Debian packages that it needs (installed by `scripts/setup matrix`), and its checks. Of a `large` one they are too large
    to be installed for the tests of every change, which leave it out. `commands`: {package: command} of those that are not needed where the
    command is found, from wherever it may be."""

    def __init__(self, name, packages, version=None, large=False, commands=None):
        self.name = name
        self.packages = tuple(p for p in packages if p not in (commands or {}) or not shutil.which(commands[p]))
        self.large = large
        self.checks = []
        self._version = version

    def check(self, name, **options):
        """Makes a function `(place, tally)` a check of this program; `options` are the fields of `Check`."""

        def register(act):
            self.checks.append(Check(name, act, **options))
            return act

        return register

    def missing(self):
        """Packages that are not installed."""
        form = "${db:Status-Status}"
        ask = lambda p: subprocess.run(["dpkg-query", "-W", "-f", form, p], capture_output=True, text=True).stdout
        return [p for p in self.packages if ask(p) != "installed"]

    def version(self):
        """What the table calls it: the given version, else the upstream version of the first package."""
        if self._version:
            return self._version() if callable(self._version) else self._version
        full = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", self.packages[0]], capture_output=True, text=True).stdout
        return full.split(":")[-1].split("-")[0].split("+")[0]
