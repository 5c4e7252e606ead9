import atexit, os, select, signal, socket, sys, threading, time

stack_pid = int(os.environ["STACK_PID"])


def check(condition, what=""):
    if not condition:
        raise AssertionError(what)


def accelerated(s):
    """The descriptor of an accelerated socket is one end of a pair of AF_UNIX sockets, not a kernel TCP socket."""
    inode = os.readlink(f"/proc/self/fd/{s.fileno()}")[8:-1]
    return all(line.split()[9] != inode for line in open("/proc/net/tcp").readlines()[1:])


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    a = socket.create_connection(listener.getsockname())
    b, address = listener.accept()
    check(address == a.getsockname() and b.getpeername() == address and a.getpeername() == listener.getsockname())
    check(accelerated(a) and accelerated(b))
    listener.close()
    return a, b
