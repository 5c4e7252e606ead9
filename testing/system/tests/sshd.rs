//! OpenSSH: a server that executes itself anew for each connection, gives up its rights step by step, and uses seccomp.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Scratch, Service, require_program, require_root};

/// A port that the kernel gives to no client: one that tries before the server listens would else reach itself.
const PORT: &str = "7022";

/// The server on `$PORT`, and commands and copies by root and by an ordinary user. (nobody gets a shell in this
/// namespace only.)
const SCRIPT: &str = r#"
set -e
cd "$DIR"
chmod 755 .
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub authorized
chmod 644 authorized
sed 's#^nobody:.*#nobody:x:65534:65534:nobody:/tmp:/bin/sh#' /etc/passwd >passwd
mount --bind passwd /etc/passwd
mkdir -p run
mkdir -p /run/sshd
cat >config <<END
Port $PORT
ListenAddress 127.0.0.1
HostKey $DIR/host
AuthorizedKeysFile $DIR/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
Subsystem sftp internal-sftp
END
/usr/sbin/sshd -D -e -f "$DIR/config" 2>log &
server=$!
trap 'kill $server; cat log >&2' EXIT
options="-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -i key -o LogLevel=ERROR"
until ssh $options -p $PORT root@127.0.0.1 true 2>/dev/null; do sleep 0.1; kill -0 $server; done
head -c 3000000 /dev/urandom >file
for user in root nobody; do
    ssh $options -p $PORT $user@127.0.0.1 'id -un; seq 50000 | md5sum; echo "${SSH_CONNECTION% *}" | cut -d " " -f 1'
    seq 30000 | ssh $options -p $PORT $user@127.0.0.1 md5sum
    scp -q $options -P $PORT $user@127.0.0.1:$DIR/file copy
    cmp file copy
    rm copy
done
scp -q $options -P $PORT file root@127.0.0.1:$DIR/copy
cmp file copy
trap - EXIT
kill $server
wait $server || true
"#;

#[test]
fn sshd_serves_root_and_an_ordinary_user() {
    require_root();
    require_program("sshd", "openssh-server");
    require_program("ssh", "openssh-client");
    let service = Service::start(|program| program.arg("--direct").arg("false").arg("--admit").arg("all"));
    let run = |scratch: Scratch, program: Program| {
        let program = program.arg(SCRIPT).under(&["unshare", "--mount"]);
        program.env("DIR", scratch.path("")).env("PORT", PORT).run(120).ok()
    };
    let kernel = run(Scratch::new("ssh-kernel"), Program::line("sh -c"));
    let ours = run(Scratch::new("ssh"), service.accelerated("sh -c"));
    assert_eq!(ours, kernel, "sshd under Towpath on the left, on the kernel on the right");
    // Three copies of 3 MB, in segments of 64 KiB at most.
    let segments = service.segments();
    assert!(segments > 140, "the stack carried only {segments} segments");
}
