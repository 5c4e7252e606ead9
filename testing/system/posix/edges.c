// Edges of calls: flags without a meaning, buffers at the end of memory, limits on descriptors, rare states.
#define THEME "edges"
#include "conformance.h"
#include <linux/close_range.h>
#include <limits.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static char buf[100000];

// Room for `bytes`, behind which nothing is mapped.
static char *before_nothing(size_t bytes) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    return pages + 4096 - bytes;
}

// Each flag of send that has no meaning for TCP: which are errors, and which are ignored.
CASE(send_flags) {
    static const struct { const char *name; int flag; } flags[] = {
        {"dontroute", MSG_DONTROUTE}, {"confirm", MSG_CONFIRM}, {"eor", MSG_EOR}, {"fastopen", MSG_FASTOPEN},
        {"peek", MSG_PEEK}, {"trunc", MSG_TRUNC}, {"waitall", MSG_WAITALL}, {"errqueue", MSG_ERRQUEUE},
        {"zerocopy", MSG_ZEROCOPY}, {"probe", MSG_PROXY}};
    struct pair p = pair();
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (CALL(flags[i].name, send(p.client, "x", 1, flags[i].flag)) > 0) wait_unread(p.server, 1);
        CALL("got", recv(p.server, buf, 10, MSG_DONTWAIT));
    }
}

// Each flag of recv that has no meaning for TCP, and the flags that recvmsg returns.
CASE(recv_flags) {
    static const struct { const char *name; int flag; } flags[] = {
        {"dontroute", MSG_DONTROUTE}, {"eor", MSG_EOR}, {"nosignal", MSG_NOSIGNAL}, {"more", MSG_MORE},
        {"ctrunc", MSG_CTRUNC}, {"cmsg_cloexec", MSG_CMSG_CLOEXEC}, {"trunc_waitall", MSG_TRUNC | MSG_WAITALL},
        {"errqueue_peek", MSG_ERRQUEUE | MSG_PEEK}};
    struct pair p = pair();
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        MUST(write(p.client, "abc", 3));
        wait_unread(p.server, 3);
        CALL(flags[i].name, recv(p.server, buf, 3, flags[i].flag | MSG_DONTWAIT));
        CALL("left", recv(p.server, buf, 10, MSG_DONTWAIT));
    }
    struct msghdr m = {.msg_iov = &(struct iovec){buf, 2}, .msg_iovlen = 1, .msg_flags = 0x7777};
    MUST(write(p.client, "abc", 3));
    wait_unread(p.server, 3);
    CALL("recvmsg", recvmsg(p.server, &m, MSG_TRUNC));
    say("flags", "%x", m.msg_flags);
    m.msg_flags = 0x7777;
    CALL("nothing", recvmsg(p.server, &m, MSG_DONTWAIT));
    CALL("again", recvmsg(p.server, &m, MSG_DONTWAIT));
    say("flags", "%x", m.msg_flags);
}

// Buffers whose end is not mapped: the part before it moves, or EFAULT.
CASE(buffers_that_end_in_nothing) {
    struct pair p = pair();
    memcpy(before_nothing(10), "0123456789", 10);
    CALL("all", write(p.client, memset(before_nothing(10), 'x', 10), 10));
    CALL("too_much", write(p.client, memset(before_nothing(10), 'y', 10), 20));
    rest(30);
    CALL("read", recv(p.server, buf, 100, MSG_DONTWAIT));
    MUST(write(p.client, "0123456789", 10));
    wait_unread(p.server, 10);
    CALL("into", read(p.server, before_nothing(4), 8));
    CALL("left", recv(p.server, buf, 100, MSG_DONTWAIT));
}

// Vectors with addresses that are not mapped, too many vectors, and lengths that overflow.
CASE(vectors_with_holes) {
    struct pair p = pair();
    struct iovec v[4] = {{"abc", 3}, {NULL, 0}, {before_nothing(0), 3}, {"def", 3}};
    CALL("writev", writev(p.client, v, 4));
    rest(30);
    long n = CALL("read", recv(p.server, buf, 100, MSG_DONTWAIT));
    say_bytes("bytes", buf, n);
    MUST(write(p.client, "0123456789", 10));
    wait_unread(p.server, 10);
    struct iovec r[3] = {{buf, 2}, {before_nothing(0), 3}, {buf + 10, 5}};
    CALL("readv", readv(p.server, r, 3));
    n = CALL("left", recv(p.server, buf, 100, MSG_DONTWAIT));
    say_bytes("bytes", buf, n);
    struct iovec many[1025];
    for (int i = 0; i < 1025; i++) many[i] = (struct iovec){"x", 1};
    CALL("most", writev(p.client, many, 1024));
    CALL("too_many", writev(p.client, many, 1025));
    CALL("sendmsg_too_many", sendmsg(p.client, &(struct msghdr){.msg_iov = many, .msg_iovlen = 1025}, 0));
    CALL("none", writev(p.client, many, 0));
    wait_unread(p.server, 1024);
    CALL("recvmsg_none", recvmsg(p.server, &(struct msghdr){0}, MSG_DONTWAIT));
    struct iovec huge[2] = {{buf, LONG_MAX}, {buf, LONG_MAX}};
    CALL("overflow", writev(p.client, huge, 2));
    CALL("sendmsg_overflow", sendmsg(p.client, &(struct msghdr){.msg_iov = huge, .msg_iovlen = 2}, 0));
    CALL("readv_overflow", readv(p.server, huge, 2));
}

// Recvmmsg and sendmmsg: times, faults half way, and the end of the stream.
CASE(many_messages) {
    struct pair p = pair();
    struct mmsghdr m[3] = {0};
    struct iovec v[3] = {{buf, 2}, {buf + 2, 2}, {buf + 4, 2}};
    for (int i = 0; i < 3; i++) m[i].msg_hdr.msg_iov = &v[i], m[i].msg_hdr.msg_iovlen = 1;
    MUST(write(p.client, "abcde", 5));
    wait_unread(p.server, 5);
    CALL("all", recvmmsg(p.server, m, 3, MSG_DONTWAIT, NULL));
    say("lengths", "%u,%u,%u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    struct timespec t = {0, 50000000};
    CALL("nonblocking_empty", recvmmsg(p.server, m, 3, MSG_DONTWAIT, &t));
    t = (struct timespec){0, -1};
    CALL("bad_time", recvmmsg(p.server, m, 3, MSG_DONTWAIT, &t));
    MUST(write(p.client, "ab", 2));
    t = (struct timespec){5, 0};
    CALL("one", recvmmsg(p.server, m, 3, MSG_WAITFORONE, &t));
    say("rest", "%d", t.tv_sec == 4);
    CALL("none", recvmmsg(p.server, m, 0, 0, NULL));
    CALL("nowhere", recvmmsg(p.server, NULL, 1, MSG_DONTWAIT, NULL));
    CALL("send_none", sendmmsg(p.client, m, 0, 0));
    v[1].iov_base = before_nothing(0);
    CALL("send_partly", sendmmsg(p.client, m, 3, 0));
    CALL("send_nowhere", sendmmsg(p.client, &m[1], 2, 0));
    MUST(shutdown(p.client, SHUT_WR));
    CALL("send_closed", sendmmsg(p.client, m, 3, MSG_NOSIGNAL));
    MUST(recv(p.server, buf, 2, MSG_WAITALL));
    CALL("at_the_end", recvmmsg(p.server, m, 1, 0, NULL));
    say("length", "%u", m[0].msg_len);
}

// Tee, vmsplice and splice between sockets and pipes, and file calls that sockets refuse.
CASE(tee_and_vmsplice) {
    struct pair p = pair();
    int a[2], b[2];
    MUST(pipe(a));
    MUST(pipe(b));
    CALL("tee_to_socket", tee(a[0], p.client, 10, SPLICE_F_NONBLOCK));
    CALL("tee_from_socket", tee(p.client, b[1], 10, SPLICE_F_NONBLOCK));
    struct iovec v = {buf, 10};
    CALL("vmsplice", vmsplice(p.client, &v, 1, 0));
    MUST(write(p.client, "abcdef", 6));
    wait_unread(p.server, 6);
    CALL("splice_some", splice(p.server, NULL, a[1], NULL, 4, 0));
    CALL("splice_rest", splice(p.server, NULL, a[1], NULL, 100, 0));
    CALL("splice_none", splice(p.server, NULL, a[1], NULL, 100, SPLICE_F_NONBLOCK));
    CALL("splice_zero", splice(p.server, NULL, a[1], NULL, 0, 0));
    CALL("back", splice(a[0], NULL, p.server, NULL, 100, SPLICE_F_MORE));
    CALL("read", recv(p.client, buf, 6, MSG_WAITALL));
    MUST(shutdown(p.client, SHUT_WR));
    wait_events(p.server, POLLRDHUP);
    CALL("splice_end", splice(p.server, NULL, a[1], NULL, 100, 0));
    CALL("sockets", splice(p.server, NULL, p.client, NULL, 1, 0));
    CALL("seek", lseek(p.client, 0, SEEK_CUR));
    CALL("fsync", fsync(p.client));
    CALL("truncate", ftruncate(p.client, 0));
    CALL("map", mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.client, 0) == MAP_FAILED ? -1 : 0);
}

// Connect in each state of a socket, with right and wrong addresses.
CASE(connect_states) {
    int l = listening(), c = tcp();
    struct sockaddr_in a = loopback(port_of(l));
    MUST(connect_to(c, l));
    CALL("connected", connect(c, (struct sockaddr *)&a, sizeof a));
    MUST(shutdown(c, SHUT_WR));
    CALL("shut", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("short", connect(c, (struct sockaddr *)&a, 4));
    CALL("listener", connect(l, (struct sockaddr *)&a, sizeof a));
    CALL("listen", listen(c, 1));
    a.sin_port = 0;
    int d = tcp();
    CALL("port_0", connect(d, (struct sockaddr *)&a, sizeof a));
    a.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    a.sin_port = htons(80);
    CALL("broadcast", connect(d, (struct sockaddr *)&a, sizeof a));
    a = loopback(port_of(l));
    CALL("then", connect(d, (struct sockaddr *)&a, sizeof a));
}

// The names of closed and reset connections.
CASE(names_in_each_state) {
    struct pair p = pair();
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    MUST(shutdown(p.client, SHUT_RDWR));
    MUST(shutdown(p.server, SHUT_RDWR));
    wait_events(p.client, POLLHUP);
    wait_events(p.server, POLLHUP);
    rest(30);
    CALL("peer", getpeername(p.client, (struct sockaddr *)&a, &len));
    CALL("name", getsockname(p.client, (struct sockaddr *)&a, &len));
    say("host", "%x", ntohl(a.sin_addr.s_addr));
    CALL("server_peer", getpeername(p.server, (struct sockaddr *)&a, &len));
    CALL("shutdown_again", shutdown(p.client, SHUT_WR));
    int fd = reset_by_peer();
    CALL("reset_peer", getpeername(fd, (struct sockaddr *)&a, &len));
    CALL("reset_name", getsockname(fd, (struct sockaddr *)&a, &len));
    CALL("reset_shutdown", shutdown(fd, SHUT_RDWR));
    CALL("reset_read", read(fd, buf, 1));
    CALL("reset_then", read(fd, buf, 1));
}

static int few_descriptors(int left) {
    int used = -1;
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 64;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int taken[64], count = 0;
    while (count < 64 && (used = open("/dev/null", O_RDONLY)) >= 0) taken[count++] = used;
    while (left-- > 0) close(taken[--count]);
    return count;
}

// Accept without a free descriptor: EMFILE, and the connection waits until one is free.
CASE(accept_without_descriptors) {
    int l = listening(), c = tcp();
    MUST(connect_to(c, l));
    wait_events(l, POLLIN);
    few_descriptors(0);
    CALL("none_left", accept(l, NULL, NULL));
    say_events("still", events_of(l));
    close(0);
    int fd = (int)CALL("then", accept(l, NULL, NULL));
    CALL("write", write(c, "abc", 3));
    CALL("read", recv(fd, buf, 3, MSG_WAITALL));
    CALL("none_left_again", accept(l, NULL, NULL));
}

// Connect needs no further descriptor.
CASE(connect_without_descriptors) {
    int l = listening(), c = tcp();
    few_descriptors(0);
    CALL("connect", connect_to(c, l));
    CALL("write", write(c, "abc", 3));
    CALL("socket", socket(AF_INET, SOCK_STREAM, 0));
    CALL("dup", dup(c));
    CALL("epoll", epoll_create1(0));
    CALL("poll", poll((struct pollfd[]){{c, POLLIN, 0}, {l, POLLIN, 0}}, 2, 100));
}

// Listen needs no further descriptor.
CASE(listen_without_descriptors) {
    int l = tcp();
    few_descriptors(0);
    CALL("listen", listen(l, 5));
    CALL("again", listen(l, 5));
}

// Every way to copy a descriptor, its close-on-exec flag, and close_range.
CASE(copies_of_every_kind) {
    struct pair p = pair();
    int high = (int)CALL("dupfd", fcntl(p.client, F_DUPFD, 200));
    int closing = (int)CALL("cloexec", fcntl(p.client, F_DUPFD_CLOEXEC, 300));
    say("flags", "%d,%d", fcntl(high, F_GETFD), fcntl(closing, F_GETFD));
    CALL("dup2", dup2(p.client, 400));
    say("dup2_itself", "%d", dup2(p.client, p.client) == p.client);
    CALL("dup3_itself", dup3(p.client, p.client, 0));
    CALL("dup3_flags", dup3(p.client, 401, O_NONBLOCK));
    CALL("dup3", dup3(p.client, 401, O_CLOEXEC));
    say("flags", "%d,%d", fcntl(400, F_GETFD), fcntl(401, F_GETFD));
    CALL("negative", fcntl(p.client, F_DUPFD, -1));
    CALL("too_high", fcntl(p.client, F_DUPFD, 1 << 30));
    CALL("cloexec_range", close_range(300, 401, CLOSE_RANGE_CLOEXEC));
    say("flags", "%d,%d", fcntl(400, F_GETFD), fcntl(closing, F_GETFD));
    CALL("close_range", close_range(200, 400, 0));
    CALL("write", write(401, "abc", 3));
    close(p.client);
    CALL("still", write(401, "def", 3));
    CALL("read", recv(p.server, buf, 6, MSG_WAITALL));
    close(401);
    CALL("end", recv(p.server, buf, 6, 0));
}

// One epoll, poll and select over a socket, a pipe, a timerfd, an eventfd, a signalfd and UDP.
CASE(many_kinds_at_once) {
    struct pair p = pair();
    int ends[2], ep = (int)MUST(epoll_create1(0)), udp = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(pipe(ends));
    int timer = (int)MUST(timerfd_create(CLOCK_MONOTONIC, 0)), event = (int)MUST(eventfd(0, 0));
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int signal = (int)MUST(signalfd(-1, &signals, 0));
    int fds[] = {p.server, ends[0], timer, event, signal, udp};
    struct pollfd polled[6];
    for (int i = 0; i < 6; i++) {
        struct epoll_event e = {EPOLLIN, {.u64 = (unsigned)i}};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e));
        polled[i] = (struct pollfd){fds[i], POLLIN, 0};
    }
    struct epoll_event got[10];
    CALL("nothing", epoll_wait(ep, got, 10, 0));
    struct itimerspec soon = {.it_value = {0, 30000000}};
    MUST(timerfd_settime(timer, 0, &soon, NULL));
    CALL("timer", epoll_wait(ep, got, 10, 3000));
    say("which", "%lu", (unsigned long)got[0].data.u64);
    MUST(write(p.client, "x", 1));
    MUST(write(ends[1], "x", 1));
    MUST(write(event, &(uint64_t){1}, 8));
    MUST(kill(getpid(), SIGUSR1));
    wait_unread(p.server, 1);
    rest(10);
    CALL("poll", poll(polled, 6, 1000));
    int n = (int)CALL("all", epoll_wait(ep, got, 10, 1000)), seen = 0;
    for (int i = 0; i < n; i++) seen |= 1 << got[i].data.u64;
    say("seen", "%x", seen);
    fd_set set;
    FD_ZERO(&set);
    for (int i = 0; i < 6; i++) FD_SET(fds[i], &set);
    CALL("select", select(udp + 1, &set, NULL, NULL, &(struct timeval){1, 0}));
}

// A new socket gets the number of a watched one that was closed, and is not watched.
CASE(closed_in_epoll_by_another) {
    struct pair p = pair();
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN | EPOLLOUT, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.server, &e));
    int number = p.server;
    MUST(close(p.server));
    CALL("gone", epoll_wait(ep, &e, 1, 0));
    int other = tcp();
    say("same", "%d", other == number);
    CALL("mod", epoll_ctl(ep, EPOLL_CTL_MOD, other, &e));
    CALL("add", epoll_ctl(ep, EPOLL_CTL_ADD, other, &e));
    CALL("wait", epoll_wait(ep, &e, 1, 1000));
    say_events("events", e.events);
    CALL("del", epoll_ctl(ep, EPOLL_CTL_DEL, other, NULL));
}

static void spawn(struct pair *p, const char *name, short flags, bool keep) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (keep) posix_spawn_file_actions_addopen(&actions, p->client, "/dev/null", O_RDONLY, 0);
    else posix_spawn_file_actions_addclose(&actions, p->client);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, flags);
    char *words[] = {"/bin/true", NULL};
    pid_t child = 0;
    int failed = posix_spawn(&child, words[0], &actions, &attributes, words, environ), status = -1;
    waitpid(child, &status, 0);
    say(name, "%d,%d", failed, status);
}

// Children by posix_spawn and vfork close and copy descriptors without effect on the parent's.
CASE(spawned_children_disturb_nothing) {
    struct pair p = pair();
    spawn(&p, "close", 0, false);
    spawn(&p, "open", 0, true);
    spawn(&p, "vfork", POSIX_SPAWN_USEVFORK, false);
    pid_t child = vfork();
    if (child == 0) {
        close(p.client);
        dup2(p.listener, p.server);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    MUST(write(p.client, "abc", 3));
    CALL("read", recv(p.server, buf, 3, MSG_WAITALL));
}

static void toggle(void *fd) {
    nonblocking(*(int *)fd, false);
}

// O_NONBLOCK belongs to the socket, not to one of its descriptors.
CASE(nonblock_shared_by_copies) {
    struct pair p = pair();
    int copy = dup(p.server);
    nonblocking(copy, true);
    CALL("read", read(p.server, buf, 1));
    CALL("waitall", recv(p.server, buf, 1, MSG_WAITALL));
    int on = 0;
    CALL("fionbio", ioctl(p.server, FIONBIO, &on));
    say("flags", "%d", fcntl(copy, F_GETFL) & O_NONBLOCK);
    nonblocking(p.server, true);
    pthread_t thread = later(30, toggle, &copy);
    CALL("again", read(p.server, buf, 1));
    pthread_join(thread, NULL);
    CALL("ioctl", ioctl(p.server, 0x1234567, &on));
    CALL("async", fcntl(p.server, F_SETFL, O_ASYNC | O_APPEND));
    say("flags", "%x", fcntl(p.server, F_GETFL));
}

// SO_LINGER with extreme times, and SO_ERROR after a reset.
CASE(options_of_time_and_error) {
    struct pair p = pair();
    struct linger l = {1, 1 << 30};
    socklen_t len = sizeof l;
    CALL("linger_long", setsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
    say("linger", "%d,%d", l.l_onoff, l.l_linger);
    l = (struct linger){0, 7};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_LINGER, &l, &len));
    say("linger", "%d,%d", l.l_onoff, l.l_linger);
    int fd = reset_by_peer();
    say("error", "%d", get_int(fd, SOL_SOCKET, SO_ERROR));
    say("again", "%d", get_int(fd, SOL_SOCKET, SO_ERROR));
    CALL("read", read(fd, buf, 1));
    CALL("send", send(fd, "x", 1, MSG_NOSIGNAL));
    fd = reset_by_peer();
    struct pollfd polled = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    CALL("poll", poll(&polled, 1, 0));
    say_events("events", (unsigned)polled.revents);
    get_int(fd, SOL_SOCKET, SO_ERROR);
    CALL("poll", poll(&polled, 1, 0));
    say_events("events", (unsigned)polled.revents);
}
