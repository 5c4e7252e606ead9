# Runs one test of a test program in a guest, and so with the guest's kernel. Arguments: the kernel's directory, the program, the test.
# The caller compares every line that begins with "guest:".
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run
modprobe -d "$1" -a veth
echo "guest: release $(uname -r)"
"$2" --exact "$3" --nocapture 2>&1
echo "guest: ended $?"
