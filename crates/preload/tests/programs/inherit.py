import subprocess

# A program without the library inherits a listener. The parent goes on with it.
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
fd = listening.fileno()
serve = f"""
import os, socket
listening = socket.socket(fileno={fd})
print(os.get_blocking({fd}), flush=True)
for _ in range(2):
    peer, _ = listening.accept()
    peer.sendall(b"child")
    peer.close()
"""
clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
plain_client = f"import socket; s = socket.create_connection(('127.0.0.1', {port}), 20); print(s.recv(9))"


def by_plain():
    done = subprocess.run(["python3", "-c", plain_client], env=clean, capture_output=True, timeout=60)
    return done.stdout.strip()


child = subprocess.Popen(["python3", "-c", serve], pass_fds=[fd], env=clean, stdout=subprocess.PIPE)
check(child.stdout.readline() == b"True\n", "the program's mode")
check([by_plain(), by_plain()] == [b"b'child'"] * 2)
check(child.wait(60) == 0)
# The parent goes on with both halves.
for make in (lambda: socket.create_connection(("127.0.0.1", port), 20).recv(9), by_plain):
    answers = []
    client = threading.Thread(target=lambda: answers.append(make()))
    client.start()
    peer, _ = listening.accept()
    peer.sendall(b"parent")
    peer.close()
    client.join(60)
    check(b"parent" in answers[0], answers)
check(os.system("true") == 0)
print("done")
