"""A place of two hosts: programs on one are under Towpath at an interface, their peers on the other use its kernel."""
import subprocess

from .place import Place, kill, system

# Like place.REFUSE, but at the interface: drops all TCP that the kernel would send or receive, but first SYNs. Those pass
# through the kernel to the listening socket, whose filter gives them to the stack.
DROP = """
add table inet proof
add chain inet proof in { type filter hook input priority -300; }
add rule inet proof in iifname eth1 tcp flags & (syn | ack | rst | fin) == syn accept
add rule inet proof in iifname eth1 meta l4proto tcp counter drop
add chain inet proof out { type filter hook output priority -300; }
add rule inet proof out oifname eth1 tcp flags & (syn | ack | rst | fin) == syn accept
add rule inet proof out oifname eth1 meta l4proto tcp counter drop
"""


class Network(Place):
    """`eth1` of two namespaces, a veth pair: 10.78.0.1 is ours, 10.78.0.2 the peer's."""

    address = "10.78.0.1"
    peer_address = "10.78.0.2"

    def make_namespace(self):
        super().make_namespace()
        self.other = self.namespace + "-peer"
        system("ip", "netns", "add", self.other)
        system("ip", "link", "add", "eth1", "netns", self.namespace, "type", "veth", "peer", "name", "eth1", "netns", self.other)
        for namespace, address in (self.namespace, self.address), (self.other, self.peer_address):
            for words in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", "eth1"], ["link", "set", "eth1", "up"]):
                system("ip", "-n", namespace, *words)
            # The stack's congestion control. The host's default may be another.
            system("ip", "-n", namespace, "route", "replace", "10.78.0.0/24", "dev", "eth1", "src", address, "congctl", "cubic")

    def serve_options(self):
        return ["--interface", "eth1"]

    def refuse_kernel(self):
        system(*self.inside(["nft", DROP]))

    def peer(self, words, seconds=60, cwd=None, env=None, user=None, stdin=None):
        return self.finish([str(w) for w in words], seconds, cwd, env, user, stdin, self.other)

    def start_peer(self, words, cwd=None, env=None, user=None):
        return self.start_plain(words, cwd, env, user, self.other)

    def end(self):
        for pid in self.processes(self.other):
            kill(pid)
        super().end()
        subprocess.run(["ip", "netns", "del", self.other], capture_output=True)
