/* Accepts by io_uring and answers each connection with what it has sent. Arguments: `single` or `multishot`, and a port. */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static long must(const char *what, long result) {
    if (result < 0) {
        errno = result == -1 ? errno : (int)-result;
        perror(what);
        exit(1);
    }
    return result;
}

static int listening(int port) {
    int s = (int)must("socket", socket(AF_INET6, SOCK_STREAM, 0)), off = 0, on = 1;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port)};
    must("IPV6_V6ONLY", setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    must("SO_REUSEADDR", setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    must("bind", bind(s, (struct sockaddr *)&at, sizeof at));
    must("listen", listen(s, 512));
    return s;
}

static void answer(int c) {
    char word[64];
    long n = must("recv", recv(c, word, sizeof word, 0));
    must("send", send(c, word, (size_t)n, 0));
    close(c);
}

static void submit_accept(struct io_uring *ring, int s, int multishot) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (multishot) io_uring_prep_multishot_accept(sqe, s, NULL, NULL, 0);
    else io_uring_prep_accept(sqe, s, NULL, NULL, 0);
    must("submit", io_uring_submit(ring));
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int multishot = !strcmp(argv[1], "multishot"), s = listening(atoi(argv[2]));
    struct io_uring ring;
    must("ring", io_uring_queue_init(64, &ring, 0));
    submit_accept(&ring, s, multishot);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct io_uring_cqe *cqe;
        must("wait", io_uring_wait_cqe(&ring, &cqe));
        int c = cqe->res, more = (cqe->flags & IORING_CQE_F_MORE) != 0;
        io_uring_cqe_seen(&ring, cqe);
        if (!more) submit_accept(&ring, s, multishot);
        must("accept", c);
        answer(c);
    }
}
