// io_uring: linked operations, and timeouts that are linked to them.
#include "uring.h"
#define THEME "uring"

static char buf[1000];

// A chain of operations on a file only.
CASE(links_of_the_kernels) {
    struct ring r = ring();
    int file = (int)MUST(memfd_create("file", 0));
    add(&r, IORING_OP_WRITE, file, "abcd", 4, 1)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_READ, file, buf, 4, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    say_bytes("read", buf, 4);
}

static void add_limit(struct ring *r, struct __kernel_timespec *time, unsigned long data) {
    add(r, IORING_OP_LINK_TIMEOUT, -1, time, 1, data);
}

// IORING_OP_LINK_TIMEOUT: it expires, or its operation completes or is cancelled first.
CASE(limits) {
    struct pair p = pair();
    struct ring r = ring();
    struct __kernel_timespec soon = {.tv_nsec = 30000000}, late = {.tv_sec = 100};
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->flags = IOSQE_IO_LINK;
    add_limit(&r, &soon, 2);
    CALL("submitted", submit(&r, 2));
    say_cqes(&r, 2, false);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 3)->flags = IOSQE_IO_LINK;
    add_limit(&r, &late, 4);
    MUST(submit(&r, 0));
    MUST(write(p.server, "abc", 3));
    say_cqes(&r, 2, false);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 5)->flags = IOSQE_IO_LINK;
    add_limit(&r, &late, 6);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    add_poll(&r, p.client, POLLIN, 0, 7)->flags = IOSQE_IO_LINK;
    add_limit(&r, &late, 8);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)7, 0, 9);
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
}

// Connect with a timeout or a send linked to it, and a refused connect that breaks the chain.
CASE(limit_of_connect) {
    int l = listening(), c = tcp();
    struct ring r = ring();
    struct sockaddr_in to = loopback(port_of(l));
    struct __kernel_timespec late = {.tv_sec = 100};
    struct io_uring_sqe *sqe = add(&r, IORING_OP_CONNECT, c, &to, 0, 1);
    sqe->off = sizeof to, sqe->flags = IOSQE_IO_LINK;
    add_limit(&r, &late, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    int d = tcp();
    sqe = add(&r, IORING_OP_CONNECT, d, &to, 0, 3);
    sqe->off = sizeof to, sqe->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, d, "hello", 5, 4);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    MUST(accept(l, NULL, NULL));
    CALL("read", read((int)MUST(accept(l, NULL, NULL)), buf, 10));
    MUST(close(l));
    int e = tcp();
    sqe = add(&r, IORING_OP_CONNECT, e, &to, 0, 5);
    sqe->off = sizeof to, sqe->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, e, "hello", 5, 6);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
}

// Operations begin after the one before; failures and short reads break the chain, hard links do not.
CASE(chains) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 3, 1)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, p.client, buf, 3, 2)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SHUTDOWN, p.client, NULL, SHUT_WR, 3);
    MUST(submit(&r, 0));
    rest(20);
    say("before", "%u", ready(&r));
    MUST(write(p.server, "abc", 3));
    say_cqes(&r, 3, false);
    wait_events(p.server, POLLRDHUP);
    CALL("echo", read(p.server, buf + 10, 10));
    say_bytes("bytes", buf + 10, 3);
    CALL("end", read(p.server, buf, 10));
    add(&r, IORING_OP_RECV, p.client, (void *)64, 3, 1)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, p.server, buf, 3, 2)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, p.server, buf, 3, 3);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
    // The end of the stream does not break a chain after a recv, but after a read.
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLHUP);
    MUST(recv(p.client, buf, 100, MSG_DONTWAIT));
    add(&r, IORING_OP_RECV, p.client, buf, 3, 4)->flags = IOSQE_IO_LINK;
    add_poll(&r, p.client, POLLIN, 0, 5);
    add(&r, IORING_OP_READ, p.client, buf, 3, 6)->flags = IOSQE_IO_LINK;
    add_poll(&r, p.client, POLLIN, 0, 7)->flags = IOSQE_IO_LINK;
    add_poll(&r, p.client, POLLIN, 0, 8);
    add(&r, IORING_OP_READ, p.client, buf, 3, 9)->flags = IOSQE_IO_HARDLINK;
    add(&r, IORING_OP_CLOSE, p.client, NULL, 0, 10);
    MUST(submit(&r, 7));
    say_cqes(&r, 7, false);
    CALL("closed", fcntl(p.client, F_GETFD));
}

// Cancelling the first operation of a chain cancels the rest.
CASE(canceled_chain) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 3, 1)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_SEND, p.client, buf, 3, 2);
    MUST(submit(&r, 0));
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 3);
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
}

// A chain over a socket and a file.
CASE(chain_with_a_file) {
    struct pair p = pair();
    struct ring r = ring();
    int file = (int)MUST(memfd_create("file", 0));
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, buf, 3, 1)->flags = IOSQE_IO_LINK;
    add(&r, IORING_OP_WRITE, file, buf, 3, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
}
