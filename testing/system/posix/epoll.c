// epoll: level, edge, one shot, nested; what epoll_ctl says.
#include "conformance.h"
#define THEME "epoll"

static char buf[1000];

// A level-triggered socket is reported as long as it has data.
CASE(level) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    wait_one("idle", ep, 0);
    MUST(write(p.server, "ab", 2));
    wait_one("data", ep, 3000);
    wait_one("again", ep, 0);
    MUST(read(p.client, buf, 1));
    wait_one("half", ep, 0);
    MUST(read(p.client, buf, 1));
    wait_one("empty", ep, 0);
}

// An edge-triggered socket is reported once for each arrival of data, and once for the end.
CASE(edge) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLET);
    wait_one("idle", ep, 0);
    MUST(write(p.server, "ab", 2));
    wait_one("data", ep, 3000);
    wait_one("again", ep, 20);
    MUST(read(p.client, buf, 1));
    wait_one("half", ep, 20);
    MUST(write(p.server, "c", 1));
    wait_one("more", ep, 3000);
    wait_one("more_again", ep, 20);
    MUST(close(p.server));
    wait_one("end", ep, 3000);
    wait_one("end_again", ep, 20);
}

// EPOLLOUT by edge comes at first, and when a full connection has room again. Small writes make no edge.
CASE(edge_out) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLOUT | EPOLLET);
    wait_one("first", ep, 3000);
    wait_one("second", ep, 20);
    MUST(write(p.client, "x", 1));
    MUST(read(p.server, buf, 1));
    wait_sent(p.client);
    wait_one("small_writes", ep, 20);
    fill(p.client);
    wait_one("full", ep, 0);
    drain(p.server);
    wait_one("room", ep, 3000);
}

// An edge for reading also shows that the socket is writable.
CASE(edge_in_and_out) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    wait_one("first", ep, 3000);
    wait_one("second", ep, 20);
    MUST(write(p.server, "x", 1));
    wait_one("data", ep, 3000);
    MUST(shutdown(p.server, SHUT_WR));
    wait_one("end", ep, 3000);
    wait_one("end_again", ep, 20);
}

// Data from before EPOLL_CTL_ADD are an edge, and EPOLL_CTL_MOD makes one anew.
CASE(edge_data_before_add) {
    struct pair p = pair();
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    int ep = epoll_of(p.client, EPOLLIN | EPOLLET);
    wait_one("first", ep, 3000);
    wait_one("second", ep, 20);
    CALL("mod", control(ep, EPOLL_CTL_MOD, p.client, EPOLLIN | EPOLLET));
    wait_one("after_mod", ep, 3000);
    wait_one("after_mod2", ep, 20);
}

// Each new connection is an edge of its listener.
CASE(edge_listener) {
    int l = listening(), c[2];
    nonblocking(l, true);
    int ep = epoll_of(l, EPOLLIN | EPOLLET);
    c[0] = tcp(), MUST(connect_to(c[0], l));
    wait_one("one", ep, 3000);
    wait_one("again", ep, 20);
    c[1] = tcp(), MUST(connect_to(c[1], l));
    wait_one("two", ep, 3000);
    CALL("accept", accept(l, NULL, NULL) >= 0);
    CALL("accept2", accept(l, NULL, NULL) >= 0);
    CALL("accept3", accept(l, NULL, NULL));
}

// EPOLLONESHOT reports one event, then not even a hang-up, until EPOLL_CTL_MOD.
CASE(oneshot) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLONESHOT);
    MUST(write(p.server, "a", 1));
    wait_one("first", ep, 3000);
    wait_one("second", ep, 20);
    MUST(write(p.server, "b", 1));
    wait_one("more", ep, 20);
    CALL("mod", control(ep, EPOLL_CTL_MOD, p.client, EPOLLIN | EPOLLONESHOT));
    wait_one("armed", ep, 3000);
    MUST(close(p.server));
    wait_one("hup_is_silent", ep, 30);
}

// EPOLLONESHOT with EPOLLET: EPOLL_CTL_MOD reports the state anew.
CASE(oneshot_edge) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLET | EPOLLONESHOT);
    MUST(write(p.server, "a", 1));
    wait_one("first", ep, 3000);
    CALL("mod", control(ep, EPOLL_CTL_MOD, p.client, EPOLLIN | EPOLLET | EPOLLONESHOT));
    wait_one("second", ep, 3000);
    wait_one("third", ep, 20);
}

// The errors of epoll_ctl and epoll_create.
CASE(control_errors) {
    struct pair p = pair();
    int ep = (int)MUST(epoll_create1(0));
    CALL("mod_first", control(ep, EPOLL_CTL_MOD, p.client, EPOLLIN));
    CALL("del_first", control(ep, EPOLL_CTL_DEL, p.client, EPOLLIN));
    CALL("add", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN));
    CALL("add_again", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN));
    CALL("op", control(ep, 99, p.client, EPOLLIN));
    CALL("bad_fd", control(ep, EPOLL_CTL_ADD, 999, EPOLLIN));
    CALL("bad_ep", control(999, EPOLL_CTL_ADD, p.client, EPOLLIN));
    CALL("no_ep", control(p.server, EPOLL_CTL_ADD, p.client, EPOLLIN));
    CALL("self", control(ep, EPOLL_CTL_ADD, ep, EPOLLIN));
    CALL("del_null", epoll_ctl(ep, EPOLL_CTL_DEL, p.client, NULL));
    CALL("del_again", control(ep, EPOLL_CTL_DEL, p.client, EPOLLIN));
    int file = (int)MUST(open("/dev/null", O_RDWR));
    (void)file;
    int regular = (int)MUST(open("/proc/self/exe", O_RDONLY));
    CALL("regular", control(ep, EPOLL_CTL_ADD, regular, EPOLLIN));
    CALL("create0", epoll_create(0));
    CALL("create_flags", epoll_create1(77));
}

// The errors of epoll_wait and epoll_pwait2.
CASE(wait_errors) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLOUT);
    struct epoll_event e;
    CALL("none", epoll_wait(ep, &e, 0, 0));
    volatile int negative = -1;
    CALL("negative", epoll_wait(ep, &e, negative, 0));
    CALL("bad", epoll_wait(999, &e, 1, 0));
    CALL("socket", epoll_wait(p.client, &e, 1, 0));
    struct timespec t = {0, 1000000000};
    CALL("time", epoll_pwait2(ep, &e, 1, &t, NULL));
    CALL("fine", epoll_wait(ep, &e, 1, 0));
}

// The events of a socket in each state: fresh, connected, urgent, half closed, closed, reset.
CASE(every_state) {
    int ep = (int)MUST(epoll_create1(0)), fd = tcp();
    unsigned all = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP;
    CALL("add", control(ep, EPOLL_CTL_ADD, fd, all));
    wait_one("fresh", ep, 0);
    int l = listening();
    nonblocking(fd, true);
    connect_to(fd, l);
    wait_events(fd, POLLOUT);
    wait_one("connected", ep, 3000);
    int s = (int)MUST(accept(l, NULL, NULL));
    MUST(send(s, "u", 1, MSG_OOB));
    wait_events(fd, POLLPRI);
    wait_one("urgent", ep, 3000);
    MUST(shutdown(s, SHUT_WR));
    wait_events(fd, POLLRDHUP);
    wait_one("end", ep, 3000);
    MUST(shutdown(fd, SHUT_WR));
    wait_one("both", ep, 3000);
    int r = reset_by_peer();
    int ep2 = epoll_of(r, 0);
    wait_one("reset", ep2, 3000);
}

// A connecting socket that is watched by edge is reported once when it is established.
CASE(connecting_edge) {
    int ep = (int)MUST(epoll_create1(0)), fd = tcp(), l = listening();
    nonblocking(fd, true);
    CALL("connect", connect_to(fd, l));
    CALL("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET));
    wait_one("established", ep, 3000);
    wait_one("again", ep, 20);
}

// Sockets that are removed while events are under way. Those events are not reported, and keep no wait awake.
CASE(removed_while_connecting) {
    int ep = (int)MUST(epoll_create1(0)), l = listening();
    nonblocking(l, true);
    MUST(control(ep, EPOLL_CTL_ADD, l, EPOLLIN));
    wait_one("idle", ep, 0);
    for (int i = 0; i < 20; i++) {
        int fd = tcp();
        nonblocking(fd, true);
        connect_to(fd, l);
        MUST(control(ep, EPOLL_CTL_ADD, fd, EPOLLOUT));
        MUST(control(ep, EPOLL_CTL_DEL, l, 0));
        MUST(control(ep, EPOLL_CTL_DEL, fd, 0));
        if (i == 0) wait_one("nothing", ep, 50);
        else MUST(epoll_wait(ep, (struct epoll_event[1]){0}, 1, 1));
        MUST(control(ep, EPOLL_CTL_ADD, l, EPOLLIN));
        wait_events(l, POLLIN);
        MUST(close((int)MUST(accept(l, NULL, NULL))));
        MUST(close(fd));
    }
}

// An edge is reported once, even if its event comes late.
CASE(accepted_edge) {
    int l = listening(), more = 0;
    struct epoll_event e[2];
    for (int i = 0; i < 50; i++) {
        int fd = tcp(), ep = (int)MUST(epoll_create1(0));
        nonblocking(fd, true);
        connect_to(fd, l);
        int server = (int)MUST(accept(l, NULL, NULL));
        wait_events(fd, POLLOUT);
        MUST(control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET));
        MUST(epoll_wait(ep, e, 2, 1000));
        more += (int)MUST(epoll_wait(ep, e, 2, i < 5 ? 20 : 0));
        MUST(close(fd));
        MUST(close(server));
        MUST(close(ep));
    }
    say("edges_too_many", "%d", more);
}

// A refused connect is one edge with all its events.
CASE(refused_edge) {
    int ep = (int)MUST(epoll_create1(0)), fd = tcp(), b = bound(0);
    nonblocking(fd, true);
    MUST(control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    CALL("connect", connect_to(fd, b));
    wait_events(fd, POLLHUP);
    wait_one("refused", ep, 3000);
    wait_one("again", ep, 20);
    CALL("error", get_int(fd, SOL_SOCKET, SO_ERROR));
}

// Closing the only descriptor ends the watch; a new socket with the number is not watched.
CASE(closed_while_watched) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLOUT);
    MUST(close(p.client));
    wait_one("closed", ep, 20);
    CALL("del", control(ep, EPOLL_CTL_DEL, p.client, 0));
    int fd = tcp();
    say("same_number", "%d", fd == p.client);
    CALL("mod", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN));
    CALL("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN));
}

// A watch outlives its descriptor while a copy of that is open, but no call can name it.
CASE(copy_keeps_being_watched) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    int copy = (int)MUST(dup(p.client));
    MUST(close(p.client));
    MUST(write(p.server, "x", 1));
    wait_one("still", ep, 3000);
    CALL("del_copy", control(ep, EPOLL_CTL_DEL, copy, 0));
    CALL("add_copy", control(ep, EPOLL_CTL_ADD, copy, EPOLLIN));
}

// Two descriptors of one socket are watched apart from each other.
CASE(both_descriptors_watched) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    int copy = (int)MUST(dup(p.client));
    struct epoll_event e = {EPOLLIN, {.u64 = 78}}, got[4];
    CALL("add", epoll_ctl(ep, EPOLL_CTL_ADD, copy, &e));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    rest(20);
    CALL("wait", epoll_wait(ep, got, 4, 3000));
    CALL("del", epoll_ctl(ep, EPOLL_CTL_DEL, p.client, NULL));
    CALL("wait_rest", epoll_wait(ep, got, 4, 0));
    say("data", "%lu", (unsigned long)got[0].data.u64);
}

// One socket in two instances, by level and by edge.
CASE(two_instances) {
    struct pair p = pair();
    int a = epoll_of(p.client, EPOLLIN), b = epoll_of(p.client, EPOLLIN | EPOLLET);
    MUST(write(p.server, "x", 1));
    wait_one("a", a, 3000);
    wait_one("b", b, 3000);
    wait_one("a2", a, 0);
    wait_one("b2", b, 20);
}

// With room for one event, ready sockets take turns.
CASE(max_events_rotate) {
    struct pair p = pair(), q = pair();
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 1}}, f = {EPOLLIN, {.u64 = 2}}, got;
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, q.client, &f));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    MUST(write(q.server, "x", 1));
    wait_unread(q.client, 1);
    rest(20);
    unsigned long seen = 0;
    for (int i = 0; i < 4; i++) MUST(epoll_wait(ep, &got, 1, 3000)), seen = seen * 10 + got.data.u64;
    say("order", "%lu", seen);
}

// Events are reported in the order in which they have come.
CASE(order_of_arrival) {
    struct pair p[4];
    int ep = (int)MUST(epoll_create1(0));
    for (int i = 0; i < 4; i++) {
        p[i] = pair();
        struct epoll_event e = {EPOLLIN, {.u64 = (unsigned)i}};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p[i].client, &e));
    }
    static const int order[] = {2, 0, 3, 1};
    struct epoll_event got[8];
    // Waits until the events of the connections' start are over.
    rest(50);
    CALL("idle", epoll_wait(ep, got, 8, 0));
    for (int i = 0; i < 4; i++) MUST(write(p[order[i]].server, "x", 1)), wait_unread(p[order[i]].client, 1), rest(5);
    int n = (int)CALL("wait", epoll_wait(ep, got, 8, 3000));
    for (int i = 0; i < n; i++) say("fd", "%lu", (unsigned long)got[i].data.u64);
}

// An epoll instance in another one shows whether it has events.
CASE(nested) {
    struct pair p = pair();
    int inner = epoll_of(p.client, EPOLLIN), outer = epoll_of(inner, EPOLLIN);
    wait_one("idle", outer, 0);
    MUST(write(p.server, "x", 1));
    wait_one("outer", outer, 3000);
    wait_one("inner", inner, 3000);
    wait_one("outer_again", outer, 0);
    MUST(read(p.client, buf, 1));
    wait_one("empty", outer, 0);
    MUST(close(p.server));
    wait_one("end", outer, 3000);
}

// An inner instance that is watched by edge shows each new event once.
CASE(nested_edge) {
    struct pair p = pair();
    int inner = epoll_of(p.client, EPOLLIN), outer = epoll_of(inner, EPOLLIN | EPOLLET);
    MUST(write(p.server, "x", 1));
    wait_one("outer", outer, 3000);
    wait_one("again", outer, 20);
    MUST(write(p.server, "y", 1));
    wait_one("more", outer, 3000);
}

// Three instances inside each other.
CASE(nested_three) {
    struct pair p = pair();
    int a = epoll_of(p.client, EPOLLIN), b = epoll_of(a, EPOLLIN), c = epoll_of(b, EPOLLIN);
    wait_one("idle", c, 0);
    MUST(write(p.server, "x", 1));
    wait_one("data", c, 3000);
}

// A loop of instances is refused (ELOOP).
CASE(nested_loops) {
    int a = (int)MUST(epoll_create1(0)), b = (int)MUST(epoll_create1(0));
    CALL("ab", control(a, EPOLL_CTL_ADD, b, EPOLLIN));
    CALL("ba", control(b, EPOLL_CTL_ADD, a, EPOLLIN));
    CALL("aa", control(a, EPOLL_CTL_ADD, a, EPOLLIN));
    CALL("del", control(a, EPOLL_CTL_DEL, b, EPOLLIN));
    CALL("ba2", control(b, EPOLL_CTL_ADD, a, EPOLLIN));
}

// A socket that is ready when it is added to an inner instance, and its removal.
CASE(nested_added_later) {
    struct pair p = pair();
    int inner = (int)MUST(epoll_create1(0)), outer = epoll_of(inner, EPOLLIN);
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    wait_one("before", outer, 0);
    MUST(control(inner, EPOLL_CTL_ADD, p.client, EPOLLIN));
    wait_one("added", outer, 3000);
    MUST(control(inner, EPOLL_CTL_DEL, p.client, 0));
    wait_one("taken_out", outer, 0);
}

// Poll and select on an epoll descriptor.
CASE(polled) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    struct pollfd f = {ep, POLLIN | POLLOUT, 0};
    CALL("idle", poll(&f, 1, 0));
    MUST(write(p.server, "x", 1));
    CALL("data", poll(&f, 1, 3000));
    say_events("events", (unsigned short)f.revents);
    fd_set r;
    FD_ZERO(&r); FD_SET(ep, &r);
    CALL("select", select(ep + 1, &r, NULL, NULL, &(struct timeval){3, 0}));
    MUST(read(p.client, buf, 1));
    CALL("empty", poll(&f, 1, 0));
}

// One instance watches a socket and an eventfd.
CASE(mixed_with_eventfd) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN), ev = eventfd(0, 0);
    struct epoll_event e = {EPOLLIN, {.u64 = 5}}, got[4];
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e));
    CALL("idle", epoll_wait(ep, got, 4, 0));
    MUST(write(ev, &(uint64_t){1}, 8));
    CALL("eventfd", epoll_wait(ep, got, 4, 3000));
    say("data", "%lu", (unsigned long)got[0].data.u64);
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    rest(20);
    CALL("both", epoll_wait(ep, got, 4, 3000));
}

// EPOLLWAKEUP and unknown bits are ignored; EPOLLRDNORM works; no bits at all report nothing.
CASE(wakeup_and_unknown_bits) {
    struct pair p = pair();
    int ep = (int)MUST(epoll_create1(0));
    CALL("wakeup", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN | EPOLLWAKEUP));
    CALL("unknown", control(ep, EPOLL_CTL_MOD, p.client, EPOLLIN | (1u << 26)));
    MUST(write(p.server, "x", 1));
    wait_one("wait", ep, 3000);
    CALL("norm", control(ep, EPOLL_CTL_MOD, p.client, EPOLLRDNORM | EPOLLRDBAND));
    wait_one("rdnorm", ep, 3000);
    CALL("none", control(ep, EPOLL_CTL_MOD, p.client, 0));
    wait_one("nothing", ep, 20);
}

// The program's own SHUT_WR reports nothing. Both ends closed is an edge with EPOLLHUP.
CASE(half_closed_edge) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN | EPOLLRDHUP | EPOLLET);
    MUST(shutdown(p.client, SHUT_WR));
    wait_one("own_shutdown", ep, 20);
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLHUP);
    wait_one("hup", ep, 3000);
}

static void *sleeps_in_epoll(void *ep) {
    struct epoll_event e = {0};
    int n = epoll_wait((int)(long)ep, &e, 1, 20000);
    return (void *)(long)(n == 1 && e.data.u64 == 77 ? (long)e.events : -1);
}

// A thread sleeps in epoll_wait before the process has its first connection. It wakes for that one's data.
CASE(asleep_before_the_first_socket) {
    int ep = (int)MUST(epoll_create1(0));
    pthread_t thread;
    void *seen;
    pthread_create(&thread, NULL, sleeps_in_epoll, (void *)(long)ep);
    // Long enough for the thread to sleep. If it does not sleep yet, the case is easier but not wrong.
    usleep(200000);
    struct pair p = pair();
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 77};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    MUST(write(p.server, "x", 1));
    pthread_join(thread, &seen);
    say("seen", "%ld", (long)seen);
}
