# A service on devices that stand on others: bonds, a VLAN, ipvlan. Their other ends are in the namespace `peer`.
# Arguments: the kernel's directory, the directory with the programs. The caller compares every line that begins with "guest:".
root=$1 bin=$2
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run HOME=/run
say() { echo "guest: $*"; }
# The service asks for the kernel's sockets; this kernel does not find the module by itself.
modprobe -d "$root" -a veth 8021q ipvlan bridge tcp_diag
# By default a bond has 16 queues, each of which would have memory for frames.
modprobe -d "$root" bonding tx_queues=1
say "release $(uname -r)"
mkdir -p /run/netns /run/t
ip netns add peer; ip link set lo up; ip -n peer link set lo up
pair() { ip link add "$1" type veth peer name "$2" netns peer; ip link set "$1" up; ip -n peer link set "$2" up; }
at() { ip address add "10.9.$2.1/24" dev "$1"; ip link set "$1" up; ip -n peer address add "10.9.$2.2/24" dev "$3"; ip -n peer link set "$3" up; }
bond() { # name, mode, links
    name=$1; shift; mode=$1; shift
    echo "link add $name type bond mode $mode miimon 100" ; for link; do echo "link set $link down"; echo "link set $link master $name"; done; echo "link set $name up"
}
for n in 1 2 3 4 5; do pair a$n b$n; done
# 1: active-backup, beside a bridge. 2: 802.3ad on both sides. 3: a VLAN, whose tag the device takes off. 4: ipvlan beside it.
bond act0 active-backup a1 a2 | ip -batch -
ip -n peer link add sw0 type bridge; for n in 1 2; do ip -n peer link set b$n master sw0; done
at act0 1 sw0
bond lag0 802.3ad a3 a4 | ip -batch -; bond lag0 802.3ad b3 b4 | ip -n peer -batch -
at lag0 2 lag0
ip link add link a5 name vl0 type vlan id 7; ip -n peer link add link b5 name vl0 type vlan id 7
at vl0 3 vl0
ip link add link a5 name iv0 type ipvlan mode l2; at iv0 4 b5
devices="act0 lag0 vl0 iv0"
# One process: an emulated processor may check the programs longer than a worker waits for its broker.
printf 'interface = [%s]\nsandbox = "off"\n' "$(printf '"%s", ' $devices)" > /run/t/c.toml
"$bin/towpathd" --socket /run/t/s.sock --config /run/t/c.toml > /run/t/log 2>&1 &
pid=$!
status() { "$bin/towpath" status --socket /run/t/s.sock --json 2>/dev/null; }
for _ in $(seq 600); do grep -q "daemon: serving" /run/t/log && break; [ -d /proc/$pid ] || break; sleep 0.5; done
[ -d /proc/$pid ] || { say "ended"; sed 's/^/log: /' /run/t/log; }
say "up $(cut -d' ' -f1 /proc/uptime)"
sed 's/^/log: /' /run/t/log | cut -c1-250
cat > /run/t/echo.py <<'P'
import socket, threading
listener = socket.create_server(("", 7000))
print("ready", flush=True)
def serve(peer):
    for line in peer.makefile("rb"): peer.sendall(line)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
P
"$bin/towpath" run --socket /run/t/s.sock -- python3 /run/t/echo.py > /run/t/echo.log 2>&1 &
for _ in $(seq 600); do grep -q ready /run/t/echo.log && break; sleep 0.5; done
say "echo $(cut -d' ' -f1 /proc/uptime) $(head -c 300 /run/t/echo.log | tr '\n' ' ')"
cat > /run/t/ask.py <<'P'
import os, socket, sys, time
def said(peer, text):
    peer.sendall(text + b"\n")
    got = b""
    while len(got) < len(text) + 1: got += peer.recv(1 << 20)
    return got == text + b"\n"
keep = None
for number in sys.argv[1:]:
    try:
        peer = socket.create_connection((f"10.9.{number}.1", 7000), timeout=60)
        print("guest: answer", number, said(peer, b"hello"), said(peer, b"x" * 200_000), flush=True)
        if number == "1": keep = peer
    except OSError as error: print("guest: answer", number, error, flush=True)
if keep:
    open("/run/t/fail", "w").close()
    while not os.path.exists("/run/t/failed"): time.sleep(0.1)
    keep.settimeout(100)
    print("guest: after", said(keep, b"again"), said(keep, b"y" * 200_000), flush=True)
P
active() { cat /sys/class/net/act0/bonding/active_slave; }
(while [ ! -e /run/t/fail ]; do sleep 0.1; done
 before=$(active); ip link set "$before" down
 for _ in $(seq 100); do [ "$(active)" != "$before" ] && break; sleep 0.1; done
 say "active $before then $(active)"; touch /run/t/failed) &
counts() { status | python3 -c 'import json, sys; s = json.load(sys.stdin); print(s["slow"]["opened"], s["listeners"]["accepted_by_kernel"])'; }
for number in 4 3 2 1; do
    ip netns exec peer python3 /run/t/ask.py $number
    say "counts $number $(counts)"
done
status | python3 -c 'import json,sys
s = json.load(sys.stdin)
print("guest: served", *(one["name"] + "=" + one["mode"] for one in s["interfaces"]))
print("trouble:", [one["trouble"] for one in s["interfaces"]])'
say "end $(cut -d' ' -f1 /proc/uptime)"
