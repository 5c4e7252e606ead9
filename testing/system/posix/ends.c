// How connections end: shutdown in each direction, close, resets, linger.
#include "conformance.h"
#define THEME "ends"

static char buf[1000];

// After SHUT_WR the peer reads the end and can still write.
CASE(shutdown_write) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    CALL("shutdown", shutdown(p.client, SHUT_WR));
    say_events("peer", wait_events(p.server, POLLRDHUP));
    say_events("own", events_of(p.client));
    CALL("peer_reads", read(p.server, buf, 1));
    CALL("write", write(p.client, "x", 1));
    CALL("again", shutdown(p.client, SHUT_WR));
    CALL("peer_writes", write(p.server, "yz", 2));
    wait_unread(p.client, 2);
    CALL("reads", read(p.client, buf, 10));
    say_events("own_then", events_of(p.client));
}

// After SHUT_RD reads give 0, but data that come later can be read.
CASE(shutdown_read) {
    struct pair p = pair();
    CALL("shutdown", shutdown(p.client, SHUT_RD));
    say_events("own", events_of(p.client));
    CALL("read", read(p.client, buf, 1));
    CALL("dontwait", recv(p.client, buf, 1, MSG_DONTWAIT));
    CALL("peer_writes", send(p.server, "abc", 3, MSG_NOSIGNAL));
    CALL("arrives", wait_unread(p.client, 3));
    CALL("read_after", recv(p.client, buf, 10, MSG_DONTWAIT));
    say_bytes("bytes", buf, 3);
    CALL("write", write(p.client, "x", 1));
    say_events("peer", wait_events(p.server, POLLIN));
}

// Shutdown in both directions, on one end and then on both.
CASE(shutdown_both) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    CALL("shutdown", shutdown(p.client, SHUT_RDWR));
    say_events("own", events_of(p.client));
    say_events("peer", wait_events(p.server, POLLRDHUP));
    CALL("read", read(p.client, buf, 1));
    CALL("write", write(p.client, buf, 1));
    CALL("peer_reads", read(p.server, buf, 1));
    MUST(shutdown(p.server, SHUT_RDWR));
    say_events("peer_then", wait_events(p.server, POLLHUP));
    rest(50);
    CALL("again", shutdown(p.client, SHUT_RD));
    CALL("error", get_int(p.client, SOL_SOCKET, SO_ERROR));
}

// Both ends have shut down for writing: POLLHUP, no error, and no peer name after LAST-ACK.
CASE(both_ways_closed_is_hang_up) {
    struct pair p = pair();
    MUST(shutdown(p.client, SHUT_WR));
    wait_events(p.server, POLLRDHUP);
    MUST(shutdown(p.server, SHUT_WR));
    say_events("client", wait_events(p.client, POLLHUP));
    say_events("server", wait_events(p.server, POLLHUP));
    CALL("read", read(p.client, buf, 1));
    CALL("error", get_int(p.client, SOL_SOCKET, SO_ERROR));
    // LAST-ACK ends with the peer's acknowledgement, which may take a moment.
    for (int tries = 0; tries < 400 && getpeername(p.server, (struct sockaddr *)buf, &(socklen_t){100}) == 0; tries++)
        usleep(5000);
    CALL("peername", getpeername(p.server, (struct sockaddr *)buf, &(socklen_t){100}));
    CALL("shutdown", shutdown(p.server, SHUT_WR));
}

// The errors of shutdown: a wrong direction, and sockets that are not connected.
CASE(shutdown_wrong) {
    struct pair p = pair();
    CALL("three", shutdown(p.client, 3));
    CALL("negative", shutdown(p.client, -1));
    int fd = tcp();
    CALL("unconnected", shutdown(fd, SHUT_WR));
    CALL("unconnected3", shutdown(fd, 3));
    int b = bound(0);
    CALL("bound", shutdown(b, SHUT_RDWR));
}

// SHUT_RD ends a listener, which can listen again.
CASE(shutdown_listener_read) {
    int fd = listening();
    CALL("shutdown", shutdown(fd, SHUT_RD));
    say_events("events", events_of(fd));
    CALL("accept", accept(fd, NULL, NULL));
    CALL("accepting", get_int(fd, SOL_SOCKET, SO_ACCEPTCONN));
    CALL("listen_again", listen(fd, 5));
    int c = tcp();
    CALL("connect", connect_to(c, fd));
}

// SHUT_WR does nothing to a listener.
CASE(shutdown_listener_write) {
    int fd = listening();
    CALL("shutdown", shutdown(fd, SHUT_WR));
    int c = tcp();
    CALL("connect", connect_to(c, fd));
    CALL("accept", accept(fd, NULL, NULL) > 0);
}

// After close the peer reads all data and the end. Its write is answered by a reset.
CASE(close_sends_end) {
    struct pair p = pair();
    MUST(write(p.client, "abc", 3));
    CALL("close", close(p.client));
    say_events("peer", wait_events(p.server, POLLRDHUP));
    CALL("read", read(p.server, buf, 10));
    CALL("end", read(p.server, buf, 10));
    CALL("write", send(p.server, "x", 1, MSG_NOSIGNAL));
    say_events("reset", wait_events(p.server, POLLERR));
    CALL("error", get_int(p.server, SOL_SOCKET, SO_ERROR));
    CALL("write2", send(p.server, "x", 1, MSG_NOSIGNAL));
}

// Closing with unread data sends a reset (RFC 2525 §2.17).
CASE(close_with_unread_resets) {
    struct pair p = pair();
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    MUST(close(p.client));
    say_events("peer", wait_events(p.server, POLLHUP));
    CALL("read", read(p.server, buf, 10));
    CALL("read2", read(p.server, buf, 10));
    say_events("then", events_of(p.server));
}

// A reset is reported once by read; names and shutdown after it.
CASE(reset) {
    int fd = reset_by_peer();
    say_events("events", events_of(fd));
    CALL("read", read(fd, buf, 1));
    CALL("read2", read(fd, buf, 1));
    say_events("then", events_of(fd));
    CALL("write", send(fd, "x", 1, MSG_NOSIGNAL));
    CALL("peer", getpeername(fd, (struct sockaddr *)buf, &(socklen_t){100}));
    CALL("name", getsockname(fd, (struct sockaddr *)buf, &(socklen_t){100}));
    CALL("shutdown", shutdown(fd, SHUT_WR));
}

// A reset is reported once by write, which then gives EPIPE.
CASE(reset_write_first) {
    int fd = reset_by_peer();
    CALL("write", send(fd, "x", 1, MSG_NOSIGNAL));
    CALL("write2", send(fd, "x", 1, MSG_NOSIGNAL));
    CALL("read", read(fd, buf, 1));
    say_events("then", events_of(fd));
}

// A reset is reported once by SO_ERROR.
CASE(reset_error_option) {
    int fd = reset_by_peer();
    CALL("error", get_int(fd, SOL_SOCKET, SO_ERROR));
    CALL("error2", get_int(fd, SOL_SOCKET, SO_ERROR));
    say_events("then", events_of(fd));
    CALL("read", read(fd, buf, 1));
    CALL("write", send(fd, "x", 1, MSG_NOSIGNAL));
}

// Within a host, the peer has seen the reset when close returns.
CASE(reset_is_there_when_close_returns) {
    int gone = 0, told = 0;
    for (int i = 0; i < 20; i++) {
        struct pair p = pair();
        struct linger now = {1, 0};
        MUST(write(p.client, "abc", 3));
        wait_unread(p.server, 3);
        MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        MUST(close(p.client));
        gone += getpeername(p.server, (struct sockaddr *)buf, &(socklen_t){100}) < 0 && errno == ENOTCONN;
        told += (events_of(p.server) & POLLHUP) != 0;
        close(p.server);
        close(p.listener);
    }
    say("gone", "%d", gone);
    say("told", "%d", told);
}

// Bytes that had arrived before a reset can still be read. Then the reset is reported.
CASE(reset_keeps_unread) {
    struct pair p = pair();
    struct linger now = {1, 0};
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    MUST(setsockopt(p.server, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(close(p.server));
    wait_events(p.client, POLLHUP);
    int unread = -1;
    CALL("fionread", ioctl(p.client, FIONREAD, &unread));
    say("unread", "%d", unread);
    CALL("read", read(p.client, buf, 10));
    CALL("read2", read(p.client, buf, 10));
    CALL("read3", read(p.client, buf, 10));
}

// Read, write and close by system call numbers, as libuv makes them. No number is closed twice.
CASE(by_number) {
    struct pair p = pair();
    struct linger now = {1, 0};
    CALL("write", syscall(SYS_write, p.server, "abc", 3));
    wait_unread(p.client, 3);
    CALL("read", syscall(SYS_read, p.client, buf, 10));
    CALL("empty", syscall(SYS_recvfrom, p.client, buf, 10, MSG_DONTWAIT, NULL, NULL));
    MUST(setsockopt(p.server, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    CALL("close", syscall(SYS_close, p.server));
    CALL("again", syscall(SYS_close, p.server));
    say_events("events", wait_events(p.client, POLLHUP));
    CALL("after", syscall(SYS_read, p.client, buf, 10));
    int file = (int)MUST(open("/dev/zero", O_RDONLY));
    CALL("same_number", file == p.server);
    CALL("file", read(file, buf, 10));
    MUST(close(file));
}

// A reset after the end of the stream is EPIPE, not ECONNRESET.
CASE(reset_after_end_is_broken_pipe) {
    struct pair p = pair();
    MUST(close(p.server));
    wait_events(p.client, POLLRDHUP);
    CALL("write", send(p.client, "x", 1, MSG_NOSIGNAL));
    wait_events(p.client, POLLERR);
    CALL("read", read(p.client, buf, 1));
    CALL("read2", read(p.client, buf, 1));
    CALL("write2", send(p.client, "x", 1, MSG_NOSIGNAL));
}

// A reset after the program's SHUT_RD.
CASE(reset_while_reading) {
    struct pair p = pair();
    MUST(shutdown(p.client, SHUT_RD));
    MUST(write(p.client, "x", 1));
    wait_unread(p.server, 1);
    MUST(close(p.server));
    say_events("events", wait_events(p.client, POLLERR));
    CALL("write", send(p.client, "x", 1, MSG_NOSIGNAL));
}

// SO_LINGER with a time: close, then the peer reads all data.
CASE(linger_sent) {
    struct pair p = pair();
    struct linger some = {1, 3};
    CALL("set", setsockopt(p.client, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    MUST(write(p.client, "abc", 3));
    CALL("close", close(p.client));
    CALL("read", recv(p.server, buf, 10, MSG_WAITALL));
}

static void *reader_after_a_while(void *fd) {
    static char got[1 << 16];
    rest(300);
    while (read(*(int *)fd, got, sizeof got) > 0) {}
    return NULL;
}

// SO_LINGER with a full connection: close waits until the reader has taken all.
CASE(linger_until_all_is_acknowledged) {
    struct pair p = pair();
    struct linger some = {1, 20};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    fill(p.client);
    pthread_t reader;
    pthread_create(&reader, NULL, reader_after_a_while, &p.server);
    long start = now_ms();
    CALL("close", close(p.client));
    say("waited", "%d", now_ms() - start >= 200);
    say("in_time", "%d", now_ms() - start < 15000);
    pthread_join(reader, NULL);
}

// SO_LINGER with a reader that never reads: close waits no longer than the time.
CASE(linger_no_longer_than_asked) {
    struct pair p = pair();
    struct linger some = {1, 1};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    int sent = fill(p.client), got = 0;
    long start = now_ms();
    CALL("close", close(p.client));
    say("waited", "%d", now_ms() - start >= 900);
    say("in_time", "%d", now_ms() - start < 8000);
    for (int count; (count = read(p.server, buf, sizeof buf)) > 0;) got += count;
    say("whole", "%d", got == sent);
}

// SO_LINGER as it is set and read back.
CASE(linger_option) {
    struct pair p = pair();
    struct linger l = {0, 0};
    socklen_t len = sizeof l;
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
    say("off", "%d,%d", l.l_onoff, l.l_linger);
    l = (struct linger){5, 7};
    CALL("set", setsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    MUST(getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
    say("on", "%d,%d", l.l_onoff, l.l_linger);
    CALL("short", setsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, 4));
}

// The second close of a descriptor is EBADF.
CASE(close_twice) {
    struct pair p = pair();
    CALL("first", close(p.client));
    CALL("second", close(p.client));
    CALL("read", read(p.client, buf, 1));
}

// Connect to AF_UNSPEC resets the connection, and the socket can connect again.
CASE(abort_by_connect_unspec) {
    struct pair p = pair();
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    CALL("disconnect", connect(p.client, &nowhere, sizeof nowhere));
    CALL("peer", getpeername(p.client, (struct sockaddr *)buf, &(socklen_t){100}));
    say_events("server", wait_events(p.server, POLLHUP));
    CALL("read", read(p.client, buf, 1));
    int l = listening();
    CALL("connect_again", connect_to(p.client, l));
}

// Data that come after SHUT_RDWR are answered by a reset.
CASE(unsent_data_after_shutdown_both) {
    struct pair p = pair();
    MUST(write(p.client, "abc", 3));
    MUST(shutdown(p.client, SHUT_RDWR));
    CALL("read", recv(p.server, buf, 10, MSG_WAITALL));
    CALL("write", send(p.server, "x", 1, MSG_NOSIGNAL));
    say_events("server", wait_events(p.server, POLLERR));
}
