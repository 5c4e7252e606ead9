"""Counts the results of test programs that print TAP, or one line for each check."""
import re


def count(tally, name, finished):
    """Counts each `ok` and `not ok` line of a program's output, and whether as many came as it had planned."""
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


def lines(tally, finished, planned):
    """Counts lines `ok NAME`, `not ok NAME: REASON` and `skip NAME`, which must be as many as are planned."""
    found = re.findall(r"^(ok|not ok|skip) ([^:\n]*)(?:: )?(.*)$", finished.out, re.M)
    for state, name, reason in found:
        tally.count(name, {"ok": "passed", "not ok": "failed", "skip": "skipped"}[state], reason)
    tally.expect("all checks ran", finished.ok() and len(found) == planned, finished)
