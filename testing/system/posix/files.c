// sendfile, splice, copy_file_range, tee and their errors.
#include "conformance.h"
#define THEME "files"

static char buf[300000];

static int file_of(int bytes) {
    int fd = (int)MUST(memfd_create("file", 0));
    for (int i = 0; i < bytes; i++) buf[i] = (char)('a' + i % 26);
    MUST(write(fd, buf, (size_t)bytes));
    MUST(lseek(fd, 0, SEEK_SET));
    memset(buf, 0, sizeof buf);
    return fd;
}

// Sendfile from an offset and from the file's own position, and at the end of the file.
CASE(sendfile) {
    struct pair p = pair();
    int f = file_of(100);
    off_t at = 10;
    CALL("offset", sendfile(p.client, f, &at, 5));
    say("at", "%ld position=%ld", (long)at, (long)lseek(f, 0, SEEK_CUR));
    CALL("position", sendfile(p.client, f, NULL, 7));
    say("now", "%ld", (long)lseek(f, 0, SEEK_CUR));
    CALL("all", sendfile(p.client, f, NULL, 1000));
    CALL("end", sendfile(p.client, f, NULL, 1000));
    CALL("none", sendfile(p.client, f, NULL, 0));
    CALL("read", recv(p.server, buf, 105, MSG_WAITALL));
    say_bytes("bytes", buf, 15);
}

// The errors of sendfile for wrong inputs, and on sockets that cannot send.
CASE(sendfile_errors) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    int f = file_of(10), ends[2];
    MUST(pipe(ends));
    off_t at = -1;
    CALL("negative", sendfile(p.client, f, &at, 5));
    CALL("bad_input", sendfile(p.client, 999, NULL, 5));
    CALL("socket_input", sendfile(p.client, p.server, NULL, 5));
    CALL("socket_to_file", sendfile(f, p.client, NULL, 5));
    CALL("pipe_input_nothing", fcntl(ends[0], F_SETFL, O_NONBLOCK));
    CALL("pipe_input", sendfile(p.client, ends[0], NULL, 5));
    int out = (int)MUST(open("/dev/null", O_WRONLY));
    CALL("write_only", sendfile(p.client, out, NULL, 5));
    MUST(shutdown(p.client, SHUT_WR));
    CALL("shut", sendfile(p.client, f, NULL, 5));
    say("kept", "%ld", (long)lseek(f, 0, SEEK_CUR));
    int fresh = tcp();
    CALL("unconnected", sendfile(fresh, f, NULL, 5));
    int l = listening();
    CALL("listener", sendfile(l, f, NULL, 5));
}

// Sendfile of more than the buffers take at once.
CASE(sendfile_of_much) {
    struct pair p = pair();
    int f = file_of(200000);
    CALL("send", sendfile(p.client, f, NULL, 200000));
    CALL("read", recv(p.server, buf, 200000, MSG_WAITALL));
    int wrong = 0;
    for (int i = 0; i < 200000; i++) wrong += buf[i] != 'a' + i % 26;
    say("wrong", "%d", wrong);
}

// Sendfile on a full non-blocking socket: EAGAIN, and the position stays.
CASE(sendfile_nonblocking) {
    struct pair p = pair();
    int f = file_of(1000);
    nonblocking(p.client, true);
    fill(p.client);
    // The kernel's buffer may have grown a little meanwhile.
    ssize_t sent = 1;
    for (int i = 0; i < 10000 && sent >= 0; i++) MUST(lseek(f, 0, SEEK_SET)), sent = sendfile(p.client, f, NULL, 1000);
    say_result("full", sent);
    say("position", "%ld", (long)lseek(f, 0, SEEK_CUR));
}

// Splice from a socket into a pipe, up to the end of the stream.
CASE(splice_in) {
    struct pair p = pair();
    int ends[2];
    MUST(pipe(ends));
    MUST(write(p.client, "abcdef", 6));
    wait_unread(p.server, 6);
    CALL("splice", splice(p.server, NULL, ends[1], NULL, 4, 0));
    CALL("read", read(ends[0], buf, 10));
    say_bytes("bytes", buf, 4);
    CALL("rest", splice(p.server, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    nonblocking(p.server, true);
    CALL("nothing", splice(p.server, NULL, ends[1], NULL, 100, 0));
    MUST(shutdown(p.client, SHUT_WR));
    wait_events(p.server, POLLRDHUP);
    CALL("end", splice(p.server, NULL, ends[1], NULL, 100, 0));
    CALL("zero", splice(p.server, NULL, ends[1], NULL, 0, 0));
}

// Splice from a pipe into a socket, up to the end of the pipe.
CASE(splice_out) {
    struct pair p = pair();
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "abcdef", 6));
    CALL("splice", splice(ends[0], NULL, p.client, NULL, 4, SPLICE_F_MORE));
    CALL("rest", splice(ends[0], NULL, p.client, NULL, 100, 0));
    CALL("read", recv(p.server, buf, 6, MSG_WAITALL));
    say_bytes("bytes", buf, 6);
    CALL("nothing", splice(ends[0], NULL, p.client, NULL, 100, SPLICE_F_NONBLOCK));
    MUST(close(ends[1]));
    CALL("end", splice(ends[0], NULL, p.client, NULL, 100, 0));
}

// Splice and sendfile to a peer that has closed: what counts as sent.
CASE(to_a_peer_that_has_closed) {
    int f = file_of(60000), ends[2], unread = -1;
    off_t at = 10;
    MUST(pipe(ends));
    MUST(write(ends[1], "abcdef", 6));
    struct pair p[3] = {pair(), pair(), pair()};
    for (int i = 0; i < 3; i++) {
        MUST(close(p[i].server));
        CALL("end", recv(p[i].client, buf, 1, 0));
    }
    CALL("splice", splice(ends[0], NULL, p[0].client, NULL, 100, 0));
    CALL("ioctl", ioctl(ends[0], FIONREAD, &unread));
    say("left", "%d", unread);
    CALL("sendfile", sendfile(p[1].client, f, NULL, 50000));
    say("position", "%ld", (long)lseek(f, 0, SEEK_CUR));
    CALL("sendfile_offset", sendfile(p[2].client, f, &at, 60000));
    say("at", "%ld", (long)at);
}

// The errors of splice, tee and vmsplice with sockets.
CASE(splice_errors) {
    struct pair p = pair();
    int ends[2];
    MUST(pipe(ends));
    loff_t at = 0;
    CALL("no_pipe", splice(p.client, NULL, p.server, NULL, 1, 0));
    CALL("offset_in", splice(p.client, &at, ends[1], NULL, 1, 0));
    MUST(write(ends[1], "x", 1));
    CALL("offset_out", splice(ends[0], NULL, p.client, &at, 1, 0));
    CALL("flags", splice(p.client, NULL, ends[1], NULL, 1, 0x100));
    CALL("wrong_end", splice(p.client, NULL, ends[0], NULL, 1, 0));
    MUST(shutdown(p.client, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    CALL("shut", splice(ends[0], NULL, p.client, NULL, 1, 0));
    CALL("tee", tee(p.client, ends[1], 1, 0));
    int l = listening();
    CALL("listener", splice(l, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK));
    CALL("vmsplice", vmsplice(p.client, &(struct iovec){buf, 1}, 1, 0));
}

// Splice from a socket without data: SO_RCVTIMEO, and O_NONBLOCK.
CASE(splice_waits) {
    struct pair p = pair();
    int ends[2];
    MUST(pipe(ends));
    struct timeval t = {0, 50000};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    CALL("timeout", splice(p.client, NULL, ends[1], NULL, 10, 0));
    nonblocking(p.client, true);
    CALL("nonblocking", splice(p.client, NULL, ends[1], NULL, 10, 0));
}

// Copy_file_range refuses sockets.
CASE(copy_file_range) {
    struct pair p = pair();
    int f = file_of(10);
    CALL("to_socket", copy_file_range(f, NULL, p.client, NULL, 5, 0));
    CALL("from_socket", copy_file_range(p.client, NULL, f, NULL, 5, 0));
}
