// Several threads, processes and listeners that share a port's connections: accept, EPOLLEXCLUSIVE, SO_REUSEPORT.
#include "conformance.h"
#define THEME "prefork"
#define PROCESSES 4

static char buf[100];

// Runs `work` in a process of its own, which reports by one byte in a pipe and ends.
struct worker {
    pid_t pid;
    int says;
};
static struct worker worker(void (*work)(int to, int listener), int listener) {
    int p[2];
    MUST(pipe(p));
    fflush(stdout);
    struct worker w = {(pid_t)MUST(fork()), p[0]};
    if (w.pid == 0) {
        work(p[1], listener);
        _exit(0);
    }
    MUST(close(p[1]));
    return w;
}
// Waits for the end of a worker. Returns its byte; 0 = it has reported nothing.
static char said(struct worker w) {
    char c = 0;
    if (read(w.says, &c, 1) != 1) c = 0;
    close(w.says);
    waitpid(w.pid, NULL, 0);
    return c;
}
// Waits for all workers, and prints their bytes in order.
static void say_all(const char *key, struct worker *w, int count) {
    char all[PROCESSES + 1] = "";
    for (int i = 0; i < count; i++) all[i] = said(w[i]) ?: '-';
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count; j++)
            if (all[j] < all[i]) {
                char c = all[i];
                all[i] = all[j], all[j] = c;
            }
    say(key, "%s", all);
}
static void all_asleep(struct worker *w, int count) {
    for (int i = 0; i < count; i++) wait_asleep(w[i].pid, w[i].pid);
}
static int client(int port) {
    int c = tcp();
    struct sockaddr_in a = loopback(port);
    MUST(connect(c, (struct sockaddr *)&a, sizeof a));
    return c;
}

// Accepts one connection, echoes the byte that comes by it, and reports that byte.
static void accept_one(int to, int listener) {
    alarm(5);
    int s = accept(listener, NULL, NULL);
    char c = 'E';
    if (s >= 0 && recv(s, &c, 1, 0) == 1 && send(s, &c, 1, MSG_NOSIGNAL) != 1) c = 'S';
    if (write(to, &c, 1) != 1) _exit(1);
}

// Processes that sleep in accept on one listener get one connection each.
CASE(processes_in_accept_get_one_each) {
    int l = listening(), port = port_of(l);
    struct worker w[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) w[i] = worker(accept_one, l);
    all_asleep(w, PROCESSES);
    int c[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) c[i] = client(port);
    for (int i = 0; i < PROCESSES; i++) MUST(send(c[i], &"abcd"[i], 1, 0));
    for (int i = 0; i < PROCESSES; i++) MUST(recv(c[i], buf + i, 1, 0));
    say_bytes("echoed", buf, PROCESSES);
    say_all("served", w, PROCESSES);
    CALL("end", recv(c[0], buf, 1, 0));
}

// One of two processes in accept is killed. The other one gets the connection.
CASE(one_of_two_in_accept_is_killed) {
    int l = listening(), port = port_of(l);
    struct worker w[2] = {worker(accept_one, l), worker(accept_one, l)};
    all_asleep(w, 2);
    MUST(kill(w[0].pid, SIGKILL));
    waitpid(w[0].pid, NULL, 0);
    int c = client(port);
    MUST(send(c, "x", 1, 0));
    CALL("echo", recv(c, buf, 1, 0));
    say_all("served", w, 2);
}

// One of two processes in accept is stopped. The other one gets the connection at once.
CASE(a_stopped_process_keeps_nobody_waiting) {
    int l = listening(), port = port_of(l);
    struct worker w[2] = {worker(accept_one, l), worker(accept_one, l)};
    all_asleep(w, 2);
    MUST(kill(w[1].pid, SIGSTOP));
    MUST(waitpid(w[1].pid, NULL, WUNTRACED));
    int c = client(port), d = client(port);
    MUST(send(c, "x", 1, 0));
    CALL("echo", recv(c, buf, 1, 0));
    MUST(kill(w[1].pid, SIGCONT));
    MUST(send(d, "y", 1, 0));
    CALL("echo2", recv(d, buf, 1, 0));
    say_all("served", w, 2);
}

static void *accept_in_thread(void *listener) {
    int s = accept(*(int *)listener, NULL, NULL);
    char c = 0;
    if (s >= 0 && recv(s, &c, 1, 0) == 1) send(s, &c, 1, MSG_NOSIGNAL);
    return NULL;
}

// Threads that sleep in accept get one connection each.
CASE(many_threads_in_accept_get_one_each) {
    enum { THREADS = 16 };
    int l = listening(), port = port_of(l), c[THREADS];
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, accept_in_thread, &l);
    rest(100);
    for (int i = 0; i < THREADS; i++) c[i] = client(port);
    for (int i = 0; i < THREADS; i++) MUST(send(c[i], "x", 1, 0));
    int echoed = 0;
    for (int i = 0; i < THREADS; i++) echoed += recv(c[i], buf, 1, 0) == 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    say("echoed", "%d", echoed);
}

// A thread in accept takes a connection; poll on the listener shows the next one.
CASE(a_poller_beside_threads_in_accept) {
    int l = listening(), port = port_of(l);
    pthread_t t;
    pthread_create(&t, NULL, accept_in_thread, &l);
    rest(60);
    struct pollfd f = {l, POLLIN, 0};
    pthread_t later_one = later(60, (void (*)(void *))(void *)client, (void *)(long)port);
    // The accepting thread may have taken the connection by the time poll looks.
    (void)!poll(&f, 1, 300);
    pthread_join(later_one, NULL);
    int c = client(port);
    CALL("poll", poll(&f, 1, 3000));
    CALL("accept", accept(l, NULL, NULL) >= 0);
    MUST(close(c));
}

// Waits with an epoll instance of its own and reports whether there was an event. Does not accept.
static unsigned how;
static void wait_own(int to, int listener) {
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN | how, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e));
    int n = epoll_wait(ep, &e, 1, 700);
    if (write(to, n == 1 ? "1" : "0", 1) != 1) _exit(1);
    // Ends only after all have waited: when a process ends, others may wake for the connection that it has not accepted.
    rest(1000);
}

static void over_processes(unsigned events, unsigned others) {
    int l = listening(), port = port_of(l);
    struct worker w[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        how = i < PROCESSES / 2 ? others : events;
        w[i] = worker(wait_own, l);
    }
    all_asleep(w, PROCESSES);
    client(port);
    say_all("woken", w, PROCESSES);
}

// A listener that processes watch by level: how many wake for one connection.
CASE(level_over_processes) { over_processes(0, 0); }
// A listener that processes watch by edge: how many wake for one connection.
CASE(edge_over_processes) { over_processes(EPOLLET, EPOLLET); }
// With EPOLLEXCLUSIVE: how many processes wake for one connection.
CASE(exclusive_over_processes) { over_processes(EPOLLEXCLUSIVE, EPOLLEXCLUSIVE); }
// With EPOLLEXCLUSIVE and EPOLLET: how many processes wake for one connection.
CASE(exclusive_edge_over_processes) { over_processes(EPOLLEXCLUSIVE | EPOLLET, EPOLLEXCLUSIVE | EPOLLET); }
// Half of the processes watch with EPOLLEXCLUSIVE, half without: how many wake.
CASE(exclusive_beside_others) { over_processes(EPOLLEXCLUSIVE, 0); }

// EPOLLEXCLUSIVE wakes a process that sleeps, even if a busy one watches too.
CASE(exclusive_with_one_who_does_not_wait) {
    int l = listening(), port = port_of(l), ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN | EPOLLEXCLUSIVE, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e));
    how = EPOLLEXCLUSIVE;
    struct worker w = worker(wait_own, l);
    all_asleep(&w, 1);
    client(port);
    say_all("woken", &w, 1);
    CALL("then", epoll_wait(ep, &e, 1, 1000));
}

// Waits, accepts, and reports the outcome.
static void wait_and_accept(int to, int listener) {
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN | EPOLLEXCLUSIVE, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e));
    char c = '-';
    nonblocking(listener, true);
    // More processes than one may wake for a connection: epoll_ctl(2). Who comes too late waits for the next one.
    while (c != 'x' && epoll_wait(ep, &e, 1, 3000) == 1) {
        int s = accept(listener, NULL, NULL);
        c = s >= 0 ? 'a' : 'E';
        if (s >= 0) (void)!recv(s, &c, 1, 0);
    }
    if (write(to, &c, 1) != 1) _exit(1);
}

// With EPOLLEXCLUSIVE several processes serve connections that come at once.
CASE(exclusive_processes_serve_a_burst) {
    int l = listening(), port = port_of(l), c[PROCESSES];
    struct worker w[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) w[i] = worker(wait_and_accept, l);
    all_asleep(w, PROCESSES);
    for (int i = 0; i < PROCESSES; i++) c[i] = client(port);
    for (int i = 0; i < PROCESSES; i++) MUST(send(c[i], "x", 1, MSG_NOSIGNAL));
    say_all("served", w, PROCESSES);
}

// A listener with SO_REUSEPORT; -errno if it cannot be had.
static int shared(int port, int backlog) {
    int l = tcp();
    set_int(l, SOL_SOCKET, SO_REUSEPORT, 1);
    struct sockaddr_in a = loopback(port);
    if (bind(l, (struct sockaddr *)&a, sizeof a) < 0 || listen(l, backlog) < 0) return -errno;
    return l;
}
static int accept_all(int l) {
    int n = 0;
    // The last ACK may not have arrived yet.
    rest(50);
    nonblocking(l, true);
    while (accept(l, NULL, NULL) >= 0) n++;
    return n;
}

// SO_REUSEPORT: both of two listeners get connections, and none is lost.
CASE(reuseport_pair) {
    int a = shared(0, 100), port = port_of(a), b = shared(port, 100);
    say("listen", "%d", b >= 0);
    for (int i = 0; i < 64; i++) client(port);
    int of_a = accept_all(a), of_b = accept_all(b);
    say("both", "%d", of_a > 0 && of_b > 0);
    CALL("all", of_a + of_b);
}

// SO_REUSEPORT: connections are spread over four listeners, and none is lost.
CASE(reuseport_four) {
    int l[4] = {shared(0, 100)}, port = port_of(l[0]), all = 0, some = 0;
    for (int i = 1; i < 4; i++) l[i] = (int)MUST(shared(port, 100));
    for (int i = 0; i < 128; i++) client(port);
    for (int i = 0; i < 4; i++) {
        int n = accept_all(l[i]);
        all += n, some += n > 8;
    }
    say("all", "%d", all);
    say("some", "%d", some);
}

static int shared_port;
static void accept_shared(int to, int unused) {
    (void)unused;
    int l = shared(shared_port, 100), n = 0;
    if (write(to, l >= 0 ? "l" : "E", 1) != 1) _exit(1);
    struct timeval t = {1, 500000};
    setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    while (accept(l, NULL, NULL) >= 0) n++;
    char c = (char)n;
    if (write(to, &c, 1) != 1) _exit(1);
}

// SO_REUSEPORT: listeners of two processes on a port that their parent has reserved.
CASE(reuseport_in_two_processes) {
    int reserved = tcp();
    set_int(reserved, SOL_SOCKET, SO_REUSEPORT, 1);
    struct sockaddr_in a = loopback(0);
    MUST(bind(reserved, (struct sockaddr *)&a, sizeof a));
    shared_port = port_of(reserved);
    struct worker w[2] = {worker(accept_shared, -1), worker(accept_shared, -1)};
    char ready[2];
    for (int i = 0; i < 2; i++) MUST(read(w[i].says, ready + i, 1));
    say_bytes("listen", ready, 2);
    for (int i = 0; i < 64; i++) client(shared_port);
    int of_a = said(w[0]), of_b = said(w[1]);
    say("both", "%d", of_a > 0 && of_b > 0);
    CALL("all", of_a + of_b);
}

// Connects until the queue of `l` has a connection, at least 16 times. Nobody accepts. The clients are in `c`.
static int fill_queue(int l, int port, int *c, int most) {
    struct pollfd f = {l, POLLIN, 0};
    int n = 0;
    while (n < most && (n < 16 || poll(&f, 1, 0) == 0)) c[n++] = client(port);
    rest(50);
    return n;
}
// Of so many connections some were reset, and `b` accepts all others. A process's end may be noticed late on a busy machine.
static int reset_or_accepted(int b, int *c, int n, int *reset) {
    for (int tries = 0, of_b = 0; tries < 100; tries++) {
        int open = 0;
        rest(100);
        for (int i = 0; i < n; i++) {
            int got = c[i] < 0 ? 0 : (int)recv(c[i], buf, 1, MSG_DONTWAIT);
            open += got < 0 && errno == EAGAIN;
            // It says so once.
            if (got < 0 && errno == ECONNRESET) *reset += 1, c[i] = -1;
        }
        of_b += accept_all(b);
        if (*reset > 0 && open == of_b && *reset + open == n) return 1;
    }
    return 0;
}

// SO_REUSEPORT: a listener closes with connections in its queue. Those are reset, all others go on.
CASE(reuseport_one_closes_with_a_queue) {
    int a = shared(0, 100), port = port_of(a), b = shared(port, 100), c[100];
    int n = fill_queue(a, port, c, 100), reset = 0;
    MUST(close(a));
    int settled = reset_or_accepted(b, c, n, &reset);
    say("reset", "%d", reset > 0);
    say("others", "%d", settled);
    for (int i = 0; i < 16; i++) client(port);
    CALL("new_ones", accept_all(b));
}

static void listen_shared(int to, int unused) {
    (void)unused;
    int l = shared(shared_port, 100);
    struct pollfd f = {l, POLLIN, 0};
    if (write(to, l >= 0 ? "l" : "E", 1) != 1) _exit(1);
    poll(&f, 1, 5000);
    if (write(to, "q", 1) != 1) _exit(1);
    rest(10000);
}

// SO_REUSEPORT: a process is killed with connections in its listener's queue.
CASE(reuseport_one_is_killed_with_a_queue) {
    int b = shared(0, 100), c[200], n = 0, reset = 0;
    shared_port = port_of(b);
    struct worker w = worker(listen_shared, -1);
    MUST(read(w.says, buf, 1));
    say_bytes("listen", buf, 1);
    while (n < 32) c[n++] = client(shared_port);
    MUST(read(w.says, buf, 1));
    MUST(kill(w.pid, SIGKILL));
    waitpid(w.pid, NULL, 0);
    int settled = reset_or_accepted(b, c, n, &reset);
    say("reset", "%d", reset > 0);
    say("others", "%d", settled);
    for (int i = 0; i < 16; i++) client(shared_port);
    CALL("new_ones", accept_all(b));
}

// SO_REUSEPORT must be set on all sockets that bind a port.
CASE(reuseport_must_be_everybodys) {
    int a = shared(0, 5), port = port_of(a);
    CALL("alone", bind(tcp(), (struct sockaddr *)&(struct sockaddr_in){AF_INET, htons((uint16_t)port), {htonl(INADDR_LOOPBACK)}, {0}},
                       sizeof(struct sockaddr_in)));
    int plain = listening();
    CALL("late", shared(port_of(plain), 5));
    CALL("get", get_int(a, SOL_SOCKET, SO_REUSEPORT));
}

static void as_another_user(int to, int unused) {
    (void)unused;
    int may = setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0;
    int l = shared(shared_port, 5);
    if (write(to, !may ? "n" : l >= 0 ? "l" : l == -EADDRINUSE ? "u" : "E", 1) != 1) _exit(1);
}

// SO_REUSEPORT does not share a port between users.
CASE(reuseport_is_of_one_user) {
    int a = shared(0, 5);
    shared_port = port_of(a);
    struct worker w = worker(as_another_user, -1);
    say_all("other", &w, 1);
}
