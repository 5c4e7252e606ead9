"""What test programs print that speak TAP, counted."""
import re


def count(tally, name, finished):
    """Each `ok` and `not ok` line of one program's output, and whether it did all that it had planned."""
    planned, done = None, 0
    for line in finished.out.splitlines():
        if plan := re.match(r"1\.\.(\d+)", line):
            planned = int(plan[1])
        elif test := re.match(r"(not )?ok\b[ ]*(\d*)[ -]*(.*)", line):
            done += 1
            skipped = re.search(r"# *(skip|todo)", test[3], re.I)
            tally.count(f"{name} {test[2] or done}", "skipped" if skipped else "failed" if test[1] else "passed", test[3] if test[1] else "")
    if planned == 0:
        tally.count(name, "skipped")
    else:
        tally.expect(f"{name}, all that was planned", finished.ok() and planned == done, f"{done} of {planned}, {finished}")
