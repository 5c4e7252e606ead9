// Copies of descriptors, before and after the socket is connected; passed descriptors; file calls on sockets.
#include "conformance.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/stat.h>
#define THEME "copies"

static char buf[100];

// A copy from before connect is the connected socket too, and keeps the connection open.
CASE(before_connect) {
    int l = listening(), c = tcp(), copy = (int)MUST(dup(c));
    CALL("connect", connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("write_copy", write(copy, "abc", 3));
    CALL("read", recv(s, buf, 3, MSG_WAITALL));
    say_events("copy", events_of(copy));
    CALL("close", close(c));
    CALL("write_rest", write(copy, "d", 1));
    CALL("close_copy", close(copy));
    CALL("read_rest", recv(s, buf, 3, MSG_WAITALL));
}

// A copy from before listen is the listener too.
CASE(before_listen) {
    int l = bound(0), copy = (int)MUST(dup(l));
    CALL("listen", listen(l, 5));
    int c = tcp();
    CALL("connect", connect_to(c, copy));
    CALL("accept_copy", accept(copy, NULL, NULL) >= 0);
    CALL("listening", get_int(copy, SOL_SOCKET, SO_ACCEPTCONN));
}

// Connect by a copy connects the original.
CASE(connect_by_the_copy) {
    int l = listening(), c = tcp(), copy = (int)MUST(fcntl(c, F_DUPFD_CLOEXEC, 100));
    CALL("connect", connect_to(copy, l));
    CALL("write", write(c, "abc", 3));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("read", recv(s, buf, 3, MSG_WAITALL));
    say("flags", "%d,%d", fcntl(c, F_GETFD), fcntl(copy, F_GETFD));
}

// A child connects a socket that it has from its parent. The parent uses the connection.
CASE(forked_before_connect) {
    int l = listening(), c = tcp();
    pid_t pid = fork();
    if (pid == 0) _exit(connect_to(c, l) == 0 ? 0 : 1);
    int status;
    waitpid(pid, &status, 0);
    say("child", "%d", WEXITSTATUS(status));
    CALL("write", send(c, "abc", 3, MSG_NOSIGNAL));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("read", recv(s, buf, 3, MSG_WAITALL));
}

// A child listens on a socket that it has from its parent. The parent accepts.
CASE(forked_before_listen) {
    int l = bound(0);
    pid_t pid = fork();
    if (pid == 0) _exit(listen(l, 5) == 0 ? 0 : 1);
    int status;
    waitpid(pid, &status, 0);
    int c = tcp();
    connect_to(c, l);
    nonblocking(l, true);
    CALL("accept", accept(l, NULL, NULL) >= 0);
}

// Forks other than by libc's `fork`. The parent closes its descriptor at once, so that only the child has the connection.
static int in_child(void *arg) {
    int copy = *(int *)arg, to = dup2(copy, 50);
    close(copy);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    if (getpeername(to, (struct sockaddr *)&name, &length) || name.sin_family != AF_INET)
        return 2;
    ssize_t n = read(to, buf, 3);
    return n == 3 && write(to, buf, 3) == 3 ? 0 : 1;
}

static void through_a_child(const char *key, pid_t pid, struct pair p) {
    int status = 0;
    if (pid == 0)
        _exit(in_child(&p.server));
    MUST(close(p.server));
    MUST(write(p.client, "abc", 3));
    CALL("echo", recv(p.client, buf, 3, MSG_WAITALL));
    waitpid(pid, &status, 0);
    say(key, "%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    CALL("end", recv(p.client, buf, 3, MSG_WAITALL));
}

// Children by the system calls clone, fork and clone3 use their parent's connection, then end it.
CASE(forked_by_system_calls) {
    struct pair p = pair();
    through_a_child("clone", (pid_t)MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)), p);
    p = pair();
    through_a_child("fork", (pid_t)MUST(syscall(SYS_fork)), p);
    p = pair();
    unsigned long long arguments[8] = {[4] = SIGCHLD};
    through_a_child("clone3", (pid_t)MUST(syscall(SYS_clone3, arguments, sizeof arguments)), p);
}

// Children by libc's _Fork and clone use their parent's connection, then end it.
CASE(forked_by_functions) {
    extern pid_t _Fork(void);
    static _Alignas(16) char stack[65536];
    struct pair p = pair();
    through_a_child("_Fork", (pid_t)MUST(_Fork()), p);
    p = pair();
    through_a_child("clone", (pid_t)MUST(clone(in_child, stack + sizeof stack, SIGCHLD, &p.server)), p);
}

// Copies of a connected socket share O_NONBLOCK, not close-on-exec. The last close ends the connection.
CASE(after_connect) {
    struct pair p = pair();
    int copy = (int)MUST(dup2(p.client, 50));
    CALL("nonblock_is_shared", nonblocking(p.client, true));
    CALL("read", read(copy, buf, 1));
    CALL("dup3_same", dup3(copy, copy, 0));
    CALL("dup2_same", dup2(copy, copy) == copy);
    CALL("dup2_bad", dup2(999, 51));
    CALL("dup3_flags", dup3(copy, 52, 77));
    CALL("cloexec", dup3(copy, 52, O_CLOEXEC) == 52);
    say("fd_flags", "%d,%d", fcntl(52, F_GETFD), fcntl(copy, F_GETFD));
    CALL("close", close(p.client));
    CALL("write", write(copy, "x", 1));
    MUST(close(copy));
    CALL("peer", recv(p.server, buf, 10, 0));
    CALL("not_ended", recv(p.server, buf, 10, MSG_DONTWAIT));
    MUST(close(52));
    CALL("ended", recv(p.server, buf, 10, 0));
}

static int lowest_free(void) {
    int fd = (int)MUST(dup(0));
    close(fd);
    return fd;
}

static void ignore(int signal) { (void)signal; }

// A connection that a child has had too ends with the parent's close: who reads what the parent sends next sees the end. Signals
// come meanwhile.
CASE(ended_before_the_next_send) {
    struct pair other = pair();
    int status, ended = 0, rounds = 20, free_before = lowest_free();
    struct sigaction often = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    struct itimerval period = {{0, 300}, {0, 300}}, never = {0};
    MUST(sigaction(SIGALRM, &often, NULL));
    MUST(setitimer(ITIMER_REAL, &period, NULL));
    for (int i = 0; i < rounds; i++) {
        struct pair p = pair();
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        waitpid(pid, &status, 0);
        int copy = (int)MUST(dup(p.client));
        MUST(close(p.client));
        if (i % 3 == 0)
            MUST(close(copy));
        else if (i % 3 == 1)
            MUST(syscall(SYS_close_range, copy, copy, 0));
        else
            MUST(dup2(other.client, copy));
        MUST(write(other.client, "x", 1));
        MUST(read(other.server, buf, 1));
        ended += recv(p.server, buf, 1, MSG_DONTWAIT) == 0;
        if (i % 3 == 2)
            close(copy);
        close(p.server);
        close(p.listener);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    say("ended", "%d/%d", ended, rounds);
    say("free", "%d", lowest_free() == free_before);
}

// A program under a seccomp filter that allows only what it needs may close the last of several descriptors.
CASE(closed_under_a_filter) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_create1, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    for (int way = 0; way < 3; way++) {
        struct pair p = pair();
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            if (way == 0)
                MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
            else if (way == 1)
                MUST(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
            else
                MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
            _exit(close(p.client) == 0 ? 0 : 1);
        }
        MUST(close(p.client));
        waitpid(pid, &status, 0);
        say("child", "%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        CALL("ended", recv(p.server, buf, 1, 0));
    }
}

// The last close of several resets the connection, if SO_LINGER says so. The others do not.
CASE(last_close_resets) {
    struct pair p = pair();
    struct linger at_once = {1, 0};
    int copy = (int)MUST(dup(p.client));
    MUST(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    CALL("close", close(p.client));
    CALL("open", recv(p.server, buf, 1, MSG_DONTWAIT));
    CALL("close_last", close(copy));
    CALL("reset", recv(p.server, buf, 1, 0));
}

// Dup2 over a connected socket ends its connection.
CASE(over_a_socket) {
    struct pair p = pair(), q = pair();
    CALL("dup2", dup2(q.client, p.client) == p.client);
    CALL("ended", recv(p.server, buf, 10, 0));
    MUST(write(q.server, "x", 1));
    CALL("read", recv(p.client, buf, 10, 0));
}

// Copies share the end of the stream and the pending error.
CASE(shared_error_and_shutdown) {
    struct pair p = pair();
    int copy = (int)MUST(dup(p.client));
    MUST(shutdown(copy, SHUT_WR));
    CALL("write", send(p.client, "x", 1, MSG_NOSIGNAL));
    int r = reset_by_peer(), copy2 = (int)MUST(dup(r));
    CALL("error", get_int(r, SOL_SOCKET, SO_ERROR));
    CALL("copy", get_int(copy2, SOL_SOCKET, SO_ERROR));
}

// File calls on a connected socket, and its name in /proc.
CASE(what_a_descriptor_is) {
    struct pair p = pair();
    struct stat s;
    CALL("fstat", fstat(p.client, &s));
    say("socket", "%d", S_ISSOCK(s.st_mode));
    CALL("isatty", isatty(p.client));
    CALL("ftruncate", ftruncate(p.client, 0));
    CALL("fsync", fsync(p.client));
    CALL("fchmod", fchmod(p.client, 0600));
    char link[100] = "", name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", p.client);
    CALL("readlink", readlink(name, link, 8));
    say("link", "%s", link);
}

// A connection whose descriptor is sent to the same process (SCM_RIGHTS), which closes the original.
CASE(passed_to_oneself) {
    struct pair p = pair();
    int u[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {"x", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &p.client, sizeof(int));
    CALL("send", sendmsg(u[0], &m, 0));
    v.iov_base = buf;
    m.msg_controllen = sizeof space;
    CALL("recv", recvmsg(u[1], &m, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    MUST(close(p.client));
    CALL("write", send(fd, "abc", 3, MSG_NOSIGNAL));
    struct timeval t = {0, 300000};
    MUST(setsockopt(p.server, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    CALL("read", recv(p.server, buf, 3, MSG_WAITALL));
}

// Fdopen on both ends of a connection: print, flush, read lines, close.
CASE(stdio) {
    struct pair p = pair();
    FILE *out = fdopen(p.client, "w"), *in = fdopen(p.server, "r");
    CALL("print", fprintf(out, "line %d\n", 1));
    CALL("flush", fflush(out));
    char line[100] = "";
    say("got", "%d", fgets(line, sizeof line, in) != NULL);
    say_bytes("line", line, (long)strlen(line));
    say("same", "%d%d", fileno(out) == p.client, fileno(in) == p.server);
    fputs("rest\n", out);
    CALL("close", fclose(out));
    CALL("closed", write(p.client, "x", 1));
    say("second", "%d", fgets(line, sizeof line, in) != NULL);
    say("end", "%d", fgets(line, sizeof line, in) == NULL && feof(in));
}

// Dprintf to sockets, a pipe, and no descriptor.
CASE(print_to_a_descriptor) {
    struct pair p = pair();
    CALL("dprintf", dprintf(p.client, "again\n"));
    rest(50);
    CALL("read", recv(p.server, buf, 6, MSG_DONTWAIT));
    const char *word = "word";
    CALL("long", dprintf(p.client, "%s %d %.2f %ld %c %g %g %g %g %g %g %g %g %g|", word, 7, 2.5, 1L << 40, 'x', 1., 2., 3.,
                         4., 5., 6., 7., 8., 9.));
    rest(50);
    long n = CALL("read", recv(p.server, buf, sizeof buf, MSG_DONTWAIT));
    say_bytes("bytes", buf, n);
    MUST(shutdown(p.client, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    CALL("closed", dprintf(p.client, "again\n"));
    CALL("nowhere", dprintf(-1, "again\n"));
    int ends[2];
    MUST(pipe(ends));
    CALL("pipe", dprintf(ends[1], "%d", 12345));
    CALL("read", read(ends[0], buf, 10));
}

static int taken(pid_t from, int fd) {
    int process = (int)MUST(syscall(SYS_pidfd_open, from, 0));
    // It stays open, so that the errno does.
    return (int)syscall(SYS_pidfd_getfd, process, fd, 0);
}

// pidfd_getfd copies a connection and a socket that is not connected yet, of the process itself and of its child.
CASE(taken_by_pidfd) {
    struct pair p = pair();
    int copy = (int)MUST(taken(getpid(), p.client));
    say("cloexec", "%d", fcntl(copy, F_GETFD));
    CALL("write", write(copy, "abc", 3));
    MUST(close(p.client));
    CALL("read", recv(p.server, buf, 3, MSG_WAITALL));
    fflush(stdout);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) pause();
    int of_child = (int)MUST(taken(child, copy));
    MUST(close(copy));
    CALL("write", write(of_child, "def", 3));
    CALL("read", recv(p.server, buf, 3, MSG_WAITALL));
    MUST(kill(child, SIGKILL));
    waitpid(child, NULL, 0);
    MUST(close(of_child));
    CALL("end", recv(p.server, buf, 1, 0));
    int early = tcp(), both = (int)MUST(taken(getpid(), early));
    MUST(connect_to(early, p.listener));
    int s = (int)MUST(accept(p.listener, NULL, NULL));
    CALL("write", write(both, "x", 1));
    CALL("read", recv(s, buf, 1, 0));
    CALL("none", taken(getpid(), 100000));
}

// Close_range closes connected sockets.
CASE(close_range_closes) {
    struct pair p = pair();
    unsigned low = (unsigned)(p.client < p.server ? p.client : p.server);
    CALL("close", close_range(low, 100, 0));
    CALL("read", read(p.client, buf, 1));
    CALL("fresh", tcp() >= 0);
}

// Close_range of all descriptors ends connections, and the program goes on: it waits for and accepts new ones.
CASE(close_range_of_all_and_on) {
    struct pair p = pair();
    unsigned low = (unsigned)(p.client < p.server ? p.client : p.server);
    for (int i = 0; i < 5; i++) {
        MUST(connect_to(tcp(), p.listener));
        MUST(accept(p.listener, NULL, NULL));
    }
    CALL("close", close_range(low, ~0U, 0));
    int epfd = (int)MUST(epoll_create1(0)), l = listening();
    for (int i = 0; i < 3; i++) {
        int c = tcp();
        MUST(connect_to(c, l));
        int s = (int)MUST(accept(l, NULL, NULL));
        MUST(epoll_ctl(epfd, EPOLL_CTL_ADD, s, &(struct epoll_event){.events = EPOLLIN}));
        MUST(send(c, "x", 1, 0));
        struct epoll_event event;
        CALL("wait", epoll_wait(epfd, &event, 1, 5000));
        CALL("read", read(s, buf, 10));
        MUST(close(s));
        CALL("end", read(c, buf, 1));
        MUST(close(c));
    }
}

// With all descriptors used but one, accept gets exactly that number, as memcached expects.
CASE(last_descriptors) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024}));
    int l = listening(), clients[3] = {tcp(), tcp(), tcp()}, last = -1, next;
    MUST(connect_to(clients[0], l));
    MUST(connect_to(clients[1], l));
    while ((next = dup(0)) >= 0) last = next;
    CALL("none_left", dup(0));
    int a = accept(l, NULL, NULL);
    CALL("accept_without", a);
    MUST(close(last));
    a = (int)MUST(accept(l, NULL, NULL));
    say("the_last", "%d", a == last);
    MUST(send(clients[0], "x", 1, 0));
    CALL("recv", recv(a, &(char){0}, 1, 0));
    a = accept(l, NULL, NULL);
    CALL("accept_again", a);
    CALL("connect_without", connect_to(clients[2], l));
    CALL("send", send(clients[2], "x", 1, 0));
}
