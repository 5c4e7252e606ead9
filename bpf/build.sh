#!/bin/sh
# Compiles steer.bpf.c to steer.bpf.o, which is in the repository so that building Towpath needs no clang.
#
#   bpf/build.sh          write steer.bpf.o
#   bpf/build.sh --check  compile to a temporary file and fail if the instructions, maps or relocations differ from
#                         steer.bpf.o. Another major version of clang may compile other instructions from the same source:
#                         CLANG=clang-14 chooses the one that made the object.
set -eu
cd "$(dirname "$0")"

fail() { echo "bpf/build.sh: $*" >&2; exit 1; }

CLANG=${CLANG:-clang}
command -v "$CLANG" >/dev/null || fail "$CLANG is missing: apt-get install clang llvm libbpf-dev"
version=$("$CLANG" -dumpversion | cut -d. -f1)
tool() {
    for name in "llvm-$1-$version" "llvm-$1"; do
        if command -v "$name" >/dev/null; then echo "$name"; return; fi
    done
    fail "llvm-$1 is missing: apt-get install llvm"
}
OBJDUMP=$(tool objdump)
STRIP=$(tool strip)
[ -e /usr/include/bpf/bpf_helpers.h ] || fail "bpf/bpf_helpers.h is missing: apt-get install libbpf-dev"

compile() { # to $1
    # -g makes the BTF that describes the maps; its other debug information is stripped. The headers' asm/types.h lies in
    # the multiarch directory on Debian and Ubuntu.
    "$CLANG" -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -target bpf -mcpu=v3 \
        -idirafter "/usr/include/$(uname -m)-linux-gnu" -ffile-prefix-map="$PWD"=bpf -c steer.bpf.c -o "$1"
    "$STRIP" --strip-debug "$1"
}

# Instructions and relocations, the maps' definitions, and the symbols; not the file's name.
listing() {
    "$OBJDUMP" --disassemble --reloc "$1" | tail -n +3
    "$OBJDUMP" --full-contents --section=.maps --section=license "$1" | tail -n +3
    "$OBJDUMP" --syms "$1" | tail -n +3
}

case "${1:-}" in
"")
    compile steer.bpf.o
    ;;
--check)
    [ -e steer.bpf.o ] || fail "steer.bpf.o is missing: run bpf/build.sh"
    temporary=$(mktemp -d)
    trap 'rm -rf "$temporary"' EXIT
    compile "$temporary/steer.bpf.o"
    listing steer.bpf.o >"$temporary/committed"
    listing "$temporary/steer.bpf.o" >"$temporary/compiled"
    diff -u "$temporary/committed" "$temporary/compiled" >&2 ||
        fail "steer.bpf.o is not what $("$CLANG" --version | head -n 1) makes of steer.bpf.c: run bpf/build.sh"
    ;;
*)
    fail "usage: bpf/build.sh [--check]"
    ;;
esac
