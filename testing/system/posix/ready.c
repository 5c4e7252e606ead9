// poll, ppoll, select, pselect: events in every state, time limits, sockets beside other descriptors.
#include "conformance.h"
#define THEME "ready"

static char buf[1000];

static int poll_one(int fd, short events, int ms, unsigned *revents) {
    struct pollfd p = {fd, events, 0x7fff};
    int n = poll(&p, 1, ms);
    *revents = (unsigned short)p.revents;
    return n;
}

// The events of a fresh socket.
CASE(fresh) { say_events("events", events_of(tcp())); }
// The events of a bound socket.
CASE(bound) { say_events("events", events_of(bound(0))); }
// The events of a listener, without and with a connection to accept.
CASE(listening) {
    int l = listening();
    say_events("events", events_of(l));
    int c = tcp();
    MUST(connect_to(c, l));
    say_events("waiting", wait_events(l, POLLIN));
    MUST(accept(l, NULL, NULL));
    say_events("accepted", events_of(l));
}

// The events of a connected socket, without and with data.
CASE(connected) {
    struct pair p = pair();
    say_events("idle", events_of(p.client));
    MUST(write(p.server, "x", 1));
    say_events("data", wait_events(p.client, POLLIN));
    MUST(read(p.client, buf, 1));
    say_events("read", events_of(p.client));
}

// Poll reports only what it is asked for, and POLLERR and POLLHUP always.
CASE(only_what_is_asked_for) {
    struct pair p = pair();
    unsigned e;
    MUST(write(p.server, "x", 1));
    wait_events(p.client, POLLIN);
    CALL("none", poll_one(p.client, 0, 0, &e));
    say_events("e0", e);
    CALL("out", poll_one(p.client, POLLOUT, 0, &e));
    say_events("e1", e);
    CALL("pri", poll_one(p.client, POLLPRI, 0, &e));
    MUST(shutdown(p.client, SHUT_WR));
    MUST(close(p.server));
    wait_events(p.client, POLLHUP);
    CALL("hup", poll_one(p.client, 0, 0, &e));
    say_events("e2", e);
}

// POLLNVAL for closed descriptors; negative ones are ignored.
CASE(bad_descriptor) {
    unsigned e;
    CALL("bad", poll_one(999, POLLIN, 0, &e));
    say_events("nval", e);
    CALL("negative", poll_one(-1, POLLIN, 0, &e));
    say_events("ignored", e);
    struct pair p = pair();
    MUST(close(p.client));
    CALL("closed", poll_one(p.client, POLLIN, 0, &e));
    say_events("closed_nval", e);
    struct pollfd two[] = {{p.server, POLLOUT, 0}, {999, POLLIN, 0}};
    CALL("mixed", poll(two, 2, 1000));
    say_events("mixed1", (unsigned short)two[1].revents);
}

// One descriptor several times in an array.
CASE(same_twice) {
    struct pair p = pair();
    struct pollfd two[] = {{p.client, POLLOUT, 0}, {p.client, POLLIN, 0}, {p.client, POLLOUT | POLLIN, 0}};
    CALL("poll", poll(two, 3, 0));
    say("revents", "%x,%x,%x", two[0].revents, two[1].revents, two[2].revents);
}

// The times of poll and ppoll: kept, wrong, negative.
CASE(timeouts) {
    struct pair p = pair();
    unsigned e;
    long start = now_ms();
    CALL("poll", poll_one(p.client, POLLIN, 50, &e));
    say("long_enough", "%d", now_ms() - start >= 50);
    struct timespec t = {0, 30000000};
    struct pollfd one = {p.client, POLLIN, 0};
    CALL("ppoll", ppoll(&one, 1, &t, NULL));
    say("kept", "%ld", t.tv_nsec);
    t.tv_nsec = -1;
    CALL("ppoll_bad", ppoll(&one, 1, &t, NULL));
    t = (struct timespec){-1, 0};
    CALL("ppoll_negative", ppoll(&one, 1, &t, NULL));
    CALL("poll_none", poll(NULL, 0, 10));
    CALL("poll_minus2", poll_one(p.client, POLLOUT, -2, &e));
    CALL("poll_null", poll(NULL, 1, 0));
}

// Poll over a socket and a pipe.
CASE(mixed_with_pipe) {
    struct pair p = pair();
    int ends[2];
    MUST(pipe(ends));
    struct pollfd f[] = {{ends[0], POLLIN, 0}, {p.client, POLLIN, 0}};
    CALL("nothing", poll(f, 2, 10));
    MUST(write(ends[1], "x", 1));
    CALL("pipe", poll(f, 2, 1000));
    say("which", "%x,%x", f[0].revents, f[1].revents);
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("both", poll(f, 2, 1000));
    say("which2", "%x,%x", f[0].revents, f[1].revents);
    MUST(read(ends[0], buf, 1));
    CALL("socket", poll(f, 2, 1000));
    say("which3", "%x,%x", f[0].revents, f[1].revents);
}

static int set_of(fd_set *set, int fd) {
    FD_ZERO(set);
    FD_SET(fd, set);
    return fd + 1;
}

// Select on a socket that is idle, has data, has an urgent byte, has ended.
CASE(select_states) {
    struct pair p = pair();
    fd_set r, w, x;
    struct timeval t = {0, 0};
    int n = set_of(&r, p.client);
    set_of(&w, p.client), set_of(&x, p.client);
    CALL("idle", select(n, &r, &w, &x, &t));
    say("sets", "%d%d%d", FD_ISSET(p.client, &r), FD_ISSET(p.client, &w), FD_ISSET(p.client, &x));
    MUST(write(p.server, "x", 1));
    set_of(&r, p.client);
    CALL("data", select(n, &r, NULL, NULL, NULL));
    MUST(send(p.server, "y", 1, MSG_OOB));
    set_of(&x, p.client);
    t.tv_sec = 5;
    CALL("urgent", select(n, NULL, NULL, &x, &t));
    MUST(close(p.server));
    wait_events(p.client, POLLRDHUP);
    set_of(&r, p.client), set_of(&w, p.client), set_of(&x, p.client);
    t = (struct timeval){0, 0};
    CALL("ended", select(n, &r, &w, &x, &t));
    say("sets2", "%d%d%d", FD_ISSET(p.client, &r), FD_ISSET(p.client, &w), FD_ISSET(p.client, &x));
}

// Select on a socket that was reset.
CASE(select_error_state) {
    int fd = reset_by_peer();
    fd_set r, w, x;
    struct timeval t = {0, 0};
    int n = set_of(&r, fd);
    set_of(&w, fd), set_of(&x, fd);
    CALL("reset", select(n, &r, &w, &x, &t));
    say("sets", "%d%d%d", FD_ISSET(fd, &r), FD_ISSET(fd, &w), FD_ISSET(fd, &x));
}

// The errors of select: negative counts and times, closed descriptors.
CASE(select_wrong) {
    struct pair p = pair();
    fd_set r;
    struct timeval t = {0, 0};
    int n = set_of(&r, p.client);
    CALL("negative", select(-1, &r, NULL, NULL, &t));
    t = (struct timeval){-1, 0};
    CALL("negative_time", select(n, &r, NULL, NULL, &t));
    t = (struct timeval){0, 5000000};
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("much_us", select(n, &r, NULL, NULL, &t));
    MUST(close(p.client));
    set_of(&r, p.client);
    t = (struct timeval){0, 0};
    CALL("closed", select(n, &r, NULL, NULL, &t));
    FD_SET(p.server, &r);
    CALL("closed_and_open", select(p.server + 1 > n ? p.server + 1 : n, &r, NULL, NULL, &t));
    CALL("time_only", select(0, NULL, NULL, NULL, &t));
}

// Select stores the time that is left; pselect keeps its time.
CASE(select_leaves_the_rest_of_the_time) {
    struct pair p = pair();
    fd_set r;
    int n = set_of(&r, p.client);
    struct timeval t = {0, 30000};
    CALL("over", select(n, &r, NULL, NULL, &t));
    say("left", "%ld.%06ld set=%d", t.tv_sec, t.tv_usec, FD_ISSET(p.client, &r));
    struct timespec s = {0, 30000000};
    set_of(&r, p.client);
    CALL("pselect", pselect(n, &r, NULL, NULL, &s, NULL));
    say("kept", "%ld", s.tv_nsec);
}

// POLLOUT of a full connection, and when it is drained.
CASE(send_room) {
    struct pair p = pair();
    fill(p.client);
    say_events("full", events_of(p.client));
    unsigned e;
    CALL("waits", poll_one(p.client, POLLOUT, 20, &e));
    drain(p.server);
    say_events("drained", wait_events(p.client, POLLOUT));
}

// POLLIN and POLLRDHUP with data before the end, and after they were read.
CASE(end_and_data) {
    struct pair p = pair();
    MUST(write(p.server, "abc", 3));
    MUST(shutdown(p.server, SHUT_WR));
    say_events("both", wait_events(p.client, POLLRDHUP));
    MUST(read(p.client, buf, 10));
    say_events("end", events_of(p.client));
    MUST(read(p.client, buf, 10));
    say_events("seen", events_of(p.client));
}

static void write_one(void *fd) { MUST(write(*(int *)fd, "x", 1)); }
static void close_it(void *fd) { close(*(int *)fd); }
static void shut_read(void *fd) { shutdown(*(int *)fd, SHUT_RD); }

// A sleeping poll wakes for data, for the end, and when a listener is shut down.
CASE(sleepers_wake) {
    struct pair p = pair();
    unsigned e;
    when_asleep(write_one, &p.server);
    CALL("data", poll_one(p.client, POLLIN, 5000, &e));
    say_events("e0", e);
    MUST(read(p.client, buf, 1));
    when_asleep(close_it, &p.server);
    CALL("end", poll_one(p.client, POLLIN | POLLRDHUP, 5000, &e));
    say_events("e1", e);
    when_asleep(shut_read, &p.listener);
    CALL("listener", poll_one(p.listener, POLLIN, 5000, &e));
    say_events("e2", e);
}

// Shutdown by the same program wakes its sleeping poll.
CASE(own_shutdown_wakes_poll) {
    struct pair p = pair();
    unsigned e;
    when_asleep(shut_read, &p.client);
    CALL("poll", poll_one(p.client, POLLIN, 5000, &e));
    say_events("events", e);
}

// Poll over many entries, half of them ignored.
CASE(many) {
    struct pair p = pair();
    static struct pollfd f[300];
    for (int i = 0; i < 300; i++) f[i] = (struct pollfd){i % 2 ? p.client : -1, POLLIN, 0};
    CALL("none", poll(f, 300, 0));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("half", poll(f, 300, 1000));
    for (int i = 0; i < 300; i++) f[i] = (struct pollfd){-1, POLLIN, 0};
    CALL("ignored", poll(f, 300, 0));
}
