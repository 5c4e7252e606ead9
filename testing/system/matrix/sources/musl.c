/* Echo servers (one with epoll, one with a process per connection) and their clients in one program, which prints one line per check.
 * Roles: serve, ask (from another host), all (from the same host). It is linked statically with musl. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
/* For use in a check, which fails with the line as its reason. */
#define EXPECT(what) do { if (!(what)) { snprintf(reason, sizeof reason, "line %d: %s: %s", __LINE__, #what, strerror(errno)); return 0; } } while (0)

enum { MANY = 200, CHILDREN = 10, PIECE = 16384 };

static struct sockaddr_in by_epoll, by_process;
static int rounds;
static char reason[300];

static int listener(struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    CHECK(!bind(fd, (struct sockaddr *)at, sizeof *at) && !listen(fd, 1000));
    return fd;
}

static int connected(struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)to, sizeof *to)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Server. */

/* The bytes that have been received and not sent back yet. */
struct echo { int fd; size_t held; char bytes[PIECE]; };

/* Returns 0 when the connection has ended. */
static int echo(struct echo *e, int epoll) {
    for (;;) {
        while (e->held) {
            ssize_t sent = send(e->fd, e->bytes, e->held, MSG_NOSIGNAL);
            struct epoll_event wanted = { .events = EPOLLOUT, .data.ptr = e };
            if (sent < 0)
                return errno == EAGAIN && !epoll_ctl(epoll, EPOLL_CTL_MOD, e->fd, &wanted);
            memmove(e->bytes, e->bytes + sent, e->held -= sent);
        }
        ssize_t got = recv(e->fd, e->bytes, PIECE, 0);
        struct epoll_event wanted = { .events = EPOLLIN, .data.ptr = e };
        if (got < 0)
            return errno == EAGAIN && !epoll_ctl(epoll, EPOLL_CTL_MOD, e->fd, &wanted);
        if (!got)
            return 0;
        e->held = got;
    }
}

static void serve_by_epoll(int listening) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ready[64], event = { .events = EPOLLIN };
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, listening, &event));
    for (;;) {
        int count = epoll_wait(epoll, ready, 64, -1);
        CHECK(count > 0 || errno == EINTR);
        for (int i = 0; i < count; i++) {
            struct echo *e = ready[i].data.ptr;
            if (!e) {
                e = calloc(1, sizeof *e);
                e->fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK);
                event.data.ptr = e;
                CHECK(e->fd >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, e->fd, &event));
            } else if (!echo(e, epoll)) {
                close(e->fd);
                free(e);
            }
        }
    }
}

static void serve_by_process(int listening) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listening, NULL, NULL);
        CHECK(fd >= 0);
        if (!fork()) {
            char bytes[PIECE];
            for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;)
                CHECK(write(fd, bytes, got) == got);
            _exit(0);
        }
        close(fd);
    }
}

/* Clients. */

static char byte_at(size_t n) {
    return n * 31 + n / 251;
}

static int exchanges(void) {
    int fd = connected(&by_epoll), one = 1;
    EXPECT(fd >= 0 && !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    for (int n = 1; n <= rounds; n++) {
        char out[2000], in[2000];
        for (int i = 0; i < n; i++)
            out[i] = byte_at(n + i);
        EXPECT(send(fd, out, n, 0) == n);
        EXPECT(recv(fd, in, n, MSG_WAITALL | MSG_PEEK) == n && recv(fd, in, n, MSG_WAITALL) == n && !memcmp(in, out, n));
    }
    EXPECT(!shutdown(fd, SHUT_WR) && recv(fd, &one, 1, 0) == 0);
    return !close(fd);
}

static int many(void) {
    struct pollfd open[MANY];
    char bytes[1000] = "";
    for (int i = 0; i < MANY; i++) {
        open[i] = (struct pollfd){ socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), POLLOUT };
        EXPECT(!connect(open[i].fd, (struct sockaddr *)&by_epoll, sizeof by_epoll) || errno == EINPROGRESS);
    }
    size_t back[MANY] = { 0 };
    for (int left = MANY; left;) {
        EXPECT(poll(open, MANY, 30000) > 0);
        for (int i = 0; i < MANY; i++) {
            if (open[i].revents & POLLOUT) {
                EXPECT(send(open[i].fd, bytes, sizeof bytes, 0) == sizeof bytes);
                open[i].events = POLLIN;
            } else if (open[i].revents) {
                ssize_t got = recv(open[i].fd, bytes, sizeof bytes, 0);
                EXPECT(got > 0);
                if ((back[i] += got) == sizeof bytes) {
                    close(open[i].fd);
                    open[i].fd = -1;
                    left--;
                }
            }
        }
    }
    return 1;
}

static int fresh(void) {
    for (int n = 0; n < rounds; n++) {
        int fd = connected(&by_epoll);
        char c = n, d = ~c;
        EXPECT(fd >= 0 && write(fd, &c, 1) == 1 && read(fd, &d, 1) == 1 && c == d);
        close(fd);
    }
    return 1;
}

struct large { int fd; size_t size; };

static void *writes(void *argument) {
    struct large *large = argument;
    char bytes[2][PIECE / 2];
    for (size_t sent = 0; sent < large->size;) {
        for (size_t i = 0; i < PIECE; i++)
            bytes[0][i] = byte_at(sent + i);
        struct iovec parts[2] = { { bytes[0], PIECE / 2 }, { bytes[1], PIECE / 2 } };
        ssize_t n = writev(large->fd, parts, 2);
        CHECK(n > 0);
        sent += n;
    }
    CHECK(!shutdown(large->fd, SHUT_WR));
    return NULL;
}

/* A thread writes and another reads the same connection. */
static int large(struct sockaddr_in *to, size_t pieces) {
    struct large large = { connected(to), pieces * PIECE };
    pthread_t writer;
    EXPECT(large.fd >= 0 && !pthread_create(&writer, NULL, writes, &large));
    size_t back = 0;
    char bytes[PIECE];
    for (ssize_t got; (got = read(large.fd, bytes, sizeof bytes)) > 0;)
        for (ssize_t i = 0; i < got; i++, back++)
            EXPECT(bytes[i] == byte_at(back));
    EXPECT(!pthread_join(writer, NULL) && back >= large.size && back < large.size + PIECE);
    return !close(large.fd);
}

static int threads(void) {
    return large(&by_epoll, rounds * 4);
}

static int processes(void) {
    for (int i = 0; i < CHILDREN; i++)
        if (!fork())
            _exit(!large(&by_process, 20));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        EXPECT(wait(&status) > 0 && status == 0);
    }
    return 1;
}

/* musl's stdio calls readv and writev. */
static int lines(void) {
    int fd = connected(&by_process);
    FILE *out = fdopen(fd, "w"), *in = fdopen(dup(fd), "r");
    EXPECT(in && out);
    for (int n = 0; n < rounds; n++) {
        char line[100], wanted[100];
        snprintf(wanted, sizeof wanted, "line %d of %d\n", n, rounds);
        EXPECT(fputs(wanted, out) >= 0 && !fflush(out) && fgets(line, sizeof line, in) && !strcmp(line, wanted));
    }
    return !fclose(out) & !fclose(in);
}

/* The kernel's treatment of a descriptor that is inherited over exec. */
static int executed(void) {
    int fd = connected(&by_process);
    EXPECT(fd >= 0);
    pid_t child = fork();
    if (!child) {
        dup2(fd, 0);
        dup2(fd, 1);
        execl("/bin/sh", "sh", "-c", "echo asked; read line; [ \"$line\" = asked ]", NULL);
        _exit(2);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    return !close(fd);
}

static int refused(void) {
    struct sockaddr_in nobody = by_epoll;
    nobody.sin_port = htons(1);
    EXPECT(connected(&nobody) < 0 && errno == ECONNREFUSED);
    return 1;
}

static int reset(void) {
    struct sockaddr_in at = by_epoll;
    socklen_t size = sizeof at;
    at.sin_port = 0;
    int listening = listener(&at), client, server;
    EXPECT(!getsockname(listening, (struct sockaddr *)&at, &size) && (client = connected(&at)) >= 0);
    EXPECT((server = accept(listening, NULL, NULL)) >= 0);
    struct linger at_once = { 1, 0 };
    char c;
    EXPECT(!setsockopt(server, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) && !close(server));
    EXPECT(read(client, &c, 1) < 0 && errno == ECONNRESET);
    return !close(client) & !close(listening);
}

int main(int count, char **words) {
    CHECK(count == 5);
    by_epoll = (struct sockaddr_in){ AF_INET, htons(atoi(words[2])), { inet_addr(words[1]) } };
    by_process = by_epoll;
    by_process.sin_port = htons(atoi(words[2]) + 1);
    rounds = atoi(words[4]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(words[3], "serve")) {
        int first = listener(&by_epoll), second = listener(&by_process);
        puts("listening");
        if (fork())
            serve_by_epoll(first);
        serve_by_process(second);
    }
    struct { const char *name; int (*holds)(void); int own; } checks[] = {
        { "one exchange after another", exchanges, 0 }, { "many connections at a time, by poll", many, 0 },
        { "a new connection each time", fresh, 0 }, { "two threads on one connection", threads, 0 },
        { "a process for each connection at both ends", processes, 0 }, { "lines by stdio", lines, 0 },
        { "a connection passed on by exec", executed, 0 },
        /* Checks that need both ends on one host. */
        { "a refused port", refused, 1 }, { "a reset", reset, 1 },
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].own && !strcmp(words[3], "ask"))
            printf("skip %s\n", checks[i].name);
        else if (checks[i].holds())
            printf("ok %s\n", checks[i].name);
        else
            printf("not ok %s: %s\n", checks[i].name, reason);
    }
    return 0;
}
