// Urgent data: MSG_OOB, the urgent mark, SO_OOBINLINE.
#include "conformance.h"
#define THEME "urgent"

static char buf[100];

static void setup(struct pair *p) {
    *p = pair();
    MUST(write(p->server, "abc", 3));
    MUST(send(p->server, "U", 1, MSG_OOB));
    wait_events(p->client, POLLPRI);
    MUST(write(p->server, "def", 3));
    for (int i = 0; i < 1000 && recv(p->client, buf, 10, MSG_PEEK) < 3; i++) rest(1);
    rest(30);
}

// The urgent byte is out of the stream: reads stop at the mark, and MSG_OOB gives it once.
CASE(apart) {
    struct pair p;
    setup(&p);
    say_events("events", events_of(p.client));
    CALL("mark", sockatmark(p.client));
    CALL("read", recv(p.client, buf, 10, 0));
    CALL("mark2", sockatmark(p.client));
    CALL("oob", recv(p.client, buf, 10, MSG_OOB));
    say_bytes("byte", buf, 1);
    CALL("oob_again", recv(p.client, buf, 10, MSG_OOB));
    say_events("then", events_of(p.client));
    CALL("rest", recv(p.client, buf, 10, 0));
    say_bytes("bytes", buf, 3);
    CALL("mark3", sockatmark(p.client));
}

// With SO_OOBINLINE the urgent byte is in the stream.
CASE(in_line) {
    struct pair p;
    setup(&p);
    MUST(set_int(p.client, SOL_SOCKET, SO_OOBINLINE, 1));
    CALL("oob", recv(p.client, buf, 10, MSG_OOB));
    CALL("read", recv(p.client, buf, 10, 0));
    CALL("mark", sockatmark(p.client));
    CALL("rest", recv(p.client, buf, 10, 0));
    say_bytes("bytes", buf, 4);
}

// An urgent byte that a read has passed is lost.
CASE(passed) {
    struct pair p;
    setup(&p);
    CALL("one", recv(p.client, buf, 3, 0));
    CALL("two", recv(p.client, buf, 3, 0));
    CALL("oob", recv(p.client, buf, 1, MSG_OOB));
    say_events("events", events_of(p.client));
}

// Recvmsg with MSG_OOB, MSG_PEEK and MSG_TRUNC; MSG_WAITALL stops at the mark.
CASE(peeked_message) {
    struct pair p;
    setup(&p);
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    CALL("peek", recvmsg(p.client, &m, MSG_OOB | MSG_PEEK));
    say("flags", "%x", m.msg_flags);
    CALL("take", recvmsg(p.client, &m, MSG_OOB));
    say("flags2", "%x", m.msg_flags);
    CALL("waitall_stops", recv(p.client, buf, 6, MSG_WAITALL));
    CALL("trunc", recv(p.client, buf, 1, MSG_OOB | MSG_TRUNC));
    CALL("zero", recv(p.client, buf, 0, MSG_OOB));
}

// A second urgent byte replaces one that was not read, which is then in the stream.
CASE(newer_replaces_older) {
    struct pair p;
    setup(&p);
    MUST(send(p.server, "V", 1, MSG_OOB));
    for (int i = 0; i < 1000; i++) {
        if (recv(p.client, buf, 1, MSG_OOB | MSG_PEEK) == 1 && buf[0] == 'V') break;
        rest(1);
    }
    CALL("oob", recv(p.client, buf, 1, MSG_OOB));
    say_bytes("byte", buf, 1);
    CALL("read", recv(p.client, buf, 20, 0));
    say_bytes("bytes", buf, 7);
}

// An urgent byte is exceptional for select, and an edge for EPOLLPRI.
CASE(selected) {
    struct pair p;
    setup(&p);
    fd_set x;
    FD_ZERO(&x); FD_SET(p.client, &x);
    CALL("select", select(p.client + 1, NULL, NULL, &x, &(struct timeval){1, 0}));
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLPRI | EPOLLET, {0}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    CALL("epoll", epoll_wait(ep, &e, 1, 1000));
    say_events("events", e.events);
    CALL("again", epoll_wait(ep, &e, 1, 20));
}

// MSG_OOB after the end of the stream and on a socket that has not connected.
CASE(closed_and_unconnected) {
    struct pair p = pair();
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    CALL("ended", recv(p.client, buf, 1, MSG_OOB));
    CALL("send_shut", send(p.server, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    int fd = tcp();
    CALL("unconnected", send(fd, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    CALL("mark", sockatmark(fd));
}
