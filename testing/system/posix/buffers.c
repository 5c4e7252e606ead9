// SO_SNDBUF and SO_RCVBUF: how much a connection takes at once. Sizes may differ from Linux's by a factor of two, so a case
// prints only their magnitude.
#include "conformance.h"
#define THEME "buffers"

enum { SMALL = 4096 };

static int listener_of(int receive) {
    int s = tcp();
    if (receive) MUST(set_int(s, SOL_SOCKET, SO_RCVBUF, receive));
    struct sockaddr_in any = loopback(0);
    MUST(bind(s, (void *)&any, sizeof any));
    MUST(listen(s, 8));
    return s;
}

// A pair whose client and listener have set these sizes before the connection; 0 = not set.
static struct pair sized(int send, int receive) {
    struct pair p = {.listener = listener_of(receive), .client = tcp()};
    if (send) MUST(set_int(p.client, SOL_SOCKET, SO_SNDBUF, send));
    MUST(connect_to(p.client, p.listener));
    p.server = MUST(accept(p.listener, NULL, NULL));
    return p;
}

// Sends until the connection takes no more. Returns the number of bytes.
static long filled(int fd) {
    static char much[65536];
    long sum = 0;
    for (int quiet = 0; quiet < 3;) {
        ssize_t n = send(fd, much, sizeof much, MSG_DONTWAIT);
        if (n > 0) {
            sum += n;
            quiet = 0;
        } else {
            quiet++;
            usleep(20000);
        }
        if (sum > 16 << 20) break;
    }
    return sum;
}

static void say_size(const char *key, long bytes) {
    say(key, "%s", bytes < 2048 ? "tiny" : bytes < 40000 ? "small" : bytes < 262144 ? "medium" : "large");
}

static long drained(int fd, long most) {
    static char much[4096];
    long sum = 0;
    while (sum < most) {
        ssize_t n = recv(fd, much, most - sum < (long)sizeof much ? (size_t)(most - sum) : sizeof much, 0);
        if (n <= 0) break;
        sum += n;
    }
    return sum;
}

static void fill_and_drain(struct pair p) {
    long sent = filled(p.client);
    say_size("sent", sent);
    say_events("full", events_of(p.client) & POLLOUT);
    say("arrived", "%d", drained(p.server, sent) == sent);
    say_events("empty", wait_events(p.client, POLLOUT) & POLLOUT);
    long again = filled(p.client);
    say("again", "%d", again > sent / 4 && again < 4 * sent);
}

// Small buffers on both sides, set before the connection: they fill, drain, and fill again.
CASE(both_small_before) { fill_and_drain(sized(SMALL, SMALL)); }

// The least buffers that can be had.
CASE(both_least) {
    struct pair p = sized(1, 1);
    say("sent", "%d", filled(p.client) < 16384);
}

// A small send buffer: the connection still takes what the receiver has room for.
CASE(send_small_before) {
    // Most of it is what the receiver takes: on Linux 80 to 130 KB.
    say("sent", "%s", filled(sized(SMALL, 0).client) < 163840 ? "usual" : "more");
}

// A small send buffer and a medium receive buffer.
CASE(receive_medium_before) {
    long sent = filled(sized(SMALL, 65536).client);
    say_size("sent", sent);
}

// Small buffers that are set after the connection is made.
CASE(both_small_after) {
    struct pair p = pair();
    MUST(set_int(p.client, SOL_SOCKET, SO_SNDBUF, SMALL));
    MUST(set_int(p.server, SOL_SOCKET, SO_RCVBUF, SMALL));
    long sent = filled(p.client);
    // Linux has announced a larger window by then.
    say("sent", "%d", sent < 262144);
    say("arrived", "%d", drained(p.server, sent) == sent);
}

// An accepted connection has the buffer sizes of its listener.
CASE(inherited_by_what_is_accepted) {
    struct pair p = sized(0, SMALL);
    CALL("receive", get_int(p.server, SOL_SOCKET, SO_RCVBUF));
    MUST(set_int(p.listener, SOL_SOCKET, SO_SNDBUF, SMALL));
    int client = tcp();
    MUST(set_int(client, SOL_SOCKET, SO_RCVBUF, SMALL));
    MUST(connect_to(client, p.listener));
    int server = MUST(accept(p.listener, NULL, NULL));
    CALL("send", get_int(server, SOL_SOCKET, SO_SNDBUF));
    say_size("sent", filled(server));
}

// Data that are sent before the connection is accepted fill the buffers and all arrive.
CASE(before_it_is_accepted) {
    int listener = listener_of(SMALL), client = tcp();
    MUST(set_int(client, SOL_SOCKET, SO_SNDBUF, SMALL));
    MUST(connect_to(client, listener));
    long sent = filled(client);
    say_size("sent", sent);
    int server = MUST(accept(listener, NULL, NULL));
    say("arrived", "%d", drained(server, sent) == sent);
}

// A larger SO_SNDBUF makes a full connection writable again.
CASE(more_room_when_asked_for) {
    struct pair p = sized(SMALL, SMALL);
    long sent = filled(p.client);
    MUST(set_int(p.client, SOL_SOCKET, SO_SNDBUF, 65536));
    say_events("now", wait_events(p.client, POLLOUT) & POLLOUT);
    say("more", "%d", filled(p.client) > sent);
}

static void *send_one(void *arg) {
    atomic_long *work = arg;
    work[1] = gettid();
    work[2] = send((int)work[0], "x", 1, 0);
    return NULL;
}
static void grow(const char *key, int name, struct pair p) {
    atomic_long work[3] = {p.client, 0, 0};
    fill(p.client);
    pthread_t thread;
    struct timespec end;
    pthread_create(&thread, NULL, send_one, work);
    while (work[1] == 0) rest(1);
    wait_asleep(getpid(), (pid_t)work[1]);
    say(key, "%ld", work[2]);
    CALL("set", set_int(p.client, SOL_SOCKET, name, 200000));
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 5;
    if (pthread_timedjoin_np(thread, NULL, &end) != 0) return say("then", "sleeps");
    say("then", "%ld", work[2]);
}

// A larger SO_SNDBUF lets a sender go that sleeps for room.
CASE(a_sleeping_sender_goes_when_there_is_more_room) {
    grow("one", SO_SNDBUF, sized(SMALL, SMALL));
    grow("force", SO_SNDBUFFORCE, sized(SMALL, SMALL));
    struct pair p = pair();
    MUST(set_int(p.client, SOL_SOCKET, SO_SNDBUF, SMALL));
    MUST(set_int(p.server, SOL_SOCKET, SO_RCVBUF, SMALL));
    grow("after", SO_SNDBUF, p);
}

static void *reader(void *arg) {
    long *work = arg;
    work[1] = drained((int)work[0], work[2]);
    return NULL;
}

// A blocking send of much data through small buffers.
CASE(blocking_through_small_ones) {
    struct pair p = sized(SMALL, SMALL);
    long work[3] = {p.server, 0, 600000};
    static char much[600000];
    pthread_t thread;
    pthread_create(&thread, NULL, reader, work);
    CALL("send", send(p.client, much, sizeof much, 0));
    pthread_join(thread, NULL);
    say("got", "%ld", work[1]);
}

// TCP_CORK with small buffers: no byte waits for room that never comes.
CASE(corked_through_small_ones) {
    struct pair p = sized(SMALL, SMALL);
    MUST(set_int(p.client, IPPROTO_TCP, TCP_CORK, 1));
    long work[3] = {p.server, 0, 60000};
    static char much[60000];
    pthread_t thread;
    pthread_create(&thread, NULL, reader, work);
    CALL("send", send(p.client, much, sizeof much, 0));
    pthread_join(thread, NULL);
    say("got", "%ld", work[1]);
}

// EPOLLOUT by edge when a full connection with small buffers is drained.
CASE(epoll_edge_when_there_is_room) {
    struct pair p = sized(SMALL, SMALL);
    int e = MUST(epoll_create1(0));
    struct epoll_event ev = {.events = EPOLLOUT | EPOLLET}, out;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, p.client, &ev));
    CALL("first", epoll_wait(e, &out, 1, 1000));
    long sent = filled(p.client), more;
    int none;
    // A stack on a busy machine may make room only now. An edge without room is wrong.
    while ((none = epoll_wait(e, &out, 1, 20)) == 1 && (more = filled(p.client)) > 0) sent += more;
    CALL("none", none);
    drained(p.server, sent);
    CALL("room", epoll_wait(e, &out, 1, 3000));
}
