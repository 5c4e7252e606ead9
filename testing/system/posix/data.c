// Reading and writing: every call of the family, every flag.
#include "conformance.h"
#define THEME "data"

static char buf[1 << 17];

// Write and read move bytes.
CASE(write_and_read) {
    struct pair p = pair();
    CALL("write", write(p.client, "hello", 5));
    CALL("read", read(p.server, buf, sizeof buf));
    say_bytes("bytes", buf, 5);
}

// Send and recv move bytes; recv leaves what it has no room for.
CASE(send_and_recv) {
    struct pair p = pair();
    CALL("send", send(p.server, "hello", 5, 0));
    wait_unread(p.client, 5);
    CALL("recv", recv(p.client, buf, 3, 0));
    CALL("rest", recv(p.client, buf + 3, 100, 0));
    say_bytes("bytes", buf, 5);
}

// Reading without data: EAGAIN for non-blocking calls, EINVAL for MSG_OOB.
CASE(recv_nothing_there) {
    struct pair p = pair();
    CALL("dontwait", recv(p.client, buf, 5, MSG_DONTWAIT));
    nonblocking(p.client, true);
    CALL("nonblock", read(p.client, buf, 5));
    CALL("waitall", recv(p.client, buf, 5, MSG_WAITALL));
    CALL("peek", recv(p.client, buf, 5, MSG_PEEK));
    CALL("oob", recv(p.client, buf, 1, MSG_OOB));
    CALL("errqueue", recv(p.client, buf, 5, MSG_ERRQUEUE));
}

// Calls of length 0 or with null buffers, without data and with it.
CASE(zero_length) {
    struct pair p = pair();
    CALL("read0", read(p.client, buf, 0));
    CALL("recv0", recv(p.client, buf, 0, MSG_DONTWAIT));
    CALL("readnull0", read(p.client, NULL, 0));
    CALL("write0", write(p.client, buf, 0));
    CALL("send0", send(p.client, NULL, 0, 0));
    struct msghdr m = {0};
    CALL("sendmsg0", sendmsg(p.client, &m, 0));
    CALL("writev0", writev(p.client, NULL, 0));
    CALL("readv0", readv(p.client, NULL, 0));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("read0data", read(p.client, buf, 0));
    m = (struct msghdr){0};
    CALL("recvmsg0data", recvmsg(p.client, &m, 0));
    say("flags", "%x", m.msg_flags);
    CALL("read1", read(p.client, buf, 1));
}

// Calls of length 0 do not wait; the end of the stream reads as 0, again and again.
CASE(zero_length_blocks_not) {
    struct pair p = pair();
    struct msghdr m = {0};
    CALL("recvmsg0", recvmsg(p.client, &m, MSG_DONTWAIT));
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    CALL("end0", read(p.client, buf, 0));
    CALL("end", read(p.client, buf, 1));
    CALL("end_again", read(p.client, buf, 1));
}

// After SHUT_WR a send of nothing and one of a byte.
CASE(zero_length_send_after_shutdown) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    MUST(shutdown(p.client, SHUT_WR));
    CALL("send0", send(p.client, buf, 0, 0));
    CALL("send1", send(p.client, buf, 1, 0));
}

// MSG_PEEK reads without taking, and starts at what is unread.
CASE(peek) {
    struct pair p = pair();
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    CALL("peek", recv(p.client, buf, 3, MSG_PEEK));
    say_bytes("peeked", buf, 3);
    CALL("again", recv(p.client, buf, 100, MSG_PEEK));
    CALL("read", recv(p.client, buf, 2, 0));
    CALL("peek2", recv(p.client, buf, 100, MSG_PEEK));
    say_bytes("peeked2", buf, 4);
}

// MSG_PEEK with MSG_WAITALL gives what is there, if it must not wait or the stream has ended.
CASE(peek_waitall) {
    struct pair p = pair();
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    CALL("nonblock", recv(p.client, buf, 5, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    MUST(shutdown(p.server, SHUT_WR));
    CALL("ended", recv(p.client, buf, 5, MSG_PEEK | MSG_WAITALL));
}

static void send_rest(void *fd) { MUST(write(*(int *)fd, "def", 3)); }

// MSG_PEEK with MSG_WAITALL waits for the whole length.
CASE(peek_waitall_waits) {
    struct pair p = pair();
    MUST(write(p.server, "abc", 3));
    when_asleep(send_rest, &p.server);
    CALL("peek", recv(p.client, buf, 6, MSG_PEEK | MSG_WAITALL));
    say_bytes("bytes", buf, 6);
}

// MSG_WAITALL waits for the whole length, but not with MSG_DONTWAIT or past the end.
CASE(waitall) {
    struct pair p = pair();
    MUST(write(p.server, "abc", 3));
    when_asleep(send_rest, &p.server);
    CALL("waitall", recv(p.client, buf, 6, MSG_WAITALL));
    say_bytes("bytes", buf, 6);
    MUST(write(p.server, "xy", 2));
    wait_unread(p.client, 2);
    CALL("dontwait", recv(p.client, buf, 6, MSG_WAITALL | MSG_DONTWAIT));
    MUST(write(p.server, "z", 1));
    MUST(shutdown(p.server, SHUT_WR));
    CALL("ended", recv(p.client, buf, 6, MSG_WAITALL));
}

// MSG_WAITALL with SO_RCVTIMEO gives what has come, and EAGAIN if nothing has.
CASE(waitall_timeout) {
    struct pair p = pair();
    struct timeval time = {0, 50000};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    MUST(write(p.server, "abc", 3));
    CALL("partial", recv(p.client, buf, 6, MSG_WAITALL));
    CALL("nothing", recv(p.client, buf, 6, MSG_WAITALL));
}

// MSG_TRUNC discards bytes instead of copying them, so the buffer may be null.
CASE(trunc) {
    struct pair p = pair();
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    memset(buf, '-', 10);
    CALL("trunc", recv(p.client, buf, 4, MSG_TRUNC));
    say_bytes("untouched", buf, 4);
    CALL("null", recv(p.client, NULL, 1, MSG_TRUNC));
    CALL("rest", recv(p.client, buf, 10, 0));
    say_bytes("bytes", buf, 1);
}

// MSG_TRUNC with MSG_PEEK, and in recvmsg.
CASE(trunc_peek) {
    struct pair p = pair();
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    memset(buf, '-', 10);
    CALL("peek", recv(p.client, buf, 4, MSG_TRUNC | MSG_PEEK));
    say_bytes("seen", buf, 4);
    struct iovec v = {buf, 2};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    CALL("recvmsg", recvmsg(p.client, &m, MSG_TRUNC));
    say("flags", "%x", m.msg_flags);
}

// Unknown flags, and flags without a meaning for TCP, are ignored.
CASE(unknown_flags) {
    struct pair p = pair();
    CALL("send", send(p.client, "x", 1, 0x800000));
    wait_unread(p.server, 1);
    CALL("recv", recv(p.server, buf, 1, 0x800000 | MSG_DONTWAIT));
    CALL("send_confirm", send(p.client, "x", 1, MSG_CONFIRM | MSG_DONTROUTE | MSG_EOR));
    CALL("recv_cloexec", recv(p.server, buf, 1, MSG_CMSG_CLOEXEC));
}

// MSG_MORE holds a partial segment back until a send without it.
CASE(more) {
    struct pair p = pair();
    CALL("more", send(p.client, "abc", 3, MSG_MORE));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
    CALL("last", send(p.client, "def", 3, 0));
    wait_unread(p.server, 6);
    CALL("recv", recv(p.server, buf, 10, 0));
    say_bytes("bytes", buf, 6);
}

// Setting TCP_NODELAY sends the bytes that MSG_MORE has held back.
CASE(more_then_nodelay) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
    MUST(set_int(p.client, IPPROTO_TCP, TCP_NODELAY, 1));
    CALL("flushed", wait_unread(p.server, 3));
}

// The end of the stream sends the bytes that MSG_MORE has held back.
CASE(more_then_end) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    MUST(shutdown(p.client, SHUT_WR));
    CALL("recv", recv(p.server, buf, 10, MSG_WAITALL));
}

// Bytes that MSG_MORE holds back are sent after 200 ms at the latest.
CASE(more_is_let_go_in_time) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    CALL("recv", recv(p.server, buf, 10, 0));
}

// TCP_CORK holds partial segments back until it is cleared.
CASE(cork) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    MUST(send(p.client, "abc", 3, 0));
    MUST(send(p.client, "def", 3, 0));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 0));
    wait_unread(p.server, 6);
    CALL("recv", recv(p.server, buf, 10, 0));
}

// MSG_ERRQUEUE on a TCP socket, with and without IP_RECVERR, and after a reset.
CASE(errqueue) {
    struct pair p = pair();
    struct msghdr m = {0};
    CALL("empty", recvmsg(p.client, &m, MSG_ERRQUEUE));
    CALL("recverr", set_int(p.client, IPPROTO_IP, IP_RECVERR, 1));
    CALL("get", get_int(p.client, IPPROTO_IP, IP_RECVERR));
    CALL("still", recvmsg(p.client, &m, MSG_ERRQUEUE));
    int fd = reset_by_peer();
    CALL("reset", recvmsg(fd, &m, MSG_ERRQUEUE));
    CALL("then", recv(fd, buf, 1, 0));
}

// Connected streams ignore the address of sendto unless it is too long. Recvfrom gives none.
CASE(names_of_stream_calls) {
    struct pair p = pair();
    struct sockaddr_in to = loopback(1), from;
    socklen_t len = sizeof from;
    CALL("sendto", sendto(p.client, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
    memset(&from, 7, sizeof from);
    CALL("recvfrom", recvfrom(p.server, buf, 10, 0, (struct sockaddr *)&from, &len));
    say("len", "%d family=%d", (int)len, from.sin_family);
    CALL("sendto_short", sendto(p.client, "abc", 3, 0, (struct sockaddr *)&to, 2));
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &v, .msg_iovlen = 1};
    CALL("recvmsg", recvmsg(p.server, &m, 0));
    say("namelen", "%d controllen=%d", (int)m.msg_namelen, (int)m.msg_controllen);
    CALL("sendto_huge", sendto(p.client, "abc", 3, 0, (struct sockaddr *)&to, 1000));
    CALL("sendto_null", sendto(p.client, "abc", 3, 0, NULL, 16));
}

// Recvmsg on TCP gives no control data and sets the message's flags.
CASE(recvmsg_control_stays_empty) {
    struct pair p = pair();
    char control[100];
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control, .msg_flags = 77};
    MUST(write(p.client, "abc", 3));
    CALL("recvmsg", recvmsg(p.server, &m, 0));
    say("controllen", "%d flags=%x", (int)m.msg_controllen, m.msg_flags);
    m.msg_flags = 77, m.msg_controllen = sizeof control;
    CALL("nothing", recvmsg(p.server, &m, MSG_DONTWAIT));
    say("controllen2", "%d flags2=%x", (int)m.msg_controllen, m.msg_flags);
}

// Readv and writev move bytes by several vectors, some of them empty.
CASE(readv_and_writev) {
    struct pair p = pair();
    struct iovec out[] = {{"abc", 3}, {NULL, 0}, {"defg", 4}};
    CALL("writev", writev(p.client, out, 3));
    wait_unread(p.server, 7);
    char a[2], b[10];
    struct iovec in[] = {{a, 2}, {NULL, 0}, {b, 10}};
    CALL("readv", readv(p.server, in, 3));
    say_bytes("a", a, 2);
    say_bytes("b", b, 5);
}

// At most 1024 vectors (UIO_MAXIOV); lengths that overflow are errors.
CASE(vector_limits) {
    struct pair p = pair();
    static struct iovec v[2000];
    for (int i = 0; i < 2000; i++) v[i] = (struct iovec){buf + i, 1};
    CALL("writev1024", writev(p.client, v, 1024));
    wait_unread(p.server, 1024);
    CALL("writev1025", writev(p.client, v, 1025));
    volatile int negative = -1;
    CALL("writev_negative", writev(p.client, v, negative));
    CALL("readv1024", readv(p.server, v, 1024));
    CALL("readv1025", readv(p.server, v, 1025));
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 1025};
    CALL("sendmsg1025", sendmsg(p.client, &m, 0));
    CALL("recvmsg1025", recvmsg(p.server, &m, MSG_DONTWAIT));
    struct iovec huge[] = {{buf, 1}, {buf, (size_t)-1}};
    CALL("huge", writev(p.client, huge, 2));
    CALL("huge_read", readv(p.server, huge, 2));
}

// A socket has no position: ESPIPE.
CASE(preadv_and_seek) {
    struct pair p = pair();
    struct iovec v = {buf, 1};
    CALL("pread", pread(p.client, buf, 1, 0));
    CALL("pwrite", pwrite(p.client, buf, 1, 0));
    CALL("preadv", preadv(p.client, &v, 1, 0));
    CALL("pwritev", pwritev(p.client, &v, 1, 0));
    CALL("lseek", lseek(p.client, 0, SEEK_SET));
}

// Preadv2 and pwritev2 work at position -1, and RWF_NOWAIT does not wait.
CASE(preadv2) {
    struct pair p = pair();
    struct iovec v = {"abc", 3}, in = {buf, 10};
    CALL("pwritev2", pwritev2(p.client, &v, 1, -1, 0));
    wait_unread(p.server, 3);
    CALL("preadv2", preadv2(p.server, &in, 1, -1, 0));
    CALL("nowait", preadv2(p.server, &in, 1, -1, RWF_NOWAIT));
    CALL("at0", preadv2(p.server, &in, 1, 0, 0));
}

// Recvmmsg fills several messages; MSG_WAITFORONE, a wrong time, no messages.
CASE(recvmmsg) {
    struct pair p = pair();
    MUST(write(p.client, "abcdef", 6));
    wait_unread(p.server, 6);
    struct iovec v[3] = {{buf, 2}, {buf + 2, 2}, {buf + 4, 10}};
    struct mmsghdr m[3] = {0};
    for (int i = 0; i < 3; i++) m[i].msg_hdr.msg_iov = &v[i], m[i].msg_hdr.msg_iovlen = 1;
    CALL("recvmmsg", recvmmsg(p.server, m, 3, 0, NULL));
    say("lens", "%u,%u,%u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    CALL("dontwait", recvmmsg(p.server, m, 3, MSG_DONTWAIT, NULL));
    MUST(write(p.client, "xy", 2));
    CALL("forone", recvmmsg(p.server, m, 3, MSG_WAITFORONE, NULL));
    struct timespec time = {-1, 0};
    CALL("badtime", recvmmsg(p.server, m, 3, MSG_DONTWAIT, &time));
    CALL("none", recvmmsg(p.server, m, 0, 0, NULL));
}

// Recvmmsg with less data than messages, and at the end of the stream.
CASE(recvmmsg_partial_then_error) {
    struct pair p = pair();
    MUST(write(p.client, "ab", 2));
    wait_unread(p.server, 2);
    struct iovec v[3] = {{buf, 2}, {buf + 2, 2}, {buf + 4, 10}};
    struct mmsghdr m[3] = {0};
    for (int i = 0; i < 3; i++) m[i].msg_hdr.msg_iov = &v[i], m[i].msg_hdr.msg_iovlen = 1;
    CALL("some", recvmmsg(p.server, m, 3, MSG_DONTWAIT, NULL));
    MUST(shutdown(p.client, SHUT_WR));
    wait_events(p.server, POLLRDHUP);
    CALL("ended", recvmmsg(p.server, m, 3, 0, NULL));
    say("lens", "%u,%u,%u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
}

// Sendmmsg sends several messages and reports those before an error.
CASE(sendmmsg) {
    struct pair p = pair();
    struct iovec v[3] = {{"ab", 2}, {"cde", 3}, {"f", 1}};
    struct mmsghdr m[3] = {0};
    for (int i = 0; i < 3; i++) m[i].msg_hdr.msg_iov = &v[i], m[i].msg_hdr.msg_iovlen = 1;
    CALL("sendmmsg", sendmmsg(p.client, m, 3, 0));
    say("lens", "%u,%u,%u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    wait_unread(p.server, 6);
    CALL("recv", recv(p.server, buf, 10, 0));
    say_bytes("bytes", buf, 6);
    CALL("none", sendmmsg(p.client, m, 0, 0));
    m[1].msg_hdr.msg_iovlen = 2000;
    CALL("second_wrong", sendmmsg(p.client, m, 3, 0));
    CALL("first_wrong", sendmmsg(p.client, m + 1, 2, 0));
}

// A non-blocking writer fills the connection, gets EAGAIN, and becomes writable when the reader has drained it.
CASE(partial_write_nonblocking) {
    struct pair p = pair();
    nonblocking(p.client, true);
    int sent = fill(p.client);
    say("filled", "%s", sent > 1000 ? "yes" : "no");
    CALL("full", write(p.client, buf, 1));
    say_events("events", events_of(p.client));
    long got = 0;
    while (got < sent) got += drain(p.server);
    say("drained", "%s", got == sent ? "all" : "not");
    say_events("then", wait_events(p.client, POLLOUT));
}

static void *read_all(void *argument) {
    int fd = *(int *)argument;
    long *got = calloc(1, sizeof *got);
    static char block[65536];
    for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;) *got += n;
    return got;
}

// A blocking write returns when all of a large buffer is written.
CASE(blocking_write_of_much) {
    struct pair p = pair();
    pthread_t reader;
    pthread_create(&reader, NULL, read_all, &p.server);
    enum { MUCH = 20000000 };
    char *much = calloc(1, MUCH);
    CALL("write", write(p.client, much, MUCH));
    MUST(close(p.client));
    long *got;
    pthread_join(reader, (void **)&got);
    say("read", "%ld", *got);
}

// Socket calls on closed descriptors (EBADF) and on files (ENOTSOCK).
CASE(not_a_socket_or_descriptor) {
    CALL("recv", recv(999, buf, 1, 0));
    CALL("send", send(999, buf, 1, 0));
    CALL("read", read(999, buf, 1));
    CALL("negative", read(-1, buf, 1));
    int file = (int)MUST(open("/dev/null", O_RDWR));
    CALL("recv_file", recv(file, buf, 1, 0));
    CALL("send_file", send(file, buf, 1, 0));
    CALL("accept_file", accept(file, NULL, NULL));
    CALL("listen_file", listen(file, 1));
    CALL("shutdown_file", shutdown(file, SHUT_RD));
}

// Reads and writes on a socket that has not connected.
CASE(unconnected) {
    int fd = tcp();
    signal(SIGPIPE, SIG_IGN);
    CALL("read", read(fd, buf, 1));
    CALL("recv", recv(fd, buf, 1, 0));
    CALL("write", write(fd, buf, 1));
    CALL("send", send(fd, buf, 1, MSG_NOSIGNAL));
    CALL("oob", recv(fd, buf, 1, MSG_OOB));
    int unread = 7;
    CALL("fionread", ioctl(fd, FIONREAD, &unread));
    say("unread", "%d", unread);
    CALL("outq", ioctl(fd, SIOCOUTQ, &unread));
    say_events("events", events_of(fd));
}

// Reads and writes on a listener.
CASE(listener_is_no_stream) {
    int fd = listening();
    signal(SIGPIPE, SIG_IGN);
    int value = 7;
    CALL("read", read(fd, buf, 1));
    CALL("recv", recv(fd, buf, 1, MSG_DONTWAIT));
    CALL("write", write(fd, buf, 1));
    CALL("send0", send(fd, buf, 0, 0));
    CALL("oob", recv(fd, buf, 1, MSG_OOB));
    CALL("fionread", ioctl(fd, FIONREAD, &value));
    CALL("outq", ioctl(fd, SIOCOUTQ, &value));
    CALL("atmark", sockatmark(fd));
    CALL("peer", getpeername(fd, NULL, NULL));
}

// SIOCOUTQ counts bytes that the peer has not acknowledged.
CASE(queued_until_acknowledged) {
    struct pair p = pair();
    int sent = fill(p.client), queued = 0, got = 0;
    CALL("outq", ioctl(p.client, SIOCOUTQ, &queued));
    say("some", "%d", queued > 0 && queued <= sent);
    while (got < sent) got += MUST(read(p.server, buf, sizeof buf));
    CALL("acknowledged", wait_sent(p.client));
}

// The ioctls that count unread and unsent bytes, and FIONBIO.
CASE(counters) {
    struct pair p = pair();
    int value = -1;
    CALL("empty", ioctl(p.client, FIONREAD, &value));
    say("unread", "%d", value);
    MUST(write(p.server, "abcd", 4));
    wait_unread(p.client, 4);
    ioctl(p.client, FIONREAD, &value);
    say("four", "%d", value);
    MUST(read(p.client, buf, 1));
    ioctl(p.client, TIOCINQ, &value);
    say("three", "%d", value);
    CALL("sent", wait_sent(p.server));
    CALL("outqnsd", ioctl(p.server, SIOCOUTQNSD, &value));
    say("unsent", "%d", value);
    CALL("unknown", ioctl(p.client, TCGETS, buf));
    CALL("fionbio", ioctl(p.client, FIONBIO, &(int){1}));
    CALL("now_nonblock", fcntl(p.client, F_GETFL) & O_NONBLOCK ? 1 : 0);
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    CALL("at_end", ioctl(p.client, FIONREAD, &value));
    say("left", "%d", value);
}

// A write after SHUT_WR kills the program by SIGPIPE, unless MSG_NOSIGNAL is given.
CASE(broken_pipe_signal) {
    struct pair p = pair();
    MUST(shutdown(p.client, SHUT_WR));
    CALL("nosignal", send(p.client, "x", 1, MSG_NOSIGNAL));
    write(p.client, "x", 1);
    say("survived", "yes");
}
