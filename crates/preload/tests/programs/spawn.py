import subprocess

a, b = pair()
for _ in range(5):
    # Uses vfork: the child closes descriptors while it runs on its parent's memory.
    check(subprocess.run(["echo", "x"], close_fds=True, capture_output=True).stdout == b"x\n")
    check(os.system("true") == 0)
    a.sendall(b"still here")
    check(b.recv(100) == b"still here")
a.close()
check(b.recv(1) == b"")
print("done")
