// io_uring by its system calls: polls, transfers, connections, cancellation, mixed with files and pipes.
#include "uring.h"
#define THEME "uring"

static char buf[1000];
static char out[1000];

CASE(poll_at_once) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN | POLLOUT, 0, 1);
    CALL("submitted", submit(&r, 1));
    say_cqes(&r, 1, true);
    MUST(write(p.server, "x", 1));
    wait_events(p.client, POLLIN);
    add_poll(&r, p.client, POLLIN | POLLOUT, 0, 2);
    add_poll(&r, p.client, POLLIN, 0, 3);
    CALL("two", submit(&r, 2));
    say_cqes(&r, 2, true);
}

CASE(poll_later) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    CALL("submitted", submit(&r, 0));
    rest(20);
    say("before", "%u", ready(&r));
    MUST(write(p.server, "x", 1));
    say_cqes(&r, 1, true);
    // Once only.
    MUST(read(p.client, buf, 1));
    MUST(write(p.server, "x", 1));
    rest(50);
    say("after", "%u", ready(&r));
}

CASE(poll_wakes_a_waiter) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    later(50, (void (*)(void *))(void *)close, (void *)(long)p.server);
    CALL("submitted", submit(&r, 1));
    say("ready", "%u", ready(&r));
    say_cqes(&r, 1, true);
}

CASE(poll_hup) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, 0, 0, 1);
    MUST(submit(&r, 0));
    MUST(shutdown(p.client, SHUT_WR));
    MUST(close(p.server));
    say_cqes(&r, 1, true);
}

CASE(poll_listener) {
    int l = listening(), c = tcp();
    struct ring r = ring();
    add_poll(&r, l, POLLIN, 0, 1);
    MUST(submit(&r, 0));
    rest(20);
    say("before", "%u", ready(&r));
    MUST(connect_to(c, l));
    say_cqes(&r, 1, true);
}

CASE(poll_multishot) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, IORING_POLL_ADD_MULTI, 1);
    MUST(submit(&r, 0));
    for (int i = 0; i < 3; i++) {
        MUST(write(p.server, "x", 1));
        say_cqes(&r, 1, true);
        if (i == 1) MUST(read(p.client, buf, 10));
    }
    add(&r, IORING_OP_POLL_REMOVE, -1, (void *)1, 0, 2);
    MUST(submit(&r, 0));
    say_cqes(&r, 2, false);
    MUST(write(p.server, "x", 1));
    rest(30);
    say("after", "%u", ready(&r));
}

CASE(poll_multishot_ready) {
    struct pair p = pair();
    struct ring r = ring();
    MUST(write(p.server, "x", 1));
    wait_events(p.client, POLLIN);
    add_poll(&r, p.client, POLLIN, IORING_POLL_ADD_MULTI, 1);
    MUST(submit(&r, 1));
    say_cqes(&r, 1, true);
    MUST(close(p.server));
    say_cqes(&r, 1, true);
}

CASE(poll_remove_and_update) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_POLL_REMOVE, -1, (void *)1, 0, 9);
    MUST(submit(&r, 1));
    say_cqes(&r, 1, false);
    add_poll(&r, p.client, POLLIN, 0, 1);
    MUST(submit(&r, 0));
    struct io_uring_sqe *sqe = add(&r, IORING_OP_POLL_REMOVE, -1, (void *)1, IORING_POLL_UPDATE_USER_DATA, 2);
    sqe->off = 3;
    MUST(submit(&r, 1));
    say_cqes(&r, 1, false);
    sqe = add(&r, IORING_OP_POLL_REMOVE, -1, (void *)3, IORING_POLL_UPDATE_EVENTS, 4);
    sqe->poll32_events = POLLOUT;
    MUST(submit(&r, 2));
    say_cqes(&r, 2, true);
}

CASE(cancel) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    add(&r, IORING_OP_RECV, p.server, buf, 10, 3);
    add(&r, IORING_OP_RECV, p.server, buf, 10, 4);
    MUST(submit(&r, 0));
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)77, 0, 10);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 11);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)2, 0, 12);
    MUST(submit(&r, 5));
    say_cqes(&r, 5, false);
    add(&r, IORING_OP_ASYNC_CANCEL, p.server, NULL, 0, 13)->cancel_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    CALL("left", recv(p.client, buf, 10, 0));
}

CASE(receive) {
    struct pair p = pair();
    struct ring r = ring();
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    CALL("submitted", submit(&r, 1));
    say_cqe_result("at_once", &r);
    say_bytes("bytes", buf, 3);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    CALL("submitted", submit(&r, 0));
    rest(20);
    MUST(write(p.server, "defg", 4));
    say_cqe_result("later", &r);
    say_bytes("bytes", buf, 4);
    add(&r, IORING_OP_READ, p.client, buf, 10, 3)->off = (unsigned long)-1;
    MUST(submit(&r, 0));
    MUST(close(p.server));
    say_cqe_result("end", &r);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    MUST(submit(&r, 1));
    say_cqe_result("again", &r);
}

CASE(receive_without_waiting) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->msg_flags = MSG_DONTWAIT;
    MUST(submit(&r, 1));
    say_cqe_result("dontwait", &r);
    nonblocking(p.client, true);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    MUST(submit(&r, 0));
    rest(20);
    say("o_nonblock", "%u", ready(&r));
    MUST(write(p.server, "x", 1));
    say_cqe_result("later", &r);
}

CASE(receive_all) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->msg_flags = MSG_WAITALL;
    MUST(submit(&r, 0));
    MUST(write(p.server, "abcd", 4));
    rest(30);
    say("part", "%u", ready(&r));
    MUST(write(p.server, "efghijk", 7));
    say_cqe_result("all", &r);
    say_bytes("bytes", buf, 10);
}

CASE(several_receives) {
    struct pair p = pair();
    struct ring r = ring();
    for (int i = 0; i < 3; i++) add(&r, IORING_OP_RECV, p.client, buf + i, 1, (unsigned long)i);
    MUST(submit(&r, 0));
    MUST(write(p.server, "xxx", 3));
    say_cqes(&r, 3, false);
    say_bytes("bytes", buf, 3);
}

CASE(messages) {
    struct pair p = pair();
    struct ring r = ring();
    char one[2], two[8];
    struct iovec *iov = malloc(2 * sizeof *iov), from[2] = {{"ab", 2}, {"cdef", 4}};
    iov[0] = (struct iovec){one, 2}, iov[1] = (struct iovec){two, 8};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2, .msg_flags = 0x77}, s = {.msg_iov = from, .msg_iovlen = 2};
    add(&r, IORING_OP_RECVMSG, p.client, &m, 1, 1);
    MUST(submit(&r, 0));
    // They have been read.
    memset(iov, 0, 2 * sizeof *iov);
    add(&r, IORING_OP_SENDMSG, p.server, &s, 1, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    say_bytes("one", one, 2);
    say_bytes("two", two, 4);
    say("flags", "%x", (unsigned)m.msg_flags);
    struct iovec to[2] = {{one, 2}, {two, 8}};
    add(&r, IORING_OP_WRITEV, p.server, from, 2, 3);
    MUST(submit(&r, 1));
    say_cqe_result("writev", &r);
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_READV, p.client, to, 2, 4);
    MUST(submit(&r, 1));
    say_cqe_result("readv", &r);
    add(&r, IORING_OP_READV, p.client, to, 2, 5)->off = 5;
    MUST(submit(&r, 1));
    say_cqe_result("position", &r);
}

CASE(send) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, p.client, "hello", 5, 1);
    MUST(submit(&r, 1));
    say_cqe_result("send", &r);
    add(&r, IORING_OP_WRITE, p.client, "you", 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("write", &r);
    wait_unread(p.server, 8);
    CALL("read", read(p.server, buf, 100));
    say_bytes("bytes", buf, 8);
}

CASE(send_waits_for_room) {
    struct pair p = pair();
    struct ring r = ring();
    nonblocking(p.client, true);
    fill(p.client);
    add(&r, IORING_OP_SEND, p.client, out, 100, 1);
    MUST(submit(&r, 0));
    rest(20);
    say("full", "%u", ready(&r));
    nonblocking(p.server, true);
    for (long end = now_ms() + 5000; ready(&r) == 0 && now_ms() < end; rest(1)) drain(p.server);
    say_cqe_result("sent", &r);
}

CASE(send_without_copies) {
    struct pair p = pair();
    struct ring r = ring();
    struct iovec iov = {"you", 3};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    add(&r, IORING_OP_SEND_ZC, p.client, "hello", 5, 1);
    MUST(submit(&r, 1));
    say_cqes(&r, 2, false);
    add(&r, IORING_OP_SENDMSG_ZC, p.client, &m, 1, 1);
    MUST(submit(&r, 1));
    say_cqes(&r, 2, false);
    wait_unread(p.server, 8);
    CALL("read", read(p.server, buf, 100));
    say_bytes("bytes", buf, 8);
}

CASE(nothing) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_READ, p.client, buf, 0, 1);
    add(&r, IORING_OP_WRITE, p.client, buf, 0, 2);
    add(&r, IORING_OP_SEND, p.client, buf, 0, 3);
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
}

CASE(send_to_nobody) {
    int fd = reset_by_peer();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, fd, "x", 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("reset", &r);
    add(&r, IORING_OP_SEND, fd, "x", 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("pipe", &r);
}

CASE(bad_memory) {
    struct pair p = pair();
    struct ring r = ring();
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, (void *)64, 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("recv", &r);
    add(&r, IORING_OP_RECVMSG, p.client, (void *)64, 1, 1);
    submit(&r, 1);
    say_cqe_result("recvmsg", &r);
    // Filled by another thread than this one, and not there any more.
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(read(p.client, buf, 3));
    add(&r, IORING_OP_RECV, p.client, page, 3, 1);
    MUST(submit(&r, 0));
    MUST(munmap(page, 4096));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("later", &r);
}

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

CASE(epoll_control) {
    struct pair p = pair();
    struct ring r = ring();
    int ep = (int)MUST(epoll_create1(0)), ends[2];
    MUST(pipe(ends));
    struct epoll_event e[2] = {{EPOLLIN, {.u64 = 5}}, {EPOLLIN, {.u64 = 6}}};
    add(&r, IORING_OP_EPOLL_CTL, ep, &e[0], EPOLL_CTL_ADD, 1)->off = (unsigned)p.client;
    add(&r, IORING_OP_EPOLL_CTL, ep, &e[1], EPOLL_CTL_ADD, 2)->off = (unsigned)ends[0];
    add(&r, IORING_OP_EPOLL_CTL, ep, &e[1], EPOLL_CTL_ADD, 3)->off = (unsigned)p.client;
    CALL("submitted", submit(&r, 3));
    say_cqes(&r, 3, false);
    CALL("idle", epoll_wait(ep, e, 2, 0));
    MUST(write(p.server, "x", 1));
    CALL("socket", epoll_wait(ep, e, 2, 3000));
    say("data", "%lu", (unsigned long)e[0].data.u64);
    MUST(read(p.client, buf, 1));
    MUST(write(ends[1], "x", 1));
    CALL("pipe", epoll_wait(ep, e, 2, 3000));
    say("data", "%lu", (unsigned long)e[0].data.u64);
    add(&r, IORING_OP_EPOLL_CTL, ep, NULL, EPOLL_CTL_DEL, 4)->off = (unsigned)p.client;
    MUST(submit(&r, 1));
    say_cqe_result("del", &r);
}

CASE(poll_of_epoll) {
    struct pair p = pair();
    struct ring r = ring();
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    add_poll(&r, ep, POLLIN, 0, 1);
    MUST(submit(&r, 0));
    rest(20);
    say("idle", "%u", ready(&r));
    MUST(write(p.server, "x", 1));
    say_cqes(&r, 1, true);
}

CASE(poll_of_epoll_multishot) {
    struct pair p = pair();
    struct ring r = ring();
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    add_poll(&r, ep, POLLIN, IORING_POLL_ADD_MULTI, 1);
    MUST(submit(&r, 0));
    for (int i = 0; i < 3; i++) {
        MUST(write(p.server, "x", 1));
        say_cqes(&r, 1, true);
        CALL("wait", epoll_wait(ep, &e, 1, 1000));
        MUST(read(p.client, buf, 10));
        CALL("none", epoll_wait(ep, &e, 1, 0));
    }
    MUST(close(ep));
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 2);
    MUST(submit(&r, 1));
    say_cqes(&r, 2, false);
}

CASE(ring_is_watched) {
    struct pair p = pair();
    struct ring r = ring();
    int ep = (int)MUST(epoll_create1(0)), doorbell = (int)MUST(eventfd(0, 0));
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, r.fd, &e));
    MUST(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_EVENTFD, &doorbell, 1));
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    CALL("idle", epoll_wait(ep, &e, 1, 20));
    MUST(write(p.server, "abc", 3));
    CALL("ready", epoll_wait(ep, &e, 1, 3000));
    unsigned long rings = 0;
    CALL("doorbell", read(doorbell, &rings, sizeof rings));
    say("rings", "%lu", rings);
    say_cqe_result("received", &r);
    CALL("done", epoll_wait(ep, &e, 1, 0));
}

CASE(mixed) {
    struct pair p = pair();
    struct ring r = ring();
    int ends[2], file = (int)MUST(memfd_create("file", 0));
    MUST(write(file, "0123456789", 10));
    MUST(pipe(ends));
    char a[4], b[4], c[4];
    add(&r, IORING_OP_READ, file, a, 4, 1)->off = 3;
    add(&r, IORING_OP_RECV, p.client, b, 4, 2);
    add(&r, IORING_OP_READ, ends[0], c, 4, 3)->off = (unsigned long)-1;
    add(&r, IORING_OP_NOP, -1, NULL, 0, 4);
    CALL("submitted", submit(&r, 2));
    MUST(write(ends[1], "pipe", 4));
    MUST(write(p.server, "sock", 4));
    say_cqes(&r, 4, false);
    say_bytes("file", a, 4), say_bytes("socket", b, 4), say_bytes("pipe", c, 4);
}

CASE(nonsense) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, 200, p.client, NULL, 0, 1);
    MUST(submit(&r, 1));
    say_cqe_result("opcode", &r);
    add(&r, IORING_OP_RECV, 999, buf, 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("descriptor", &r);
    add_poll(&r, p.client, POLLIN, 0x80, 1);
    MUST(submit(&r, 1));
    say_cqe_result("poll", &r);
    add(&r, IORING_OP_ACCEPT, p.client, NULL, 0, 1)->accept_flags = 0x7f;
    MUST(submit(&r, 1));
    say_cqe_result("accept", &r);
    add(&r, IORING_OP_READV, p.client, (void *)64, 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("vectors", &r);
    add(&r, IORING_OP_WRITEV, p.client, buf, 2000, 1);
    MUST(submit(&r, 1));
    say_cqe_result("too_many", &r);
    // A place that is none, then one that is.
    r.array[*r.tail & r.sq_mask] = 77777;
    __atomic_store_n(r.tail, *r.tail + 1, __ATOMIC_RELEASE);
    r.waiting++;
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1);
    CALL("dropped", submit(&r, 0));
    CALL("next", enter(r.fd, 2, 1, IORING_ENTER_GETEVENTS));
    say_cqe_result("sent", &r);
    CALL("no_ring", enter(p.client, 1, 0, 0));
    CALL("files", syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, (void *)64, 1));
    CALL("setup", syscall(SYS_io_uring_setup, 4, (void *)64));
    CALL("none", syscall(SYS_io_uring_setup, 0, buf));
}

CASE(enabled_later) {
    struct pair p = pair();
    struct ring r = ring_with(IORING_SETUP_R_DISABLED);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    CALL("disabled", submit(&r, 0));
    CALL("enable", syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    CALL("submitted", enter(r.fd, 1, 0, 0));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("received", &r);
}

CASE(after_fork) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        struct ring own = ring();
        struct pair q = pair();
        add(&own, IORING_OP_RECV, q.client, buf, 10, 1);
        submit(&own, 0);
        if (write(q.server, "x", 1) != 1) _exit(9);
        _exit(result(&own));
    }
    int status = 0;
    MUST(waitpid(child, &status, 0));
    say("child", "%d", WEXITSTATUS(status));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("parent", &r);
}

CASE(copy_of_a_ring) {
    struct pair p = pair();
    struct ring r = ring();
    int copy = (int)MUST(dup(r.fd));
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    MUST(close(r.fd));
    MUST(write(p.server, "abc", 3));
    r.fd = copy;
    say_cqe_result("received", &r);
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("sent", &r);
}

CASE(quiet_success) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1)->flags = IOSQE_CQE_SKIP_SUCCESS;
    add(&r, IORING_OP_RECV, p.server, buf, 3, 2)->flags = IOSQE_CQE_SKIP_SUCCESS;
    MUST(submit(&r, 0));
    rest(30);
    say("quiet", "%u", ready(&r));
    say_bytes("bytes", buf, 3);
    add(&r, IORING_OP_RECV, p.server, (void *)64, 3, 3)->flags = IOSQE_CQE_SKIP_SUCCESS;
    MUST(write(p.client, "abc", 3));
    MUST(submit(&r, 0));
    say_cqes(&r, 1, false);
}

CASE(kinds_of_rings) {
    struct pair p = pair();
    unsigned kinds[] = {IORING_SETUP_CLAMP, IORING_SETUP_SUBMIT_ALL, IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SQE128, IORING_SETUP_CQE32, NO_MMAP,
        NO_SQARRAY, NO_MMAP | NO_SQARRAY};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct ring r = ring_with(kinds[i]);
        // One submission: it lies at the same place with entries of any size.
        add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
        MUST(submit(&r, 0));
        MUST(write(p.server, "abc", 3));
        say_cqe_result("received", &r);
        MUST(close(r.fd));
    }
}

struct echo {
    struct ring *ring;
    int fd;
    long done;
};

static void *echoes(void *argument) {
    struct echo *e = argument;
    struct ring *r = e->ring;
    char byte;
    for (int i = 0; i < 200; i++) {
        add(r, IORING_OP_RECV, e->fd, &byte, 1, 1);
        if (submit(r, 1) < 0 || result(r) != 1) break;
        add(r, IORING_OP_SEND, e->fd, &byte, 1, 1);
        if (submit(r, 1) < 0 || result(r) != 1) break;
        e->done++;
    }
    return NULL;
}

CASE(two_threads) {
    struct pair p[2] = {pair(), pair()};
    struct ring r[2] = {ring(), ring()};
    struct echo e[2] = {{&r[0], p[0].server, 0}, {&r[1], p[1].server, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, echoes, &e[i]);
    int wrong = 0;
    for (int i = 0; i < 400; i++) {
        char byte = (char)i, answer = 0;
        MUST(write(p[i % 2].client, &byte, 1));
        MUST(read(p[i % 2].client, &answer, 1));
        wrong += byte != answer;
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    say("done", "%ld,%ld", e[0].done, e[1].done);
    say("wrong", "%d", wrong);
}

CASE(many_waiting) {
    struct pair p[8];
    struct ring r = ring();
    for (int i = 0; i < 8; i++) {
        p[i] = pair();
        add(&r, IORING_OP_RECV, p[i].client, buf + i, 1, (unsigned long)i);
        add_poll(&r, p[i].server, POLLIN, 0, (unsigned long)i + 10);
    }
    CALL("submitted", submit(&r, 0));
    for (int i = 0; i < 8; i++) MUST(write(p[7 - i].server, "x", 1));
    for (int i = 0; i < 8; i += 2) MUST(write(p[i].client, "x", 1));
    say_cqes(&r, 12, false);
}
