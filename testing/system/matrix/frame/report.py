"""Reports results: progress, the JSON file, and the table of docs/reference/compatibility.md."""
import json
import re

from .program import WAYS
from .source import ROOT

RESULTS = ROOT / "testing/system/matrix/results.json"
PAGE = ROOT / "docs/reference/compatibility.md"
BEGIN, END = "<!-- matrix: written by `make matrix WRITE=1` -->\n", "<!-- end of matrix -->\n"


def verdict(result, kernel):
    """`result["wrong"]`: tests that fail under Towpath, pass on the kernel, and are not known differences; also tests that did not run."""
    failed = result["failed"]
    passes_there = lambda name: kernel is None or name not in kernel["failed"]
    wrong = {n: reason for n, reason in failed.items() if passes_there(n) and n not in result["known"]}
    if result["error"]:
        wrong["(the check itself)"] = result["error"]
    if kernel and not result["error"]:
        # A suite that broke off early has few failures, but also few passes.
        missing = kernel["names"] - result["names"] - set(result["skipped"]) - set(failed)
        wrong.update({name: "passes on the kernel and did not run" for name in sorted(missing) if name not in result["known"]})
    return wrong


def progress(program, check, result):
    counts = f"{result['passed']} passed, {len(result['failed'])} failed"
    if result["skipped"]:
        counts += f", {len(result['skipped'])} skipped"
    proof = f"  [{result['proof']}]" if result["proof"] else ""
    print(f"{program.name}: {check.name}: {result['way']}: {counts}, {result['seconds']:.0f} s{proof}", flush=True)
    if result["kept"]:
        print(f"    files are kept in {result['kept']}")
    for name, reason in list(result["wrong"].items())[:40]:
        print(f"    FAILED {name}" + "".join(f"\n        {line}" for line in reason.strip().split("\n")[-30:]), flush=True)


def write(results):
    """Writes the results to testing/system/matrix/results.json, which keeps those of programs that were not run, and the table to the page."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    run = {(r["program"], r["check"], r["way"]) for r in results}
    small = [{**r, "failed": sorted(r["failed"]), "skipped": len(r["skipped"]), "seconds": round(r["seconds"])} for r in results]
    for result in small:
        for key in "names", "wrong", "proof", "error", "kept":
            del result[key]
    rows = [r for r in kept if (r["program"], r["check"], r["way"]) not in run] + small
    rows.sort(key=lambda r: r["program"])
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n")
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        raise RuntimeError(f"{PAGE} has no markers for the table")
    PAGE.write_text(re.sub(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", lambda _: table(rows), page, flags=re.S))


def table(rows):
    heads = ["Linux", "joined directly", "through the stack", "over an interface", "kernel stack", "second kernel"]
    lines = ["| program | what runs | " + " | ".join(heads) + " |", "|---" * (2 + len(WAYS)) + "|"]
    for key in dict.fromkeys((r["program"], r["version"], r["check"]) for r in rows):
        by_way = {r["way"]: r for r in rows if (r["program"], r["version"], r["check"]) == key}
        cells = [cell(by_way.get(way)) for way in WAYS]
        lines.append(f"| {key[0]} {key[1]} | {key[2]} | " + " | ".join(cells) + " |")
    lines += [""] + different(rows)
    return "\n".join(lines)


def cell(result):
    if not result:
        return ""
    return f"{result['passed']:,} of {result['passed'] + len(result['failed']):,}"


def different(rows):
    """The list of tests that pass on Linux and fail under Towpath, with the reasons."""
    kernel = {(r["program"], r["check"]): r for r in rows if r["way"] == "kernel"}
    found = {}
    for r in rows:
        there = kernel.get((r["program"], r["check"]))
        for name in r["failed"]:
            if r is not there and there and name not in there["failed"]:
                found.setdefault((r["program"], name, r["known"].get(name, "not understood yet")), []).append(r["way"])
    if not found:
        return ["Nothing passes on Linux and fails under Towpath.", ""]
    lines = ["Passes on Linux and not under Towpath:", ""]
    lines += [f"- {program}, `{name}` ({', '.join(ways)}): {reason}" for (program, name, reason), ways in found.items()]
    return lines + [""]
