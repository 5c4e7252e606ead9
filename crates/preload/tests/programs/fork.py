listener = socket.create_server(("127.0.0.1", 0))
address = listener.getsockname()
children = []
parent = os.getpid()


@atexit.register
def end_children():
    # Ends in any case: a child that stayed would keep the test's pipes open for ever.
    if os.getpid() == parent:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


for _ in range(3):
    pid = os.fork()
    if pid == 0:
        # Like a daemon, closes all descriptors that it does not know: here all but the listener and the standard ones.
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, 4096)
        for fd in range(listener.fileno() + 1, 4096):
            try:
                os.close(fd)
            except OSError:
                pass
        poller = select.epoll()
        listener.setblocking(False)
        poller.register(listener, select.EPOLLIN)
        while True:
            poller.poll()
            try:
                peer, _ = listener.accept()
            except BlockingIOError:
                continue
            data = peer.recv(100)
            if data == b"end":
                os._exit(0)
            peer.sendall(b"%d %s" % (os.getpid(), data))
            peer.close()
    children.append(pid)
listener.close()
seen = set()
for i in range(60):
    s = socket.create_connection(address)
    check(accelerated(s))
    s.sendall(b"hello %d" % i)
    answer = b""
    while data := s.recv(100):
        answer += data
    pid, _, rest = answer.partition(b" ")
    check(rest == b"hello %d" % i, answer)
    seen.add(int(pid))
    s.close()
check(seen <= set(children))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
children.clear()
# The processes with the last descriptors have ended without `close`: the listener is gone.
deadline = time.time() + 5
while True:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        break
    check(time.time() < deadline, "the listener of killed processes still takes connections")
    time.sleep(0.01)
# A connection that parent and child share ends when both have closed it.
a, b = pair()
pid = os.fork()
if pid == 0:
    a.sendall(b"child")
    os._exit(0)
a.close()
os.waitpid(pid, 0)
check(b.recv(100) == b"child" and b.recv(100) == b"")
print("done")
