"""A program of the matrix, its checks, and the results of a check."""
import dataclasses
import shutil
import subprocess

# Every way in which a check can run. `kernel` is for comparison, the others are under Towpath.
#   direct   both ends under Towpath, joined ring to ring
#   stack    both ends under Towpath, through the stack (`direct = false`), in memory
#   network  one end under Towpath at an interface, the other on the kernel of another namespace
#   kernel-stack  both ends under Towpath, through the kernel stack in another namespace
#   uml      both ends under Towpath, through the kernel stack in a second kernel, user-mode Linux
WAYS = ("kernel", "direct", "stack", "network", "kernel-stack", "uml")
# The ways of each stack, by its name for `--stack`. All checks that run through the fast stack also run over a kernel stack.
STACKS = {"fast": ("direct", "stack", "network"), "kernel": ("kernel-stack",), "uml": ("uml",)}


class Tally:
    """The results of one check, by name. A repeated name gets a number."""

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
        """Counts `name` as passed if `holds`, else as failed for `reason`, which only then becomes text."""
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
    # Part of the short form, in all ways or in these.
    quick: bool = False
    quick_ways: tuple = ()
    seconds: int = 120
    # {name: reason} of tests that pass on the kernel and may fail under Towpath.
    known: dict = dataclasses.field(default_factory=dict)
    # The namespace's kernel refuses every TCP connection, so Towpath must have carried all that works. False only for a check
    # that also needs the kernel's TCP. It proves by `segments_min` that Towpath carried it.
    refuse_kernel: bool = True
    # In the ways `stack` and `network` at least so many segments must have gone through the stack.
    segments_min: int = 10
    # One of its programs opens more connections than a client usually gets in a second kernel.
    many_sockets: bool = False
    # The uid of its programs under Towpath. A second kernel serves one user.
    user: int | None = None
    # `towpath run --hook`.
    hook: str = "auto"

    def over(self, stacks, quick):
        """The ways in which it runs over these stacks (names of `STACKS`)."""
        ways = self.quick_ways or self.ways if quick else self.ways
        kernels = [w for stack in ("kernel", "uml") if stack in stacks and "stack" in self.ways for w in STACKS[stack]]
        return tuple(ways if "fast" in stacks else ()) + tuple(kernels)


class Program:
    """A program, the Debian packages that it needs (installed by `scripts/setup matrix`), and its checks. The packages of a `large` program
    are not installed for the tests of every change, which leave it out. `commands`: {package: command}; such a package is not needed
    where the command is found."""

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
        """The version in the table: the given one, else the upstream version of the first package."""
        if self._version:
            return self._version() if callable(self._version) else self._version
        full = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", self.packages[0]], capture_output=True, text=True).stdout
        return full.split(":")[-1].split("-")[0].split("+")[0]
