"""The frame of the matrix: programs and their checks, places to run them, sources of suites, and the report."""
from . import tap
from .network import Network
from .place import Place
from .program import WAYS, Check, Program, Tally
from .source import HOME, built, source

__all__ = ["HOME", "WAYS", "Check", "Network", "Place", "Program", "Tally", "built", "source", "tap"]
