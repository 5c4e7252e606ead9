// io_uring: polls of sockets and of epoll instances, epoll_ctl, and a ring that is watched itself.
#include "uring.h"
#define THEME "uring"

static char buf[1000];

// A poll of a socket that is ready.
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

// A poll of a socket that becomes ready later completes once.
CASE(poll_later) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    CALL("submitted", submit(&r, 0));
    rest(20);
    say("before", "%u", ready(&r));
    MUST(write(p.server, "x", 1));
    say_cqes(&r, 1, true);
    // The poll completes only once.
    MUST(read(p.client, buf, 1));
    MUST(write(p.server, "x", 1));
    rest(50);
    say("after", "%u", ready(&r));
}

// A poll completes while io_uring_enter waits for it.
CASE(poll_wakes_a_waiter) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    when_asleep((void (*)(void *))(void *)close, (void *)(long)p.server);
    CALL("submitted", submit(&r, 1));
    say("ready", "%u", ready(&r));
    say_cqes(&r, 1, true);
}

// A poll without events reports POLLHUP.
CASE(poll_hup) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, 0, 0, 1);
    MUST(submit(&r, 0));
    MUST(shutdown(p.client, SHUT_WR));
    MUST(close(p.server));
    say_cqes(&r, 1, true);
}

// A poll of a listener completes with its first connection.
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

// A multishot poll reports each arrival until it is removed.
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

// A multishot poll of a socket that is ready reports at once, and later again.
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

// IORING_OP_POLL_REMOVE without a poll; updates of a poll's events and user_data.
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

// Epoll_ctl through a ring.
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

// A poll of an epoll descriptor.
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

// A multishot poll of an epoll descriptor.
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

// Epoll on the ring, and its eventfd, notice completions.
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
