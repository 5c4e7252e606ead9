// Bytes that are held back (TCP_CORK, MSG_MORE): for how long, and which calls notice them.
#define THEME "cork"
#include "conformance.h"

static char buf[200000];

// Poll does not show bytes that MSG_MORE holds back, and wakes when they are sent after 200 ms.
CASE(poll_waits_for_held_bytes) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    rest(30);
    struct pollfd fd = {p.server, POLLIN, 0};
    CALL("now", poll(&fd, 1, 0));
    CALL("then", poll(&fd, 1, 5000));
    say_events("events", (unsigned)fd.revents);
    CALL("read", read(p.server, buf, 10));
}

// A cork that is off for a moment has let go what it held, even if the stack looks later.
CASE(off_for_a_moment) {
    struct pair p = pair();
    for (int n = 0; n < 20; n++) {
        MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
        MUST(send(p.client, buf, 100, 0));
        long before = now_ms();
        MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 0));
        MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
        MUST(recv(p.server, buf, 100, MSG_WAITALL));
        if (now_ms() - before >= 150) say("late", "%d", n);
        wait_sent(p.client);
    }
    say("all", "sent");
}

// Records are bytes like others to the receiver.
CASE(records) {
    struct pair p = pair();
    for (int n = 0; n < 10; n++) CALL("send", send(p.client, buf, 100, MSG_EOR));
    CALL("recv", recv(p.server, buf, 1000, MSG_WAITALL));
}

static void send_more(void *fd) {
    send(*(int *)fd, "abc", 3, MSG_MORE);
}

// Poll already sleeps when a sender holds bytes back, and wakes in time.
CASE(poll_sleeps_when_bytes_are_held) {
    struct pair p = pair(), q = pair();
    when_asleep(send_more, &p.client);
    struct pollfd fds[2] = {{p.server, POLLIN, 0}, {q.server, POLLIN, 0}};
    long before = now_ms();
    CALL("poll", poll(fds, 2, 5000));
    say("in_time", "%d", now_ms() - before < 700);
    CALL("read", read(p.server, buf, 10));
}

// Recv already sleeps when a sender holds bytes back, and gets them in time.
CASE(recv_sleeps_when_bytes_are_held) {
    struct pair p = pair();
    when_asleep(send_more, &p.client);
    long before = now_ms();
    CALL("recv", recv(p.server, buf, 10, 0));
    say("in_time", "%d", now_ms() - before < 700);
}

// Select wakes when held bytes are sent after 200 ms.
CASE(select_waits_for_held_bytes) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p.server, &set);
    CALL("select", select(p.server + 1, &set, NULL, NULL, &(struct timeval){5, 0}));
    CALL("read", read(p.server, buf, 10));
}

static void epoll_on(struct pair *p, unsigned events) {
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {events, {.u64 = 7}}, got = {0};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p->server, &e));
    when_asleep(send_more, &p->client);
    if (events & EPOLLOUT) MUST(epoll_wait(ep, &got, 1, 5000));
    long before = now_ms();
    CALL("wait", epoll_wait(ep, &got, 1, 5000));
    say("in_time", "%d", now_ms() - before < 700);
    say_events("events", got.events & EPOLLIN);
    CALL("read", read(p->server, buf, 10));
}

// Level-triggered epoll wakes when held bytes are sent.
CASE(epoll_waits_for_held_bytes) {
    struct pair p = pair();
    epoll_on(&p, EPOLLIN);
}

// Edge-triggered epoll wakes when held bytes are sent.
CASE(epoll_by_edges_waits_for_held_bytes) {
    struct pair p = pair();
    epoll_on(&p, EPOLLIN | EPOLLET);
}

// EPOLLONESHOT wakes when held bytes are sent.
CASE(epoll_once_waits_for_held_bytes) {
    struct pair p = pair();
    epoll_on(&p, EPOLLIN | EPOLLONESHOT);
}

// SIOCOUTQ and SIOCOUTQNSD count held bytes; FIONREAD of the receiver does not.
CASE(queued_while_held) {
    struct pair p = pair();
    int n = -1;
    MUST(send(p.client, "abc", 3, MSG_MORE));
    rest(30);
    CALL("outq", ioctl(p.client, SIOCOUTQ, &n));
    say("bytes", "%d", n);
    CALL("outqnsd", ioctl(p.client, SIOCOUTQNSD, &n));
    say("bytes", "%d", n);
    MUST(ioctl(p.server, FIONREAD, &n));
    say("unread", "%d", n);
}

// TCP_CORK: after held bytes were sent in time, the next ones are held again.
CASE(held_again_after_the_time) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    MUST(send(p.client, "abc", 3, 0));
    CALL("first", recv(p.server, buf, 3, MSG_WAITALL));
    MUST(send(p.client, "def", 3, 0));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
    CALL("then", recv(p.server, buf, 10, 0));
    say_bytes("bytes", buf, 3);
}

// Close sends the bytes that TCP_CORK holds back.
CASE(close_lets_go) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    MUST(send(p.client, "abc", 3, 0));
    MUST(close(p.client));
    CALL("recv", recv(p.server, buf, 10, MSG_WAITALL));
}

// The death of the process sends the bytes that MSG_MORE holds back.
CASE(exit_lets_go) {
    struct pair p = pair();
    pid_t child = fork();
    if (child == 0) {
        send(p.client, "abc", 3, MSG_MORE);
        kill(getpid(), SIGKILL);
    }
    MUST(close(p.client));
    MUST(waitpid(child, NULL, 0));
    CALL("recv", recv(p.server, buf, 10, MSG_WAITALL));
}

// The reader closes after it has got held bytes: the sender reads the end, not a reset.
CASE(reader_closes_after_held_bytes) {
    struct pair p = pair();
    MUST(send(p.client, "abc", 3, MSG_MORE));
    CALL("recv", recv(p.server, buf, 10, 0));
    MUST(close(p.server));
    say_events("client", wait_events(p.client, POLLRDHUP));
    CALL("end", recv(p.client, buf, 10, 0));
}

// TCP_CORK sends whole segments and holds only the last, partial one.
CASE(more_than_a_segment) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    memset(buf, 'x', sizeof buf);
    CALL("sent", send(p.client, buf, 150000, 0));
    wait_unread(p.server, 65000);
    long n = drain(p.server);
    say("some", "%d", n >= 65000 && n < 150000);
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 0));
    wait_unread(p.server, (int)(150000 - n));
    say("rest", "%d", drain(p.server) == 150000 - n);
}

// MSG_MORE with TCP_CORK: TCP_NODELAY sends what is held, and the cork stays.
CASE(more_beside_cork) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    MUST(send(p.client, "abc", 3, MSG_MORE));
    MUST(send(p.client, "def", 3, 0));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
    MUST(set_int(p.client, IPPROTO_TCP, TCP_NODELAY, 1));
    CALL("flushed", wait_unread(p.server, 6));
    MUST(read(p.server, buf, 6));
    MUST(send(p.client, "ghi", 3, 0));
    rest(30);
    CALL("held", recv(p.server, buf, 10, MSG_DONTWAIT));
}

// An urgent byte sends the bytes that TCP_CORK holds back.
CASE(urgent_does_not_wait) {
    struct pair p = pair();
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    MUST(send(p.client, "abc", 3, 0));
    MUST(send(p.client, "d", 1, MSG_OOB));
    say_events("server", wait_events(p.server, POLLPRI));
    CALL("recv", recv(p.server, buf, 10, MSG_DONTWAIT));
}
