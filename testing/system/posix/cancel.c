// Cancellation (pthread_cancel) of threads in calls on sockets: while they sleep, and before.
#define THEME "cancel"
#include "conformance.h"

static char buf[100];
static struct pair p;
static int ep, listener;
static atomic_int cleaned, begun, tid;

static void clean(void *nothing) {
    (void)nothing;
    cleaned++;
}

static void in_recv(void) { recv(p.server, buf, 1, 0); }
static void in_read(void) { read(p.server, buf, 1); }
static void in_readv(void) { readv(p.server, &(struct iovec){buf, 1}, 1); }
static void in_recvfrom(void) { recvfrom(p.server, buf, 1, 0, NULL, NULL); }
static void in_recvmsg(void) { recvmsg(p.server, &(struct msghdr){.msg_iov = &(struct iovec){buf, 1}, .msg_iovlen = 1}, 0); }
static void in_send(void) { send(p.client, buf, sizeof buf, 0); }
static void in_write(void) { write(p.client, buf, sizeof buf); }
static void in_accept(void) { accept(listener, NULL, NULL); }
static void in_poll(void) { poll(&(struct pollfd){p.server, POLLIN, 0}, 1, 5000); }
static void in_poll_of_two(void) { poll((struct pollfd[]){{p.server, POLLIN, 0}, {listener, POLLIN, 0}}, 2, 5000); }
static void in_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p.server, &set);
    select(p.server + 1, &set, NULL, NULL, &(struct timeval){5, 0});
}
static void in_epoll_wait(void) {
    struct epoll_event e;
    epoll_wait(ep, &e, 1, 5000);
}

static void *body(void *call) {
    pthread_cleanup_push(clean, NULL);
    tid = gettid();
    begun = 1;
    ((void (*)(void))call)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *body_later(void *call) {
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    begun = 1;
    while (begun == 1) rest(1);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    return body(call);
}

static void set_up(void) {
    p = pair();
    listener = listening();
    ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.server, &e));
}

static void cancel_in(const char *name, void (*call)(void), bool pending) {
    pthread_t thread;
    void *result;
    cleaned = begun = 0;
    long before = now_ms();
    pthread_create(&thread, NULL, pending ? body_later : body, (void *)call);
    while (!begun) rest(1);
    if (!pending) wait_asleep(getpid(), tid);
    pthread_cancel(thread);
    begun = 2;
    pthread_join(thread, &result);
    say(name, "%s,%d,%s", result == PTHREAD_CANCELED ? "canceled" : "returned", cleaned,
        now_ms() - before < 3000 ? "soon" : "late");
}

static void fill_up(void) {
    nonblocking(p.client, true);
    fill(p.client);
    nonblocking(p.client, false);
}

static void every_call(bool pending) {
    set_up();
    cancel_in("recv", in_recv, pending);
    cancel_in("read", in_read, pending);
    cancel_in("readv", in_readv, pending);
    cancel_in("recvfrom", in_recvfrom, pending);
    cancel_in("recvmsg", in_recvmsg, pending);
    cancel_in("accept", in_accept, pending);
    cancel_in("poll", in_poll, pending);
    cancel_in("poll_of_two", in_poll_of_two, pending);
    cancel_in("select", in_select, pending);
    cancel_in("epoll_wait", in_epoll_wait, pending);
    // The sockets work as before.
    MUST(write(p.client, "abc", 3));
    struct epoll_event e;
    CALL("epoll", epoll_wait(ep, &e, 1, 3000));
    CALL("recv", recv(p.server, buf, 3, MSG_WAITALL));
    fill_up();
    cancel_in("send", in_send, pending);
    fill_up();
    cancel_in("write", in_write, pending);
    nonblocking(p.server, true);
    say("drained", "%d", drain(p.server) > 0);
    CALL("write", write(p.client, "abc", 3));
    int c = tcp();
    MUST(connect_to(c, listener));
    CALL("accept", accept(listener, NULL, NULL) >= 0);
    CALL("close", close(p.server));
}

// pthread_cancel ends a thread that sleeps in each of these calls, and the sockets stay usable.
CASE(in_calls_that_sleep) { every_call(false); }
// A cancellation that is pending ends the thread in its next call.
CASE(before_a_call) { every_call(true); }

static long got;
static void *unwilling(void *nothing) {
    (void)nothing;
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    tid = gettid();
    begun = 1;
    got = recv(p.server, buf, 10, 0);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    pthread_cleanup_push(clean, NULL);
    recv(p.server, buf, 10, 0);
    pthread_cleanup_pop(0);
    return NULL;
}

// With cancellation disabled a call runs to its end.
CASE(not_while_it_is_disabled) {
    set_up();
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, unwilling, NULL);
    while (!begun) rest(1);
    wait_asleep(getpid(), tid);
    pthread_cancel(thread);
    rest(50);
    MUST(write(p.client, "abc", 3));
    pthread_join(thread, &result);
    say("first", "%ld", got);
    say("then", "%s,%d", result == PTHREAD_CANCELED ? "canceled" : "returned", cleaned);
}

// Many threads are cancelled in poll, before and during its sleep. Nothing is left behind.
CASE(many_times) {
    set_up();
    int canceled = 0;
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        void *result;
        begun = 0;
        pthread_create(&thread, NULL, body, (void *)in_poll_of_two);
        while (!begun) rest(1);
        if (i % 2) rest(1);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        canceled += result == PTHREAD_CANCELED;
    }
    say("canceled", "%d", canceled);
    MUST(write(p.client, "abc", 3));
    CALL("poll", poll((struct pollfd[]){{p.server, POLLIN, 0}, {listener, POLLIN, 0}}, 2, 3000));
}
