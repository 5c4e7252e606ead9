// io_uring: accept, connect, socket, shutdown and close.
#include "uring.h"
#define THEME "uring"

static char buf[1000];

// Accepts through a ring: the peer's address, flags, and a socket that does not listen.
CASE(accept) {
    int l = listening();
    struct ring r = ring();
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    add(&r, IORING_OP_ACCEPT, l, &from, 0, 1)->addr2 = (unsigned long)&len;
    MUST(submit(&r, 0));
    rest(20);
    say("before", "%u", ready(&r));
    int c = tcp();
    MUST(connect_to(c, l));
    int s = result(&r);
    say("accepted", "%d", s >= 0);
    say("port", "%d", ntohs(from.sin_port) == port_of(c));
    say("len", "%u", len);
    MUST(write(c, "x", 1));
    CALL("read", read(s, buf, 10));
    MUST(connect_to(tcp(), l));
    wait_events(l, POLLIN);
    add(&r, IORING_OP_ACCEPT, l, NULL, 0, 1)->accept_flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
    MUST(submit(&r, 1));
    s = result(&r);
    say("flags", "%d,%d", fcntl(s, F_GETFL) & O_NONBLOCK, fcntl(s, F_GETFD));
    add(&r, IORING_OP_ACCEPT, c, NULL, 0, 1);
    MUST(submit(&r, 1));
    say_cqe_result("no_listener", &r);
}

// A multishot accept takes several connections.
CASE(accept_multishot) {
    int l = listening();
    struct ring r = ring();
    add(&r, IORING_OP_ACCEPT, l, NULL, 0, 1)->ioprio = IORING_ACCEPT_MULTISHOT;
    MUST(submit(&r, 0));
    for (int i = 0; i < 3; i++) MUST(connect_to(tcp(), l));
    struct io_uring_cqe cqe;
    for (int i = 0; i < 3; i++) {
        if (ready(&r) == 0) MUST(enter(r.fd, 0, 1, IORING_ENTER_GETEVENTS));
        take(&r, &cqe);
        say("accepted", "%d,%d", cqe.res >= 0, (cqe.flags & IORING_CQE_F_MORE) != 0);
    }
}

// Connects through a ring: established, connected already, refused.
CASE(connect) {
    int l = listening(), c = tcp();
    struct ring r = ring();
    struct sockaddr_in to = loopback(port_of(l));
    add(&r, IORING_OP_CONNECT, c, &to, 0, 1)->off = sizeof to;
    MUST(submit(&r, 1));
    say_cqe_result("connected", &r);
    MUST(write(c, "x", 1));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("read", read(s, buf, 10));
    add(&r, IORING_OP_CONNECT, c, &to, 0, 1)->off = sizeof to;
    MUST(submit(&r, 1));
    say_cqe_result("again", &r);
    say("blocking", "%d", fcntl(c, F_GETFL) & O_NONBLOCK);
    int port = port_of(l), d = tcp();
    MUST(close(l));
    to = loopback(port);
    add(&r, IORING_OP_CONNECT, d, &to, 0, 1)->off = sizeof to;
    MUST(submit(&r, 1));
    say_cqe_result("nobody", &r);
}

// Shutdown and close through a ring.
CASE(shutdown_and_close) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_SHUTDOWN, p.client, NULL, SHUT_WR, 1);
    MUST(submit(&r, 1));
    say_cqe_result("shutdown", &r);
    CALL("end", read(p.server, buf, 1));
    add(&r, IORING_OP_CLOSE, p.server, NULL, 0, 1);
    MUST(submit(&r, 1));
    say_cqe_result("close", &r);
    CALL("closed", fcntl(p.server, F_GETFD));
    say_events("hup", wait_events(p.client, POLLHUP));
    add(&r, IORING_OP_CLOSE, p.server, NULL, 0, 1);
    MUST(submit(&r, 1));
    say_cqe_result("twice", &r);
}

// A receive waits while its descriptor is closed: the connection lives until it completes.
CASE(closed_while_it_waits) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    MUST(close(p.client));
    rest(30);
    say("closed", "%u", ready(&r));
    CALL("write", send(p.server, "abc", 3, MSG_NOSIGNAL));
    say_cqe_result("received", &r);
    say_bytes("bytes", buf, 3);
    say_events("then", wait_events(p.server, POLLIN));
    CALL("read", read(p.server, buf, 1));
}

// A socket that a ring has made.
CASE(socket) {
    struct ring r = ring();
    struct sockaddr_in to = loopback(0);
    struct io_uring_sqe *sqe = add(&r, IORING_OP_SOCKET, AF_INET, NULL, 0, 1);
    sqe->off = SOCK_STREAM;
    MUST(submit(&r, 1));
    int l = result(&r);
    MUST(bind(l, (void *)&to, sizeof to));
    MUST(listen(l, 5));
    int c = tcp();
    CALL("connect", connect_to(c, l));
    MUST(write(c, "x", 1));
    CALL("read", read((int)MUST(accept(l, NULL, NULL)), buf, 1));
}
