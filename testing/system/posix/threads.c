// Threads and processes: descriptors are closed, shut down, copied and changed while others use them.
#include "conformance.h"
#include <linux/close_range.h>
#include <sched.h>
#define THEME "threads"

static char buf[1000];

struct reader {
    int fd;
    long result;
    int error;
    int flags;
    atomic_int tid;
};
static void *read_one(void *argument) {
    struct reader *r = argument;
    char b[100];
    r->tid = gettid();
    r->result = recv(r->fd, b, 10, r->flags);
    r->error = errno;
    return NULL;
}
static void *accept_one(void *argument) {
    struct reader *r = argument;
    r->tid = gettid();
    r->result = accept(r->fd, NULL, NULL) >= 0 ? 1 : -1;
    r->error = errno;
    return NULL;
}
static pthread_t blocked(struct reader *r, void *(*work)(void *)) {
    pthread_t t;
    pthread_create(&t, NULL, work, r);
    while (r->tid == 0) rest(1);
    wait_asleep(getpid(), r->tid);
    return t;
}
// Joins the thread and prints its result, or prints that it still sleeps after ten seconds.
static void join(const char *key, pthread_t t, struct reader *r) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    if (pthread_timedjoin_np(t, NULL, &end) != 0) return say(key, "sleeps");
    errno = r->error;
    say_result(key, r->result);
}

static void close_under_a_reader(void) {
    struct pair p = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    CALL("close", close(p.client));
    // The reader keeps the socket in use: the connection lives until the read returns.
    CALL("peer_write", send(p.server, "x", 1, MSG_NOSIGNAL));
    join("reader", t, &r);
    CALL("read", read(p.client, buf, 1));
}

// Close while another thread reads: the connection lives until the read returns.
CASE(closed_under_a_reader) { close_under_a_reader(); }

// The same in a process that may have 64 descriptors only.
CASE(closed_under_a_reader_of_64_descriptors) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}));
    close_under_a_reader();
}

static void close_it(void *fd) { close(*(int *)fd); }

// Close while the thread polls the descriptor.
CASE(closed_under_a_poller) {
    struct pair p = pair();
    struct pollfd f = {p.client, POLLIN, 0};
    int fd = p.client;
    pthread_t closing = when_asleep(close_it, &fd);
    CALL("poll", poll(&f, 1, 250));
    pthread_join(closing, NULL);
    CALL("then", poll(&f, 1, 0));
    say_events("events", (unsigned short)f.revents);
}

// SHUT_RD wakes a thread that reads.
CASE(shutdown_wakes_a_reader) {
    struct pair p = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    CALL("shutdown", shutdown(p.client, SHUT_RD));
    join("reader", t, &r);
}

// SHUT_WR does not wake a thread that reads.
CASE(shutdown_write_does_not_wake_a_reader) {
    struct pair p = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    MUST(shutdown(p.client, SHUT_WR));
    rest(50);
    MUST(write(p.server, "x", 1));
    join("reader", t, &r);
}

// Shutdown of a listener wakes a thread in accept.
CASE(shutdown_wakes_accept) {
    int l = listening();
    struct reader r = {.fd = l};
    pthread_t t = blocked(&r, accept_one);
    CALL("shutdown", shutdown(l, SHUT_RD));
    join("accept", t, &r);
}

// Close of a listener while a thread is in accept: it listens until accept returns.
CASE(closed_under_accept) {
    int l = listening();
    int port = port_of(l);
    struct reader r = {.fd = l};
    pthread_t t = blocked(&r, accept_one);
    CALL("close", close(l));
    int c = tcp();
    struct sockaddr_in a = loopback(port);
    // The thread in accept keeps the listener in use, so it still listens.
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    join("accept", t, &r);
}

// O_NONBLOCK does not end a read that has begun.
CASE(nonblock_set_under_a_reader) {
    struct pair p = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    nonblocking(p.client, true);
    rest(80);
    MUST(write(p.server, "x", 1));
    join("reader", t, &r);
    CALL("then", read(p.client, buf, 1));
}

static void *write_much(void *argument) {
    struct reader *r = argument;
    static char much[20000000];
    r->tid = gettid();
    r->result = write(r->fd, much, sizeof much) > 0;
    r->error = errno;
    return NULL;
}

static void *drain_late(void *argument) {
    struct reader *r = argument;
    char b[4096];
    for (ssize_t n; (n = recv(r->fd, b, sizeof b, 0)) > 0;) r->result += n;
    r->error = errno;
    return NULL;
}
static void *write_once(void *argument) {
    struct reader *r = argument;
    static char much[3000000];
    r->tid = gettid();
    r->result = send(r->fd, much, sizeof much, r->flags);
    r->error = errno;
    return NULL;
}
static void close_under_a_writer(const char *key, struct linger linger) {
    struct pair p = pair();
    MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    fill(p.client);
    struct reader w = {.fd = p.client}, r = {.fd = p.server};
    pthread_t writer = blocked(&w, write_once), reader;
    CALL(key, close(p.client));
    CALL("again", close(p.client));
    pthread_create(&reader, NULL, drain_late, &r);
    join("writer", writer, &w);
    pthread_join(reader, NULL);
    say("came", "%s", r.result >= 3000000 ? "all" : "some");
    errno = r.error;
    CALL("then", recv(p.server, buf, 1, 0));
}

// Close while another thread sends: the send goes on to its end, and then the connection ends.
CASE(closed_under_a_writer) {
    close_under_a_writer("close", (struct linger){0, 0});
    close_under_a_writer("linger", (struct linger){1, 1});
}

// Close with SO_LINGER of 0 while another thread sends: the connection is reset when the send has ended.
CASE(reset_under_a_writer) { close_under_a_writer("close", (struct linger){1, 0}); }

static void *write_forever(void *argument) {
    struct reader *r = argument;
    static char much[100000];
    r->tid = gettid();
    while ((r->result = send(r->fd, much, sizeof much, MSG_NOSIGNAL)) > 0) {}
    r->error = errno;
    return NULL;
}

// Close while another thread sends again and again: its next call is EBADF.
CASE(closed_under_one_that_writes_on) {
    struct pair p = pair();
    struct reader w = {.fd = p.client}, r = {.fd = p.server};
    pthread_t writer = blocked(&w, write_forever), reader;
    CALL("close", close(p.client));
    pthread_create(&reader, NULL, drain_late, &r);
    join("writer", writer, &w);
    pthread_join(reader, NULL);
    CALL("then", recv(p.server, buf, 1, 0));
}

// A dup2 over the descriptor that another thread sends on.
CASE(replaced_under_a_writer) {
    struct pair p = pair(), q = pair();
    struct reader w = {.fd = p.client}, r = {.fd = p.server};
    pthread_t writer = blocked(&w, write_forever), reader;
    CALL("dup2", dup2(q.client, p.client) >= 0);
    MUST(shutdown(q.client, SHUT_WR));
    pthread_create(&reader, NULL, drain_late, &r);
    join("writer", writer, &w);
    pthread_join(reader, NULL);
    CALL("then", recv(p.server, buf, 1, 0));
    CALL("new", recv(q.server, buf, 1, 0));
}

static void *with_own_descriptors(void *fd) {
    if (CALL("unshare", unshare(CLONE_FILES)) == 0) MUST(close(*(int *)fd));
    if (CALL("own_range", close_range(5000, 5001, CLOSE_RANGE_UNSHARE)) == 0) close(*(int *)fd);
    return NULL;
}

// A thread gives up the descriptors that it shares with the others and closes its copy of a socket: the others keep theirs.
CASE(a_thread_with_descriptors_of_its_own) {
    struct pair p = pair();
    CALL("alone", unshare(CLONE_FILES));
    CALL("range", close_range(5000, 5001, CLOSE_RANGE_UNSHARE));
    pthread_t t;
    pthread_create(&t, NULL, with_own_descriptors, &p.client);
    pthread_join(t, NULL);
    MUST(write(p.server, "x", 1));
    CALL("read", recv(p.client, buf, 1, 0));
}

// The peer closes while a thread writes.
CASE(closed_by_the_peer_under_a_writer) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, write_much);
    CALL("close", close(p.server));
    join("writer", t, &r);
    CALL("then", write(p.client, "x", 1));
}

// SHUT_WR ends a write of another thread.
CASE(shutdown_under_a_writer) {
    struct pair p = pair();
    signal(SIGPIPE, SIG_IGN);
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, write_much);
    CALL("shutdown", shutdown(p.client, SHUT_WR));
    join("writer", t, &r);
}

// Two threads read one connection; each byte wakes one.
CASE(two_readers_get_one_byte_each) {
    struct pair p = pair();
    struct reader a = {.fd = p.client}, b = {.fd = p.client};
    pthread_t t = blocked(&a, read_one), u = blocked(&b, read_one);
    MUST(write(p.server, "x", 1));
    rest(80);
    MUST(write(p.server, "y", 1));
    join("a", t, &a);
    join("b", u, &b);
}

// A thread reads while another one writes.
CASE(reader_and_writer_at_once) {
    struct pair p = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    CALL("write", write(p.client, "abc", 3));
    CALL("peer", read(p.server, buf, 10));
    MUST(write(p.server, "x", 1));
    join("reader", t, &r);
}

// Two threads in accept get one connection each.
CASE(two_accepters) {
    int l = listening();
    struct reader a = {.fd = l}, b = {.fd = l};
    pthread_t t = blocked(&a, accept_one), u = blocked(&b, accept_one);
    int c = tcp(), d = tcp();
    MUST(connect_to(c, l));
    MUST(connect_to(d, l));
    pthread_join(t, NULL), pthread_join(u, NULL);
    say("accepted", "%d,%d", a.result >= 0, b.result >= 0);
}

// Dup2 puts another connection over a descriptor that a thread reads: the read stays with the old one.
CASE(replaced_by_dup2_under_a_reader) {
    struct pair p = pair(), q = pair();
    struct reader r = {.fd = p.client};
    pthread_t t = blocked(&r, read_one);
    MUST(dup2(q.client, p.client));
    MUST(write(q.server, "new", 3));
    CALL("peer_write", send(p.server, "ab", 2, MSG_NOSIGNAL));
    join("reader", t, &r);
    CALL("new", recv(p.client, buf, 10, 0));
}

// A forked child writes to a connection that it has inherited, and closes it.
CASE(child_inherits) {
    struct pair p = pair();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(write(p.server, "from child", 10) == 10 && close(p.server) == 0 ? 0 : 1);
    }
    MUST(close(p.server));
    int status;
    waitpid(pid, &status, 0);
    say("child", "%d", WEXITSTATUS(status));
    CALL("read", recv(p.client, buf, 10, MSG_WAITALL));
    CALL("end", read(p.client, buf, 1));
}

// A connection ends when the last process that has it ends.
CASE(child_keeps_it_open) {
    struct pair p = pair();
    pid_t pid = fork();
    if (pid == 0) {
        rest(150);
        _exit(0);
    }
    MUST(close(p.server));
    CALL("not_yet", recv(p.client, buf, 1, MSG_DONTWAIT));
    CALL("then", recv(p.client, buf, 1, 0));
    waitpid(pid, NULL, 0);
}

// A forked child accepts on a listener that it has inherited.
CASE(child_accepts) {
    int l = listening(), c = tcp();
    pid_t pid = fork();
    if (pid == 0) {
        int s = accept(l, NULL, NULL);
        _exit(s >= 0 && write(s, "hi", 2) == 2 ? 0 : 1);
    }
    MUST(connect_to(c, l));
    CALL("read", recv(c, buf, 2, MSG_WAITALL));
    int status;
    waitpid(pid, &status, 0);
    say("child", "%d", WEXITSTATUS(status));
    CALL("end", read(c, buf, 1));
}

// Three forked children accept one connection each.
CASE(several_processes_accept) {
    int l = listening();
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            int s = accept(l, NULL, NULL);
            char b;
            _exit(s >= 0 && write(s, "hi", 2) == 2 && read(s, &b, 1) == 1 ? 0 : 1);
        }
    }
    int c[3], ok = 0;
    for (int i = 0; i < 3; i++) c[i] = tcp(), MUST(connect_to(c[i], l));
    for (int i = 0; i < 3; i++) ok += recv(c[i], buf, 2, MSG_WAITALL) == 2;
    for (int i = 0; i < 3; i++) MUST(write(c[i], "x", 1));
    say("served", "%d", ok);
    int status;
    for (int i = 0; i < 3; i++) waitpid(pids[i], &status, 0), CALL("child", WEXITSTATUS(status));
}

// The death of a child closes the connection of which it had the last descriptor.
CASE(killed_child_closes) {
    struct pair p = pair();
    pid_t pid = fork();
    if (pid == 0) {
        rest(10000);
        _exit(0);
    }
    MUST(close(p.server));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CALL("end", recv(p.client, buf, 1, 0));
}
