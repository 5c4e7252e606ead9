// Opens, uses and closes connections again and again: `churn serve` or `churn connect PORT COUNT`.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 64 };

static void must(int held, const char *what) {
    if (held) return;
    printf("failed: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    exit(1);
}

static void watch(int ep, int fd) {
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

// Echoes. Closes a connection that sends a `q`.
static void serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ep = epoll_create1(0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0, "bind");
    must(listen(listener, 1024) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    watch(ep, listener);
    printf("port %d.\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(ep, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            char bytes[BYTES];
            if (fd == listener) {
                int fresh = accept(listener, NULL, NULL);
                if (fresh >= 0) watch(ep, fresh);
                continue;
            }
            ssize_t got = recv(fd, bytes, sizeof bytes, 0);
            if (got > 0) send(fd, bytes, (size_t)got, MSG_NOSIGNAL);
            if (got <= 0 || bytes[0] == 'q') close(fd);
        }
    }
}

static void use(int fd, char first) {
    char bytes[BYTES];
    memset(bytes, first, sizeof bytes);
    must(write(fd, bytes, sizeof bytes) == BYTES, "write");
    errno = 0;
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_WAITALL);
    if (got != BYTES) printf("%zd bytes. ", got);
    must(got == BYTES && bytes[BYTES - 1] == first, "recv");
}

// All connections at once. The client closes a third, the server a third, and a third is reset.
static void round_of(const struct sockaddr_in *address, int *fds, int count) {
    int ep = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        must(fds[i] >= 0, "socket");
        must(connect(fds[i], (const struct sockaddr *)address, sizeof *address) == 0, "connect");
        watch(ep, fds[i]);
    }
    for (int i = 0; i < count; i++) {
        use(fds[i], 'x');
        if (i % 3 == 1) {
            char byte;
            use(fds[i], 'q');
            must(read(fds[i], &byte, 1) == 0, "the end");
        } else if (i % 3 == 2) {
            struct linger reset = {1, 0};
            setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        if (i % 7 == 0) {
            int copy = dup(fds[i]);
            close(fds[i]);
            fds[i] = copy;
        }
    }
    for (int i = 0; i < count; i++) close(fds[i]);
    close(ep);
}

int main(int argc, char **argv) {
    if (argc < 4) serve();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((unsigned short)atoi(argv[2]));
    int count = atoi(argv[3]);
    int *fds = calloc((size_t)count, sizeof *fds);
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, NULL);
    for (int done = 1;; done++) {
        round_of(&address, fds, count);
        printf("round %d.\n", done);
        fflush(stdout);
        int signal;
        sigwait(&go, &signal);
    }
}
