// Signals: EINTR and SA_RESTART, masks, and handlers that use the socket of the call that they interrupt.
#include "conformance.h"
#define THEME "signals"

static char buf[1000];
static int handler_fd;
static long handler_result;
static int handler_errno;

static void write_one(void *fd) { MUST(write(*(int *)fd, "x", 1)); }

// A handler without SA_RESTART ends recv with EINTR.
CASE(recv_interrupted) {
    struct pair p = pair();
    handle(SIGUSR1, false);
    signal_asleep(SIGUSR1);
    CALL("recv", recv(p.client, buf, 1, 0));
    say("seen", "%d", signals_seen);
}

// Recv goes on after a handler with SA_RESTART.
CASE(recv_restarted) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    signal_then(SIGUSR1, write_one, &p.server);
    CALL("recv", recv(p.client, buf, 1, 0));
    say("seen", "%d", signals_seen);
}

// Recv goes on after a handler with SA_RESTART, even if another signal's handler has none.
CASE(recv_restarted_beside_one_that_does_not) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    handle(SIGUSR2, false);
    signal_then(SIGUSR1, write_one, &p.server);
    CALL("recv", recv(p.client, buf, 1, 0));
}

// With SO_RCVTIMEO any handler ends recv.
CASE(recv_with_timeout_is_not_restarted) {
    struct pair p = pair();
    struct timeval t = {20, 0};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    handle(SIGUSR1, true);
    signal_asleep(SIGUSR1);
    CALL("recv", recv(p.client, buf, 1, 0));
}

// An ignored signal does not end recv.
CASE(ignored_signal_does_not_interrupt) {
    struct pair p = pair();
    signal(SIGUSR1, SIG_IGN);
    signal_then(SIGUSR1, write_one, &p.server);
    CALL("recv", recv(p.client, buf, 1, 0));
}

// MSG_WAITALL gives the bytes that have come when a signal interrupts it.
CASE(waitall_interrupted_after_some) {
    struct pair p = pair();
    handle(SIGUSR1, false);
    MUST(write(p.server, "abc", 3));
    signal_asleep(SIGUSR1);
    CALL("recv", recv(p.client, buf, 10, MSG_WAITALL));
}

// A signal ends a send that waits for room.
CASE(send_interrupted) {
    struct pair p = pair();
    fill(p.client);
    handle(SIGUSR1, false);
    static char much[10000000];
    signal_asleep(SIGUSR1);
    ssize_t n = 1;
    for (int i = 0; i < 100 && n > 0; i++) n = send(p.client, much, sizeof much, 0);
    say("send", "%s", n < 0 ? strerrorname_np(errno) : "sent");
}

// A handler without SA_RESTART ends accept with EINTR.
CASE(accept_interrupted) {
    int l = listening();
    handle(SIGUSR1, false);
    signal_asleep(SIGUSR1);
    CALL("accept", accept(l, NULL, NULL));
}

static void connect_one(void *fd) { MUST(connect_to(tcp(), *(int *)fd)); }

// Accept goes on after a handler with SA_RESTART.
CASE(accept_restarted) {
    int l = listening();
    handle(SIGUSR1, true);
    signal_then(SIGUSR1, connect_one, &l);
    CALL("accept", accept(l, NULL, NULL) >= 0);
}

// Poll, select and epoll_wait end with EINTR even after a handler with SA_RESTART.
CASE(waits_are_never_restarted) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    struct pollfd f = {p.client, POLLIN, 0};
    signal_asleep(SIGUSR1);
    CALL("poll", poll(&f, 1, 20000));
    signal_asleep(SIGUSR1);
    CALL("poll_forever", poll(&f, 1, -1));
    fd_set r;
    FD_ZERO(&r); FD_SET(p.client, &r);
    signal_asleep(SIGUSR1);
    CALL("select", select(p.client + 1, &r, NULL, NULL, &(struct timeval){20, 0}));
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    signal_asleep(SIGUSR1);
    CALL("epoll", epoll_wait(ep, &e, 1, 20000));
    signal_asleep(SIGUSR1);
    CALL("epoll_forever", epoll_wait(ep, &e, 1, -1));
    struct pollfd two[] = {{p.client, POLLIN, 0}, {p.server, POLLIN, 0}};
    signal_asleep(SIGUSR1);
    CALL("poll_two", poll(two, 2, 20000));
    say("seen", "%d", signals_seen);
}

// Blocks a signal, which only the mask of a wait lets in.
static void masked(int number) {
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, number);
    MUST(sigprocmask(SIG_BLOCK, &all, NULL));
}

// The mask of a wait lets a blocked signal in, which ends the wait.
CASE(masks_let_signals_in) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    masked(SIGUSR1);
    sigset_t none;
    sigemptyset(&none);
    struct pollfd f = {p.client, POLLIN, 0};
    raise(SIGUSR1);
    say("blocked", "%d", signals_seen);
    CALL("poll", poll(&f, 1, 30));
    CALL("ppoll", ppoll(&f, 1, &(struct timespec){20, 0}, &none));
    say("seen", "%d", signals_seen);
    raise(SIGUSR1);
    fd_set r;
    FD_ZERO(&r); FD_SET(p.client, &r);
    CALL("pselect", pselect(p.client + 1, &r, NULL, NULL, &(struct timespec){20, 0}, &none));
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    raise(SIGUSR1);
    CALL("epoll_pwait", epoll_pwait(ep, &e, 1, 3000, &none));
    raise(SIGUSR1);
    CALL("epoll_pwait2", epoll_pwait2(ep, &e, 1, &(struct timespec){20, 0}, &none));
    signal_asleep(SIGUSR1);
    CALL("sleeping", ppoll(&f, 1, &(struct timespec){20, 0}, &none));
    say("all", "%d", signals_seen);
}

// The mask of a wait keeps a signal out until the wait is over.
CASE(masks_keep_signals_out) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    struct pollfd f = {p.client, POLLIN, 0};
    pthread_t sender = signal_asleep(SIGUSR1);
    CALL("ppoll", ppoll(&f, 1, &(struct timespec){0, 200000000}, &some));
    pthread_join(sender, NULL);
    say("seen", "%d", signals_seen);
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    sender = signal_asleep(SIGUSR1);
    CALL("epoll_pwait", epoll_pwait(ep, &e, 1, 200, &some));
    pthread_join(sender, NULL);
    say("seen2", "%d", signals_seen);
}

// A wait with something ready returns that, although a signal is pending.
CASE(ready_beats_a_pending_signal) {
    struct pair p = pair();
    handle(SIGUSR1, true);
    masked(SIGUSR1);
    sigset_t none;
    sigemptyset(&none);
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    raise(SIGUSR1);
    struct pollfd f = {p.client, POLLIN, 0};
    CALL("ppoll", ppoll(&f, 1, &(struct timespec){20, 0}, &none));
    say("seen", "%d", signals_seen);
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    raise(SIGUSR1);
    CALL("epoll", epoll_pwait(ep, &e, 1, 3000, &none));
    say("seen2", "%d", signals_seen);
}

static void read_in_handler(int signal) {
    (void)signal;
    handler_result = recv(handler_fd, buf, 1, MSG_DONTWAIT);
    handler_errno = errno;
}
static void write_in_handler(int signal) {
    (void)signal;
    handler_result = send(handler_fd, "h", 1, MSG_DONTWAIT);
    handler_errno = errno;
}
static void on(int number, void (*handler)(int), bool restart) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = restart ? SA_RESTART : 0};
    MUST(sigaction(number, &a, NULL));
}
static void say_handler(void) {
    errno = handler_errno;
    say_result("handler", handler_result);
}

// A handler reads the socket on which it has interrupted recv.
CASE(handler_reads_the_interrupted_socket) {
    struct pair p = pair();
    handler_fd = p.client;
    on(SIGUSR1, read_in_handler, true);
    signal_then(SIGUSR1, write_one, &p.server);
    CALL("recv", recv(p.client, buf, 1, 0));
    say_handler();
}

// A handler writes to the socket on which it has interrupted recv.
CASE(handler_writes_the_interrupted_socket) {
    struct pair p = pair();
    handler_fd = p.client;
    on(SIGUSR1, write_in_handler, false);
    signal_asleep(SIGUSR1);
    CALL("recv", recv(p.client, buf, 1, 0));
    say_handler();
    CALL("peer", recv(p.server, buf, 10, 0));
}

static volatile long changed;
static void send_with_a_deep_stack(int signal) {
    volatile unsigned char deep[32768];
    for (size_t i = 0; i < sizeof deep; i++) deep[i] = 7 * i;
    write_in_handler(signal);
    for (size_t i = 0; i < sizeof deep; i++) changed += deep[i] != (unsigned char)(7 * i);
}

// A handler has much on its stack when it makes a call. The call changes none of it.
CASE(handler_keeps_what_is_on_its_stack) {
    struct pair p = pair(); handler_fd = p.client;
    on(SIGUSR1, send_with_a_deep_stack, false);
    signal_asleep(SIGUSR1);
    CALL("recv", recv(p.client, buf, 1, 0));
    say_handler();
    say("changed", "%ld", changed);
}

static volatile sig_atomic_t handler_sent, handler_failed;
static void send_in_handler(int signal) {
    (void)signal;
    int saved = errno;
    if (send(handler_fd, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) handler_sent++;
    else if (errno != EAGAIN) handler_failed++;
    errno = saved;
}

// A handler sends in the middle of whatever the calls do. Nothing may be lost, fail or hang.
CASE(handler_sends_all_the_time) {
    struct pair p = pair();
    handler_fd = p.client;
    on(SIGALRM, send_in_handler, true);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    long got = 0, sent = 0;
    for (int i = 0; i < 3000; i++) {
        if (send(p.client, "mmmm", 4, 0) == 4) sent += 4;
        if (i % 16 == 0) got += drain(p.server);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    for (long end = now_ms() + 3000; got < sent + handler_sent && now_ms() < end; rest(1)) got += drain(p.server);
    say("lost", "%ld failed=%d", sent + handler_sent - got, handler_failed);
}

// Two signals that waited come at once, with handlers on an alternate stack: one interrupts the other before its handler has
// begun. Both send.
CASE(handlers_that_come_at_once_on_another_stack) {
    static char own[65536];
    struct pair p = pair();
    handler_fd = p.client;
    stack_t stack = {.ss_sp = own, .ss_size = sizeof own};
    MUST(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = send_in_handler, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL));
    MUST(sigaction(SIGUSR2, &action, NULL));
    sigset_t both, none;
    sigemptyset(&none), sigemptyset(&both), sigaddset(&both, SIGUSR1), sigaddset(&both, SIGUSR2);
    for (int i = 0; i < 100; i++) {
        MUST(sigprocmask(SIG_BLOCK, &both, NULL));
        raise(SIGUSR1), raise(SIGUSR2);
        struct pollfd readable = {p.client, POLLIN, 0};
        if (i % 2) ppoll(&readable, 1, NULL, &none);
        MUST(sigprocmask(SIG_UNBLOCK, &both, NULL));
    }
    say("sent", "%d failed=%d", handler_sent, handler_failed);
    long got = 0;
    for (long end = now_ms() + 3000; got < handler_sent && now_ms() < end; rest(1)) got += drain(p.server);
    say("got", "%ld", got);
}

static void write_in_handler_to_a_pipe(int signal) {
    (void)signal;
    int saved = errno;
    if (write(handler_fd, "h", 1) != 1) handler_failed++;
    errno = saved;
}

// The same while the program sleeps in a call that has nothing to do with sockets.
CASE(handlers_that_end_a_sleep_at_once_on_another_stack) {
    enum { ROUNDS = 30 };
    static char own[65536];
    stack_t stack = {.ss_sp = own, .ss_size = sizeof own};
    int both[2];
    MUST(pipe(both));
    handler_fd = both[1];
    MUST(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = write_in_handler_to_a_pipe, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL));
    MUST(sigaction(SIGUSR2, &action, NULL));
    pid_t sleeper = getpid(), other = fork();
    if (other == 0) {
        for (int i = 0; i < ROUNDS; i++) {
            rest(5);
            for (int *signal = (int[]){SIGSTOP, SIGUSR1, SIGUSR2, SIGCONT, 0}; *signal; signal++) kill(sleeper, *signal);
            char came;
            for (int j = 0; j < 2; j++)
                if (read(both[0], &came, 1) != 1) _exit(1);
        }
        _exit(0);
    }
    int status = -1, interrupted = 0;
    while (waitpid(other, &status, WNOHANG) == 0) {
        struct timespec time = {0, 20000000};
        if (nanosleep(&time, NULL) != 0) interrupted++;
    }
    say("other", "%d failed=%d interrupted=%d", status, handler_failed, interrupted > 0);
}

static void *noisy(void *argument) {
    (void)argument;
    return NULL;
}

// When SIGPIPE comes: after SHUT_WR and after a reset, not with MSG_NOSIGNAL.
CASE(pipe_signal) {
    struct pair p = pair();
    handle(SIGPIPE, true);
    MUST(shutdown(p.client, SHUT_WR));
    CALL("write", write(p.client, "x", 1));
    say("seen", "%d", signals_seen);
    CALL("nosignal", send(p.client, "x", 1, MSG_NOSIGNAL));
    CALL("writev", writev(p.client, &(struct iovec){"x", 1}, 1));
    say("seen2", "%d", signals_seen);
    pthread_t t;
    pthread_create(&t, NULL, noisy, NULL);
    pthread_join(t, NULL);
    int r = reset_by_peer();
    CALL("reset", write(r, "x", 1));
    say("seen3", "%d", signals_seen);
    CALL("reset2", write(r, "x", 1));
    say("seen4", "%d", signals_seen);
}

// An urgent byte sends SIGURG to the socket's owner.
CASE(urgent_signal) {
    struct pair p = pair();
    handle(SIGURG, true);
    MUST(fcntl(p.client, F_SETOWN, getpid()));
    MUST(send(p.server, "u", 1, MSG_OOB));
    wait_events(p.client, POLLPRI);
    for (int i = 0; i < 1000 && !signals_seen; i++) rest(1);
    say("seen", "%d", signals_seen);
}

// A signal that comes before connect does not interrupt it.
CASE(connect_interrupted_goes_on) {
    // A handshake over loopback cannot be delayed, so no signal comes while connect waits.
    int l = listening(), c = tcp();
    handle(SIGUSR1, false);
    raise(SIGUSR1);
    CALL("connect", connect_to(c, l));
}

// Handlers that jump out of a sleeping call by siglongjmp. The call never ends, but nothing of it may stay behind.
static sigjmp_buf out;
static void leave(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}
static void leaving(int signal) {
    struct sigaction a = {.sa_handler = leave};
    MUST(sigaction(signal, &a, NULL));
}
#define LEFT(call)                                                                                                     \
    ({                                                                                                                 \
        volatile bool left_ = true;                                                                                          \
        if (!sigsetjmp(out, 1)) {                                                                                      \
            signal_asleep(SIGUSR1);                                                                                    \
            (void)!(call);                                                                                             \
            left_ = false;                                                                                             \
        }                                                                                                              \
        left_;                                                                                                         \
    })

// Handlers jump out of sleeping calls by siglongjmp. The next calls on the sockets work.
CASE(calls_that_are_left) {
    struct pair p = pair();
    struct epoll_event e = {EPOLLIN, {.u64 = 1}};
    struct pollfd one = {p.client, POLLIN, 0}, two[] = {{p.client, POLLIN, 0}, {p.listener, POLLIN, 0}};
    int ep = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    leaving(SIGUSR1);
    for (volatile int i = 0; i < 3; i++) {
        say("recv", "%d", LEFT(recv(p.client, buf, 1, 0)));
        say("epoll", "%d", LEFT(epoll_wait(ep, &e, 1, 5000)));
        say("poll", "%d", LEFT(poll(&one, 1, 5000)));
        say("poll2", "%d", LEFT(poll(two, 2, 5000)));
        say("accept", "%d", LEFT(accept(p.listener, NULL, NULL)));
        when_asleep(write_one, &p.server);
        CALL("then", epoll_wait(ep, &e, 1, 20000));
        CALL("read", recv(p.client, buf, 1, 0));
        when_asleep(write_one, &p.server);
        CALL("polled", poll(two, 2, 20000));
        CALL("again", recv(p.client, buf, 1, 0));
        when_asleep(write_one, &p.server);
        CALL("blocked", recv(p.client, buf, 1, 0));
    }
}

// Handlers jump out of many polls, which leave nothing behind that would run out.
CASE(many_polls_that_are_left) {
    struct pair p = pair();
    struct pollfd two[] = {{p.client, POLLIN, 0}, {p.listener, POLLIN, 0}};
    leaving(SIGALRM);
    for (volatile int i = 0; i < 150; i++) {
        if (!sigsetjmp(out, 1)) {
            struct itimerval soon = {.it_value.tv_usec = 2000};
            setitimer(ITIMER_REAL, &soon, NULL);
            poll(two, 2, 5000);
        }
    }
    when_asleep(write_one, &p.server);
    CALL("polled", poll(two, 2, 20000));
}

// Close after a handler has jumped out of a call frees the port, or ends the connection.
CASE(closed_after_a_call_that_was_left) {
    int l = listening(), port = port_of(l);
    leaving(SIGUSR1);
    say("accept", "%d", LEFT(accept(l, NULL, NULL)));
    MUST(close(l));
    int again = tcp();
    struct sockaddr_in at = loopback(port);
    CALL("bind", bind(again, (struct sockaddr *)&at, sizeof at));
    CALL("listen", listen(again, 1));
    struct pair p = pair();
    say("recv", "%d", LEFT(recv(p.client, buf, 1, 0)));
    MUST(close(p.client));
    CALL("end", recv(p.server, buf, 1, 0));
}

static int cancelled_fd;
static atomic_int was_left; // the thread that has left the call
static void *cancelled_after_leaving(void *nothing) {
    (void)nothing;
    say("recv", "%d", LEFT(recv(cancelled_fd, buf, 1, 0)));
    char c;
    was_left = gettid();
    recv(cancelled_fd, &c, 1, 0);
    return NULL;
}

// A thread can still be cancelled after a handler has jumped out of a call.
CASE(cancelled_after_a_call_that_was_left) {
    struct pair p = pair();
    pthread_t t;
    void *how = NULL;
    leaving(SIGUSR1);
    cancelled_fd = p.client;
    pthread_create(&t, NULL, cancelled_after_leaving, NULL);
    while (!was_left) rest(1);
    wait_asleep(getpid(), was_left);
    pthread_cancel(t);
    pthread_join(t, &how);
    say("cancelled", "%d", how == PTHREAD_CANCELED);
}

enum { HANDLERS_SOCKETS = 2 };
static int handlers_fds[HANDLERS_SOCKETS];
static atomic_int sent_in_handlers[HANDLERS_SOCKETS], arrived_from_handlers[HANDLERS_SOCKETS];
static void send_if_the_last_have_arrived(int signal) {
    (void)signal;
    int before = errno;
    bool all = true;
    for (int i = 0; i < HANDLERS_SOCKETS; i++) all &= sent_in_handlers[i] == arrived_from_handlers[i];
    for (int i = 0; all && i < HANDLERS_SOCKETS; i++) sent_in_handlers[i] += write(handlers_fds[i], "x", 1) == 1;
    errno = before;
}
static int read_to_the_end_fd, counted_fds[HANDLERS_SOCKETS];
static void *read_to_the_end(void *nothing) {
    char some[4096];
    while (read(read_to_the_end_fd, some, sizeof some) > 0) {
    }
    return nothing;
}
static void *count_to_the_end(void *number) {
    long i = (long)number;
    char one;
    while (read(counted_fds[i], &one, 1) == 1) arrived_from_handlers[i]++;
    return NULL;
}

// What a handler sends on two sockets arrives, although it interrupts sends on a third at any of their instructions.
CASE(sends_in_handlers_that_interrupt_sends) {
    enum { SENDS = 1000, SECONDS = 20 };
    struct pair p = pair();
    pthread_t reader;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    read_to_the_end_fd = p.server;
    pthread_create(&reader, NULL, read_to_the_end, NULL);
    for (long i = 0; i < HANDLERS_SOCKETS; i++) {
        struct pair q = pair();
        handlers_fds[i] = q.client;
        counted_fds[i] = q.server;
        pthread_create(&reader, NULL, count_to_the_end, (void *)i);
    }
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    struct sigaction act = {.sa_handler = send_if_the_last_have_arrived, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &act, NULL);
    struct itimerval often = {.it_interval.tv_usec = 100, .it_value.tv_usec = 100};
    setitimer(ITIMER_REAL, &often, NULL);
    time_t end = time(NULL) + SECONDS;
    while (sent_in_handlers[0] < SENDS && time(NULL) < end) MUST(write(p.client, "p", 1));
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    say("enough", "%d", sent_in_handlers[0] >= SENDS);
}
