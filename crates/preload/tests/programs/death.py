a, b = pair()
c, d = pair()
e, f = pair()
poller = select.epoll()
poller.register(e, select.EPOLLIN)
results = {}


def run(name, work):
    def body():
        try:
            results[name] = work()
        except OSError as error:
            results[name] = type(error).__name__

    thread = threading.Thread(target=body)
    thread.start()
    return thread


threads = [
    run("recv", lambda: a.recv(1)),
    run("epoll", lambda: poller.poll()[0][1] & select.EPOLLHUP != 0),
    run("poll", lambda: len(select.select([b, f], [], [])[0]) > 0),
    run("send", lambda: [d.send(b"x" * 100_000) for _ in range(100)]),
]
time.sleep(0.3)
os.kill(stack_pid, signal.SIGKILL)
for thread in threads:
    thread.join(60)
check(results == {"recv": "ConnectionResetError", "epoll": True, "poll": True, "send": "ConnectionResetError"}, results)
try:
    socket.socket()
    check(False, "TOWPATH_REQUIRE")
except OSError as error:
    check(error.errno == 100, error)
print("done")
