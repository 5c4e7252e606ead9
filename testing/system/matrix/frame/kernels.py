"""Places whose service is a kernel stack: in a network namespace of its own, or in a second kernel."""
import subprocess

from .place import Place, kill, system

# Sockets per client, so that the regions of all programs of a check fit into a second kernel's memory. Many sockets need smaller rings.
FEW = "sockets_per_client = 512\n"
MANY = "sockets_per_client = 4096\nsend_buffer = \"16KiB\"\nreceive_buffer = \"16KiB\"\n"


class KernelStack(Place):
    """Programs run in a namespace whose kernel refuses TCP. The stack, and so their sockets, is in another namespace."""

    stack = "kernel"

    def make_namespace(self):
        self.far = self.namespace + "-stack"
        super().make_namespace()
        system("ip", "netns", "add", self.far)
        system("ip", "-n", self.far, "link", "set", "lo", "up")

    def serve_options(self):
        return ["--stack", "kernel"]

    def service_inside(self, words):
        return self.inside(words, namespace=self.far)

    def carried(self):
        stages = [group["stages"] for group in self.status()["flow_groups"]]
        return min(sum(s[name] for s in stages) for name in ("sent_bytes", "received_bytes"))

    def proof(self):
        self.check_alive()
        # This stack counts bytes, the fast stack segments. A segment has at least one byte.
        least, carried = self.check.segments_min, self.carried()
        if carried < least:
            raise RuntimeError(f"the stack carried {carried} bytes, fewer than {least}")
        if self.status()["stack"] != self.stack:
            raise RuntimeError(f"the stack is not {self.stack}")
        words = ["the kernel's TCP is refused"] if self.check.refuse_kernel else []
        return ", ".join(words + [f"{carried} bytes"])

    def end(self):
        super().end()
        for pid in self.processes(self.far):
            kill(pid)
        subprocess.run(["ip", "netns", "del", self.far], capture_output=True)


class SecondKernel(KernelStack):
    """The stack is in user-mode Linux, which boots in the namespace `far`. Its only network device is loopback."""

    stack = "uml"

    def serve_options(self):
        config = self.dir / "uml.toml"
        config.write_text(f'stack = "{self.stack}"\n' + (MANY if self.check.many_sockets else FEW))
        return ["--config", str(config)]

    def admitted(self):
        return "all" if self.check.user is None else f"uid:{self.check.user}"

    def start_service(self):
        super().start_service()
        # Two kernels take long to start on a busy machine.
        self.service.wait_for("serving", 90)
