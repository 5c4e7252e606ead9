// epoll: which of several threads wake, changes while a thread waits, copies of an instance.
#include "conformance.h"
#define THEME "epoll"

// Where EPOLLEXCLUSIVE is allowed; without sleepers both instances see the connection.
CASE(exclusive) {
    int l = listening(), ep = (int)MUST(epoll_create1(0)), ep2 = (int)MUST(epoll_create1(0));
    CALL("add", control(ep, EPOLL_CTL_ADD, l, EPOLLIN | EPOLLEXCLUSIVE));
    CALL("add2", control(ep2, EPOLL_CTL_ADD, l, EPOLLIN | EPOLLEXCLUSIVE));
    CALL("mod", control(ep, EPOLL_CTL_MOD, l, EPOLLIN));
    CALL("mod_exclusive", control(ep, EPOLL_CTL_MOD, l, EPOLLIN | EPOLLEXCLUSIVE));
    int c = tcp();
    MUST(connect_to(c, l));
    // The waits come after the connection: if one instance had a sleeper, the other would not be notified.
    wait_events(l, POLLIN);
    wait_one("ready", ep, 3000);
    wait_one("ready2", ep2, 3000);
    CALL("del", control(ep, EPOLL_CTL_DEL, l, 0));
    struct pair p = pair();
    CALL("oneshot", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
    CALL("rdhup", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP));
    CALL("edge", control(ep, EPOLL_CTL_ADD, p.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET));
    CALL("nested", control(ep, EPOLL_CTL_ADD, ep2, EPOLLIN | EPOLLEXCLUSIVE));
}

struct waiter {
    int ep;
    int found;
    atomic_int tid;
};
static void *wait_in_thread(void *argument) {
    struct waiter *w = argument;
    struct epoll_event e[4];
    w->tid = gettid();
    w->found = epoll_wait(w->ep, e, 4, 1500);
    return NULL;
}

// How many of several threads that sleep on `watched` wake for one event.
static void many_threads(const char *key, int watched, unsigned events, bool one_instance, void (*cause)(void *), void *argument) {
    enum { THREADS = 4 };
    struct waiter w[THREADS];
    pthread_t t[THREADS];
    int shared = one_instance ? epoll_of(watched, events) : 0;
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct waiter){one_instance ? shared : epoll_of(watched, events), -1, 0};
        pthread_create(&t[i], NULL, wait_in_thread, &w[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        while (w[i].tid == 0) rest(1);
        wait_asleep(getpid(), w[i].tid);
    }
    cause(argument);
    int woken = 0;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL), woken += w[i].found > 0;
    say(key, "%s", woken == 0 ? "none" : woken == 1 ? "one" : woken == THREADS ? "all" : "some");
}
static void write_one(void *fd) { MUST(write(*(int *)fd, "x", 1)); }
static void connect_one(void *fd) { MUST(connect_to(tcp(), *(int *)fd)); }

// Threads on one instance, by edge: one wakes.
CASE(threads_edge_on_one_instance) {
    struct pair p = pair();
    many_threads("woken", p.client, EPOLLIN | EPOLLET, true, write_one, &p.server);
}
// Threads on one instance, with EPOLLONESHOT: one wakes.
CASE(threads_oneshot_on_one_instance) {
    struct pair p = pair();
    many_threads("woken", p.client, EPOLLIN | EPOLLONESHOT, true, write_one, &p.server);
}
// Threads with an instance each: all wake.
CASE(threads_each_with_an_instance) {
    struct pair p = pair();
    many_threads("woken", p.client, EPOLLIN, false, write_one, &p.server);
}
// Threads with an instance each, with EPOLLEXCLUSIVE on a listener: how many wake.
CASE(threads_exclusive) {
    int l = listening();
    many_threads("woken", l, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, false, connect_one, &l);
}

static void write_twice(void *fd) {
    write_one(fd);
    rest(100);
    write_one(fd);
}
static void end_one(void *fd) { MUST(shutdown(*(int *)fd, SHUT_WR)); }

// EPOLLEXCLUSIVE on a connection: Linux wakes one thread for data, and all for the end.
CASE(threads_exclusive_on_a_connection) {
    unsigned how[] = {EPOLLIN, EPOLLIN | EPOLLET};
    for (int i = 0; i < 2; i++) {
        struct pair p = pair(), q = pair(), r = pair();
        many_threads("data", p.client, how[i] | EPOLLEXCLUSIVE, false, write_one, &p.server);
        many_threads("twice", q.client, how[i] | EPOLLEXCLUSIVE, false, write_twice, &q.server);
        many_threads("end", r.client, how[i] | EPOLLEXCLUSIVE, false, end_one, &r.server);
    }
}

struct adder {
    int ep, fd;
};
static void add_it(void *argument) {
    struct adder *a = argument;
    MUST(control(a->ep, EPOLL_CTL_ADD, a->fd, EPOLLIN | EPOLLOUT));
}
static void modify_it(void *argument) {
    struct adder *a = argument;
    MUST(control(a->ep, EPOLL_CTL_MOD, a->fd, EPOLLIN | EPOLLOUT));
}

// A socket that is added while a thread waits ends the wait.
CASE(added_while_waiting) {
    struct pair p = pair();
    int ep = (int)MUST(epoll_create1(0));
    struct adder a = {ep, p.client};
    when_asleep(add_it, &a);
    wait_one("wait", ep, 3000);
}

// A changed interest ends a wait.
CASE(modified_while_waiting) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    struct adder a = {ep, p.client};
    when_asleep(modify_it, &a);
    wait_one("wait", ep, 3000);
}

static void close_it(void *fd) { close(*(int *)fd); }

// Closing a watched socket does not end a wait.
CASE(socket_closed_while_waiting) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    pthread_t closing = when_asleep(close_it, &p.client);
    wait_one("wait", ep, 250);
    pthread_join(closing, NULL);
}

// Closing the instance does not end a wait; the next wait is EBADF.
CASE(instance_closed_while_waiting) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    int fd = ep;
    pthread_t closing = when_asleep(close_it, &fd);
    wait_one("wait", ep, 250);
    pthread_join(closing, NULL);
    struct epoll_event e;
    CALL("then", epoll_wait(ep, &e, 1, 0));
}

// A copy of an epoll descriptor is the same instance.
CASE(descriptor_copied) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN), copy = (int)MUST(dup(ep));
    MUST(write(p.server, "x", 1));
    wait_one("copy", copy, 3000);
    MUST(close(ep));
    wait_one("after_close", copy, 3000);
    CALL("del", control(copy, EPOLL_CTL_DEL, p.client, 0));
    wait_one("deleted", copy, 20);
}

// A forked child and its parent both see an event in the instance that they share.
CASE(forked_child_sees_it) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN);
    pid_t pid = fork();
    if (pid == 0) {
        wait_one("child", ep, 3000);
        _exit(0);
    }
    MUST(write(p.server, "x", 1));
    waitpid(pid, NULL, 0);
    wait_one("parent", ep, 3000);
}

// The number of descriptors that an epoll descriptor watches according to the kernel.
static int watched(int ep) {
    char path[64], line[256];
    int count = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", ep);
    FILE *info = fopen(path, "r");
    if (!info)
        return -1;
    while (fgets(line, sizeof line, info))
        count += !strncmp(line, "tfd:", 4);
    fclose(info);
    return count;
}

// A forked child closes the instance; the parent's goes on unchanged.
CASE(forked_child_closes_it) {
    struct pair p = pair();
    int ep = epoll_of(p.client, EPOLLIN), before = watched(ep);
    pid_t pid = fork();
    if (pid == 0) {
        MUST(close(ep));
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    say("unchanged", "%d", watched(ep) == before && before > 0);
    MUST(write(p.server, "x", 1));
    wait_one("parent", ep, 3000);
}
