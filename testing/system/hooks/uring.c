/* Tries io_uring and AIO on an accelerated socket, and prints the results. Afterwards the socket must still echo. The argument is the way:
 * `syscall` (libc's function), without LIBRARIES `raw` (the instruction itself), with LIBRARIES `liburing`, `libaio` and `posix`. */
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef LIBRARIES
#include <liburing.h>
int io_setup(unsigned, aio_context_t *);
int io_submit(aio_context_t, long, struct iocb **);
#endif

static long by_libc(long number, long a, long b, long c) {
    long result = syscall(number, a, b, c);
    return result < 0 ? -errno : result;
}

#ifdef LIBRARIES
/* A program with such an instruction for io_uring is never preloaded. */
#define raw by_libc
#else
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
#endif

/* Makes a ring. Returns 0 or a negative errno. */
static long ring(const char *way) {
    struct io_uring_params params = {0};
    long fd = strcmp(way, "raw") ? by_libc(SYS_io_uring_setup, 4, (long)&params, 0)
                                 : raw(SYS_io_uring_setup, 4, (long)&params, 0);
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

/* Submits two requests: the first reads from a file, the second from the socket; with `alone` only the second. Returns how many
 * were accepted. */
static long submit(const char *way, int file, int sock, int alone) {
    static char into[2][4];
    aio_context_t context = 0;
    struct iocb requests[2], *list[2] = {&requests[alone], &requests[1]};
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < 2; i++) {
        requests[i].aio_fildes = i ? sock : file;
        requests[i].aio_lio_opcode = IOCB_CMD_PREAD;
        requests[i].aio_buf = (unsigned long)into[i];
        requests[i].aio_nbytes = 4;
    }
#ifdef LIBRARIES
    if (!strcmp(way, "libaio")) {
        if (io_setup(4, &context)) return -1;
        return io_submit(context, alone ? 1 : 2, list);
    }
#endif
    if (by_libc(SYS_io_setup, 4, (long)&context, 0)) return -1;
    return (strcmp(way, "raw") ? by_libc : raw)(SYS_io_submit, context, alone ? 1 : 2, (long)list);
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "syscall";
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof to;
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 1)) return 2;
    getsockname(listener, (void *)&to, &length);
    if (connect(out, (void *)&to, sizeof to)) return 3;
    int in = accept(listener, NULL, NULL);
    FILE *file = tmpfile();
    fputs("file", file);
    fflush(file);
#ifdef LIBRARIES
    if (!strcmp(way, "liburing")) {
        struct io_uring ring;
        struct io_uring_params params = {0};
        printf("ring %d %d\n", io_uring_queue_init(4, &ring, 0), io_uring_queue_init_params(4, &ring, &params));
    } else if (!strcmp(way, "posix")) {
        char into[4];
        struct aiocb request = {.aio_fildes = in, .aio_buf = into, .aio_nbytes = 4};
        printf("aio_read %d", aio_read(&request) ? errno : 0);
        request.aio_fildes = fileno(file);
        printf(" %d\n", aio_read(&request) ? errno : 0);
        const struct aiocb *list[1] = {&request};
        aio_suspend(list, 1, NULL);
        printf("read %zd\n", aio_return(&request));
    } else
#endif
    {
        printf("ring %ld\n", ring(way));
        printf("submit %ld %ld\n", submit(way, fileno(file), in, 1), submit(way, fileno(file), in, 0));
    }
    char answer[4] = "";
    if (write(out, "ping", 4) != 4 || read(in, answer, 4) != 4) return 4;
    printf("%.4s\n", answer);
    return 0;
}
