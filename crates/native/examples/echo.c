/* An echo server: `echo 127.0.0.1 7777`. Received bytes are copied once, from the one ring into the other.
 * cc -Wall -Wextra -I crates/native/include -o echo crates/native/examples/echo.c -L target/release -ltowpath_native */
#include "towpath.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-result));
        exit(1);
    }
}

/* Copies the beginning of what was received into the room. */
static void copy(const struct towpath_span from[3], const struct towpath_span to[3], size_t count) {
    size_t in = 0, out = 0, in_at = 0, out_at = 0;
    while (count > 0) {
        size_t piece = from[in].len - in_at < to[out].len - out_at ? from[in].len - in_at : to[out].len - out_at;
        if (piece > count)
            piece = count;
        memcpy((char *)to[out].base + out_at, (const char *)from[in].base + in_at, piece);
        count -= piece;
        in_at += piece;
        out_at += piece;
        if (in_at == from[in].len)
            in++, in_at = 0;
        if (out_at == to[out].len)
            out++, out_at = 0;
    }
}

/* Sends back all that is there, as far as there is room; 0: the connection is done with. */
static int echo(struct towpath_connection *connection) {
    for (;;) {
        struct towpath_span received[3], room[3];
        ssize_t count = towpath_received(connection, received);
        if (count <= 0)
            return count == -EAGAIN;
        ssize_t free = towpath_reserve(connection, (size_t)count, room);
        if (free < 0)
            return free == -EAGAIN;
        copy(received, room, (size_t)free);
        towpath_commit(connection, (size_t)free);
        towpath_consume(connection, (size_t)free);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(argc > 2 ? (uint16_t)atoi(argv[2]) : 7777)};
    if (argc < 2 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT\n", argv[0]);
        return 2;
    }
    struct towpath *stack;
    struct towpath_listener *listener;
    check(towpath_open(NULL, &stack), "towpath_open");
    check(towpath_listen(stack, (struct sockaddr *)&address, sizeof address, 1024, 0, &listener), "towpath_listen");
    check(towpath_watch_listener(stack, listener, 0), "towpath_watch_listener");
    struct sockaddr_storage local;
    towpath_listener_local(listener, &local);
    printf("ready on %s:%d\n", argv[1], ntohs(((struct sockaddr_in *)&local)->sin_port));
    fflush(stdout);
    for (;;) {
        struct towpath_event events[64];
        int count = towpath_wait(stack, events, 64, -1);
        check(count, "towpath_wait");
        for (int i = 0; i < count; i++) {
            /* A connection's token is its address: a closed one has no more events. */
            struct towpath_connection *connection = (struct towpath_connection *)(uintptr_t)events[i].token;
            if (connection != NULL) {
                if (!echo(connection))
                    towpath_connection_close(connection);
                continue;
            }
            while (towpath_accept(listener, &connection) == 0)
                check(towpath_watch(stack, connection, (uintptr_t)connection), "towpath_watch");
        }
    }
}
