# One of two guests of QEMU with an RDMA adapter in software (rxe) each. Usage: machine.sh server|client TOWPATH
# The server runs a kernel stack, and takes orders for it at port 7001. The client's programs have their sockets there.
# The test compares every line that begins with "guest:".
role=$1 towpath=$2
mkdir -m 700 /run/mine
export PATH=/usr/sbin:/usr/bin:/sbin:/bin XDG_RUNTIME_DIR=/run/mine HOME=/run/mine
say() { echo "guest: $*"; }
case $role in server) number=2 ;; client) number=3 ;; esac
# Without this both guests would have the same address.
ip link set eth0 address 52:54:00:18:07:0$number
ip link set lo up; ip addr add 198.18.7.$number/24 dev eth0; ip link set eth0 up
for root in / /usr/lib/towpath/kernel; do [ -d "$root/lib/modules/$(uname -r)" ] && break; done

cd /run
if [ $role = server ]; then
    say "without: $($towpath kernel-stack --listen rdma:198.18.7.2:7000 --trust-network 2>&1 | tail -1)"
fi
modprobe -d "$root" -a crc32_generic rdma_rxe
rdma link add rxe0 type rxe netdev eth0

cat > server.py <<'P'
import os, signal, socket, subprocess, sys
towpath = sys.argv[1]
serve = lambda: subprocess.Popen([towpath, "kernel-stack", "--listen", "rdma:198.18.7.2:7000", "--trust-network"])
stack = serve()
orders = socket.create_server(("0.0.0.0", 7001))
while True:
    peer, _ = orders.accept()
    order = peer.makefile().readline().strip()
    print("order", order, flush=True)
    if order == "kill":
        stack.kill(); stack.wait()
        stack = serve()
    if order == "vanish":
        open("/proc/sysrq-trigger", "w").write("b")
    peer.sendall(b"done\n"); peer.close()
P
if [ $role = server ]; then
    # Only this machine has the address.
    ip addr add 10.96.7.1/24 dev lo
    mkdir www; seq 1 20000 > www/body
    say "body $(sha256sum < www/body)"
    (cd www; /usr/bin/python3 -m http.server 7621 --bind 10.96.7.1 > /dev/null 2>&1 &)
    /usr/bin/python3 -u server.py $towpath
    exit
fi

order() { exec 3<>/dev/tcp/198.18.7.2/7001; echo "$1" >&3; head -1 <&3; exec 3>&-; }
# 64 sockets only: these machines are small, and the rings are locked in memory.
echo 'sockets_per_client = 64' > client.toml
start() {
    # Connects and closes without a word, which must not disturb the server.
    until (exec 3<>/dev/tcp/198.18.7.2/7000) 2> /dev/null; do sleep 1; done
    $towpath kernel-stack --name remote --connect rdma:198.18.7.2:7000 --trust-network --config client.toml > service.log 2>&1 &
    service=$!
    for _ in $(seq 600); do grep -q "the remote stack serves" service.log && return; kill -0 $service 2> /dev/null || break; sleep 0.2; done
    say "no service: $(cat service.log)"
    exit 1
}
run() { $towpath run --stack kernel=remote --require -- "$@"; }
cat > waiter.py <<'P'
import socket, time
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
a.sendall(b"x" * 5000); got = b""
while len(got) < 5000: got += c.recv(5000)
print("waits", flush=True)
try: c.recv(1); print("nothing")
except OSError as error: print("reset", error.errno, flush=True)
P
start
curl -sS --max-time 5 http://10.96.7.1:7621/body > /dev/null 2>&1; say "direct $?"
say "body $(run curl -sS --noproxy '*' --max-time 100 http://10.96.7.1:7621/body | sha256sum)"
say "status $($towpath status --stack kernel=remote --json | tr -d '\n')"
for end in kill vanish; do
    run /usr/bin/python3 -u waiter.py > waiter.log 2>&1 &
    waiter=$!
    for _ in $(seq 300); do grep -q waits waiter.log && break; sleep 0.2; done
    before=$(date +%s%N)
    order $end > /dev/null &
    wait $waiter
    say "$end $(tail -1 waiter.log)"
    say "$end took $((($(date +%s%N) - before) / 1000000))"
    say "$end log $(grep -o 'the remote stack is lost.*' service.log)"
    kill $service; wait $service 2> /dev/null
    [ $end = vanish ] || start
done
