import asyncio, ctypes, resource

# The program's listeners: one in blocking mode, one in epoll by edge, one in select, one in a forked child. At last the
# first is in epoll by level.
TAKEN_OFF = ("LD_PRELOAD", "TOWPATH_SOCKET")
plain = {name: value for name, value in os.environ.items() if name not in TAKEN_OFF}


def plain_client(port):
    """A client without the library. Returns what the server sends."""
    code = f"import socket; s = socket.create_connection(('127.0.0.1', {port}), 20); print(s.recv(9))"
    pid_read, pid_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(pid_write, 1)
        os.execvpe("python3", ["python3", "-c", code], plain)
    os.close(pid_write)
    with os.fdopen(pid_read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text.strip()


def listener():
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, listening.getsockname()[1]


def answer(listening, data):
    peer, _ = listening.accept()
    peer.sendall(data)
    peer.close()


blocking, blocking_port = listener()
by_epoll, epoll_port = listener()
by_poll, poll_port = listener()
shared, shared_port = listener()
by_epoll.setblocking(False)
poller = select.epoll()
poller.register(by_epoll, select.EPOLLIN | select.EPOLLET)
# Before the service dies both halves are served.
thread = threading.Thread(target=answer, args=(blocking, b"before"))
thread.start()
check(plain_client(blocking_port) == "b'before'")
thread.join(20)
child = os.fork()
if child == 0:
    while True:
        answer(shared, b"child")
shared.close()
sleeping = threading.Thread(target=answer, args=(blocking, b"asleep"))
sleeping.start()
time.sleep(0.3)
os.kill(stack_pid, signal.SIGKILL)
time.sleep(0.2)
check(plain_client(blocking_port) == "b'asleep'")
sleeping.join(20)
check(not sleeping.is_alive())
check(plain_client(shared_port) == "b'child'")
check(plain_client(shared_port) == "b'child'")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)


def later(port, expected):
    thread = threading.Thread(target=lambda: check(plain_client(port) == expected))
    thread.start()
    return thread


client = later(epoll_port, "b'epoll'")
# Nobody spins until the client comes.
before = time.process_time()
for _ in range(100):
    events = poller.poll(20)
    if events:
        check(events == [(by_epoll.fileno(), select.EPOLLIN)], events)
        try:
            answer(by_epoll, b"epoll")
            break
        except BlockingIOError:
            pass
client.join(20)
check(time.process_time() - before < 1.5)
client = later(poll_port, "b'poll'")
check(select.select([by_poll], [], [], 20)[0] == [by_poll])
answer(by_poll, b"poll")
client.join(20)
# The listeners are ordinary ones, in the program's mode.
check(os.get_blocking(blocking.fileno()) and not os.get_blocking(by_epoll.fileno()))
by_poll.settimeout(0.05)
try:
    by_poll.accept()
    check(False, "nobody has connected")
except TimeoutError:
    pass
idle = select.epoll()
idle.register(blocking, select.EPOLLIN)
before = time.process_time()
check(idle.poll(0.3) == [])
check(time.process_time() - before < 0.1)
print("done")
