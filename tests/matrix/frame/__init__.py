"""The frame of the matrix: programs and their checks, places to run them, sources of suites, and the report."""
from . import tap
from .asking import Asking
from .network import Network
from .place import Place
from .process import until
from .program import WAYS, Check, Program, Tally
from .source import HOME, built, source

__all__ = ["HOME", "WAYS", "Asking", "Check", "Network", "Place", "Program", "Tally", "built", "source", "tap", "until"]
