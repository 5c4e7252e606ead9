/* A proxy with one thread: `splice-proxy PORT SERVER PORT`. It passes the first bytes of each client on by itself, as one
 * that looks at the request does. Then it hands both connections over to the stack (docs/guide/splicing.md). Without
 * Towpath it passes all bytes on.
 * cc -Wall -Wextra -o splice-proxy crates/preload/examples/splice-proxy.c */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOWPATH_SPLICE 0x5450 /* no header of the system has it */

enum { PAIRS = 200 };

/* One end, and what has come from it and has not gone on. */
struct end {
    int fd, ended;
    size_t begin, filled;
    char bytes[16384];
};

/* The client is end 0, the server end 1. */
struct pair {
    enum { FREE, BEGINS, TRIES, COPIES, SPLICED } how;
    int waited;
    struct end ends[2];
};

static struct pair pairs[PAIRS];
static struct pollfd polled[1 + 2 * PAIRS];
static int spliced, copied;

static void finish(struct pair *pair, int error) {
    struct linger reset = {.l_onoff = 1};
    for (int i = 0; i < 2; i++) {
        if (error) /* the other peer shall see it, too */
            setsockopt(pair->ends[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(pair->ends[i].fd);
    }
    printf("over: %s\n", strerror(error));
    pair->how = FREE;
}

/* Passes on what has come from end `i`. Returns an errno, or 0 also if it must wait. */
static int pass(struct pair *pair, int i) {
    struct end *from = &pair->ends[i], *to = &pair->ends[1 - i];
    ssize_t count;
    if (from->begin == from->filled && !from->ended) {
        if ((count = read(from->fd, from->bytes, sizeof from->bytes)) < 0)
            return errno == EAGAIN ? 0 : errno;
        from->begin = 0, from->filled = (size_t)count, from->ended = count == 0;
        if (from->ended)
            shutdown(to->fd, SHUT_WR);
    }
    while (from->begin < from->filled) {
        if ((count = write(to->fd, from->bytes + from->begin, from->filled - from->begin)) < 0)
            return errno == EAGAIN ? 0 : errno;
        from->begin += (size_t)count;
        if (pair->how == BEGINS && i == 0)
            pair->how = TRIES;
    }
    return 0;
}

/* Hands both connections over, once nothing is left here. */
static void splice_both(struct pair *pair) {
    struct end *client = &pair->ends[0], *server = &pair->ends[1];
    if (client->begin < client->filled || server->begin < server->filled)
        return;
    if (!client->ended && !server->ended) {
        if (setsockopt(client->fd, IPPROTO_TCP, TOWPATH_SPLICE, &server->fd, sizeof server->fd) == 0) {
            pair->how = SPLICED;
            printf("spliced: %d\n", ++spliced);
            return;
        }
        if (errno == EAGAIN) /* there is more to pass on, or a peer has not acknowledged all */
            return;
        if (errno == ETIMEDOUT && ++pair->waited < 10) /* a peer takes nothing for now, or the machine is busy */
            return;
    }
    pair->how = COPIES;
    printf("copied: %d, %s\n", ++copied, client->ended || server->ended ? "it ends" : strerror(errno));
}

static void serve(struct pair *pair, const struct pollfd *events) {
    char byte;
    if (pair->how == SPLICED) { /* nothing comes here any more but the end */
        for (int i = 0; i < 2; i++)
            if (events[i].revents) {
                ssize_t count = read(pair->ends[i].fd, &byte, 1);
                if (count >= 0 || errno != EAGAIN)
                    return finish(pair, count < 0 ? errno : 0);
            }
        return;
    }
    for (int i = 0; i < 2; i++) {
        int error = pass(pair, i);
        if (error)
            return finish(pair, error);
    }
    if (pair->how == TRIES)
        splice_both(pair);
    if (pair->ends[0].ended && pair->ends[1].ended)
        finish(pair, 0);
}

static void begin(int listening, struct pair *pair, const struct addrinfo *server) {
    int on = 1, client = accept4(listening, NULL, NULL, SOCK_NONBLOCK), to = socket(server->ai_family, SOCK_STREAM, 0);
    if (client < 0 || connect(to, server->ai_addr, server->ai_addrlen) < 0) {
        perror("a client");
        close(client), close(to);
        return;
    }
    fcntl(to, F_SETFL, O_NONBLOCK);
    /* A short segment does not wait for the acknowledgement of the one before. */
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    memset(pair, 0, sizeof *pair);
    pair->how = BEGINS, pair->ends[0].fd = client, pair->ends[1].fd = to;
}

int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *server, *own;
    int on = 1, listening;
    if (argc != 4 || getaddrinfo(argv[2], argv[3], &hints, &server) != 0)
        return fprintf(stderr, "usage: %s PORT SERVER PORT\n", argv[0]), 2;
    hints.ai_family = server->ai_family, hints.ai_flags |= AI_PASSIVE;
    if (getaddrinfo(NULL, argv[1], &hints, &own) != 0)
        return fprintf(stderr, "%s is no port\n", argv[1]), 2;
    listening = socket(own->ai_family, SOCK_STREAM, 0);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listening, own->ai_addr, own->ai_addrlen) < 0 || listen(listening, 128) < 0)
        return perror("listen"), 1;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    for (;;) {
        struct pair *unused = NULL;
        int tries = 0;
        for (int p = 0; p < PAIRS; p++) {
            struct pair *pair = &pairs[p];
            if (pair->how == FREE)
                unused = pair;
            tries |= pair->how == TRIES;
            for (int i = 0; i < 2; i++) {
                struct end *own = &pair->ends[i], *other = &pair->ends[1 - i];
                int reads = own->begin == own->filled && !own->ended, writes = other->begin < other->filled;
                polled[1 + 2 * p + i] = (struct pollfd){
                    .fd = pair->how != FREE && (reads || writes) ? own->fd : -1,
                    .events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)),
                };
            }
        }
        polled[0] = (struct pollfd){.fd = unused ? listening : -1, .events = POLLIN};
        /* No event tells of the acknowledgement that a splicing may wait for. */
        poll(polled, 1 + 2 * PAIRS, tries ? 1 : -1);
        for (int p = 0; p < PAIRS; p++) {
            const struct pollfd *events = &polled[1 + 2 * p];
            if (pairs[p].how == TRIES || events[0].revents || events[1].revents)
                serve(&pairs[p], events);
        }
        if (polled[0].revents)
            begin(listening, unused, server);
    }
}
