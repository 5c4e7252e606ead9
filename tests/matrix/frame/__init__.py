"""The frame of the matrix: programs and their checks, places to run them, sources of suites, and the report."""
from .place import Place
from .program import WAYS, Check, Program, Tally
from .source import HOME, source

__all__ = ["HOME", "WAYS", "Check", "Place", "Program", "Tally", "source"]
