"""The frame of the matrix: programs and their checks, places to run them, sources of suites, and the report."""
from . import tap
from .asking import Asking
from .kernels import KernelStack, SecondKernel
from .network import Network
from .place import Place
from .process import until
from .program import STACKS, WAYS, Check, Program, Tally
from .source import HOME, built, npm, source

__all__ = ["HOME", "STACKS", "WAYS", "Asking", "Check", "KernelStack", "Network", "Place", "Program", "SecondKernel", "Tally", "built", "npm", "source", "tap", "until"]
