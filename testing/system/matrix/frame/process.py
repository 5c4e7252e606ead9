"""Processes of a check, run to their end or in the background. Each has a session of its own, so that all of it can be ended."""
import os
import signal
import subprocess
import time


class Finished:
    """How a process ended: `code` (None: at the time limit), `out`, `err`."""

    def __init__(self, words, code, out, err):
        self.words, self.code, self.out, self.err = words, code, out, err

    def ok(self):
        return self.code == 0

    def __str__(self):
        ended = "ran past its time" if self.code is None else f"exit {self.code}"
        return f"{' '.join(self.words)[-200:]}: {ended}\n{self.out[-1500:]}{self.err[-1500:]}"


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def read(path):
    with open(path, "rb") as f:
        return f.read().decode(errors="replace")


def run(words, seconds, log, cwd, env, stdin, stuck):
    """Runs to the end, for `seconds` at most. A process that has not ended then is killed, after a call of `stuck`. Output goes to
    files, because a daemon left behind would keep a pipe open."""
    out, err = f"{log}.out", f"{log}.err"
    with open(out, "wb") as o, open(err, "wb") as e:
        process = subprocess.Popen(words, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=o, stderr=e, cwd=cwd, env=env,
                                   start_new_session=True)
        try:
            process.communicate(stdin, timeout=max(seconds, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            try:
                stuck()
            finally:
                end_group(process)
            code = None
        except BaseException:
            end_group(process)
            raise
    return Finished(words, code, read(out), read(err))


def until(holds, what, seconds=30):
    """Waits until `holds()`."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {seconds} s")
        time.sleep(0.02)


class Running:
    """A process in the background; its output is in `log`."""

    def __init__(self, words, log, cwd, env):
        self.words, self.log = words, log
        with open(log, "wb") as f:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, cwd=cwd, env=env,
                                            start_new_session=True)

    def output(self):
        return read(self.log)

    def alive(self):
        return self.process.poll() is None

    def wait_for(self, text, seconds=30):
        """Waits until its output contains `text`."""
        self.until(lambda: text in self.output(), f"no {text!r}", seconds)

    def until(self, holds, what, seconds=30):
        """Waits until `holds()`; fails if the process ends before."""
        end = time.monotonic() + seconds
        while not holds():
            if not self.alive() or time.monotonic() > end:
                state = "has ended" if not self.alive() else f"{what} within {seconds} s"
                raise RuntimeError(f"{' '.join(self.words)[-200:]}: {state}\n{self.output()[-2000:]}")
            time.sleep(0.02)

    def stop(self):
        """Ends it by SIGTERM, and after 10 s all of its session by SIGKILL."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        end_group(self.process)
