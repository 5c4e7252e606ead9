// io_uring by its system calls: transfers, cancellation, kinds of rings, mixed with files and pipes.
#include "uring.h"
#define THEME "uring"

static char buf[1000];
static char out[1000];

// IORING_OP_ASYNC_CANCEL by user_data and by descriptor; canceled receives take no bytes.
CASE(cancel) {
    struct pair p = pair();
    struct ring r = ring();
    add_poll(&r, p.client, POLLIN, 0, 1);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    add(&r, IORING_OP_RECV, p.server, buf, 10, 3);
    add(&r, IORING_OP_RECV, p.server, buf, 10, 4);
    MUST(submit(&r, 0));
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)77, 0, 10);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 11);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)2, 0, 12);
    MUST(submit(&r, 5));
    say_cqes(&r, 5, false);
    add(&r, IORING_OP_ASYNC_CANCEL, p.server, NULL, 0, 13)->cancel_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    CALL("left", recv(p.client, buf, 10, 0));
}

// Receives at once, later, and at the end of the stream.
CASE(receive) {
    struct pair p = pair();
    struct ring r = ring();
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    CALL("submitted", submit(&r, 1));
    say_cqe_result("at_once", &r);
    say_bytes("bytes", buf, 3);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    CALL("submitted", submit(&r, 0));
    rest(20);
    MUST(write(p.server, "defg", 4));
    say_cqe_result("later", &r);
    say_bytes("bytes", buf, 4);
    add(&r, IORING_OP_READ, p.client, buf, 10, 3)->off = (unsigned long)-1;
    MUST(submit(&r, 0));
    MUST(close(p.server));
    say_cqe_result("end", &r);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    MUST(submit(&r, 1));
    say_cqe_result("again", &r);
}

// MSG_DONTWAIT and O_NONBLOCK: which receives wait.
CASE(receive_without_waiting) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->msg_flags = MSG_DONTWAIT;
    MUST(submit(&r, 1));
    say_cqe_result("dontwait", &r);
    nonblocking(p.client, true);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 2);
    MUST(submit(&r, 0));
    rest(20);
    say("o_nonblock", "%u", ready(&r));
    MUST(write(p.server, "x", 1));
    say_cqe_result("later", &r);
}

// MSG_WAITALL completes with the whole length.
CASE(receive_all) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->msg_flags = MSG_WAITALL;
    MUST(submit(&r, 0));
    MUST(write(p.server, "abcd", 4));
    rest(30);
    say("part", "%u", ready(&r));
    MUST(write(p.server, "efghijk", 7));
    say_cqe_result("all", &r);
    say_bytes("bytes", buf, 10);
}

// A receive with MSG_PEEK whose SO_PEEK_OFF lies behind the data waits, without use of the processor, and then sees what is there.
CASE(peek_behind_the_data) {
    struct pair p = pair();
    struct ring r = ring();
    struct rusage before, after;
    MUST(set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 5));
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1)->msg_flags = MSG_PEEK;
    MUST(submit(&r, 0));
    rest(50);
    MUST(getrusage(RUSAGE_SELF, &before));
    rest(300);
    MUST(getrusage(RUSAGE_SELF, &after));
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
              after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    say("busy", "%d", us > 100000);
    say("before", "%u", ready(&r));
    MUST(write(p.server, "defgh", 5));
    say_cqe_result("peek", &r);
    say_bytes("bytes", buf, 3);
}

// Several receives on one socket complete in the order of submission.
CASE(several_receives) {
    struct pair p = pair();
    struct ring r = ring();
    for (int i = 0; i < 3; i++) add(&r, IORING_OP_RECV, p.client, buf + i, 1, (unsigned long)i);
    MUST(submit(&r, 0));
    MUST(write(p.server, "xxx", 3));
    say_cqes(&r, 3, false);
    say_bytes("bytes", buf, 3);
}

// Sendmsg, recvmsg, readv and writev through a ring. Vectors need not outlive the submission.
CASE(messages) {
    struct pair p = pair();
    struct ring r = ring();
    char one[2], two[8];
    struct iovec *iov = malloc(2 * sizeof *iov), from[2] = {{"ab", 2}, {"cdef", 4}};
    iov[0] = (struct iovec){one, 2}, iov[1] = (struct iovec){two, 8};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2, .msg_flags = 0x77}, s = {.msg_iov = from, .msg_iovlen = 2};
    add(&r, IORING_OP_RECVMSG, p.client, &m, 1, 1);
    MUST(submit(&r, 0));
    // The kernel has read the vectors at submission.
    memset(iov, 0, 2 * sizeof *iov);
    add(&r, IORING_OP_SENDMSG, p.server, &s, 1, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    say_bytes("one", one, 2);
    say_bytes("two", two, 4);
    say("flags", "%x", (unsigned)m.msg_flags);
    struct iovec to[2] = {{one, 2}, {two, 8}};
    add(&r, IORING_OP_WRITEV, p.server, from, 2, 3);
    MUST(submit(&r, 1));
    say_cqe_result("writev", &r);
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_READV, p.client, to, 2, 4);
    MUST(submit(&r, 1));
    say_cqe_result("readv", &r);
    add(&r, IORING_OP_READV, p.client, to, 2, 5)->off = 5;
    MUST(submit(&r, 1));
    say_cqe_result("position", &r);
}

// Sends and writes through a ring.
CASE(send) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, p.client, "hello", 5, 1);
    MUST(submit(&r, 1));
    say_cqe_result("send", &r);
    add(&r, IORING_OP_WRITE, p.client, "you", 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("write", &r);
    wait_unread(p.server, 8);
    CALL("read", read(p.server, buf, 100));
    say_bytes("bytes", buf, 8);
}

// A send on a full connection completes when there is room.
CASE(send_waits_for_room) {
    struct pair p = pair();
    struct ring r = ring();
    nonblocking(p.client, true);
    fill(p.client);
    add(&r, IORING_OP_SEND, p.client, out, 100, 1);
    MUST(submit(&r, 0));
    rest(20);
    say("full", "%u", ready(&r));
    nonblocking(p.server, true);
    for (long end = now_ms() + 5000; ready(&r) == 0 && now_ms() < end; rest(1)) drain(p.server);
    say_cqe_result("sent", &r);
}

// Zero-copy sends post two completions.
CASE(send_without_copies) {
    struct pair p = pair();
    struct ring r = ring();
    struct iovec iov = {"you", 3};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    add(&r, IORING_OP_SEND_ZC, p.client, "hello", 5, 1);
    MUST(submit(&r, 1));
    say_cqes(&r, 2, false);
    add(&r, IORING_OP_SENDMSG_ZC, p.client, &m, 1, 1);
    MUST(submit(&r, 1));
    say_cqes(&r, 2, false);
    wait_unread(p.server, 8);
    CALL("read", read(p.server, buf, 100));
    say_bytes("bytes", buf, 8);
}

// Operations of length 0.
CASE(nothing) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_READ, p.client, buf, 0, 1);
    add(&r, IORING_OP_WRITE, p.client, buf, 0, 2);
    add(&r, IORING_OP_SEND, p.client, buf, 0, 3);
    MUST(submit(&r, 3));
    say_cqes(&r, 3, false);
}

// Sends after a reset.
CASE(send_to_nobody) {
    int fd = reset_by_peer();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, fd, "x", 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("reset", &r);
    add(&r, IORING_OP_SEND, fd, "x", 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("pipe", &r);
}

// Memory that is not there, at submission and by the time of the receive.
CASE(bad_memory) {
    struct pair p = pair();
    struct ring r = ring();
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add(&r, IORING_OP_RECV, p.client, (void *)64, 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("recv", &r);
    add(&r, IORING_OP_RECVMSG, p.client, (void *)64, 1, 1);
    submit(&r, 1);
    say_cqe_result("recvmsg", &r);
    // The memory is gone when the data come, which another thread of the library may receive.
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(read(p.client, buf, 3));
    add(&r, IORING_OP_RECV, p.client, page, 3, 1);
    MUST(submit(&r, 0));
    MUST(munmap(page, 4096));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("later", &r);
}

// A file, a socket and a pipe in one submission.
CASE(mixed) {
    struct pair p = pair();
    struct ring r = ring();
    int ends[2], file = (int)MUST(memfd_create("file", 0));
    MUST(write(file, "0123456789", 10));
    MUST(pipe(ends));
    char a[4], b[4], c[4];
    add(&r, IORING_OP_READ, file, a, 4, 1)->off = 3;
    add(&r, IORING_OP_RECV, p.client, b, 4, 2);
    add(&r, IORING_OP_READ, ends[0], c, 4, 3)->off = (unsigned long)-1;
    add(&r, IORING_OP_NOP, -1, NULL, 0, 4);
    CALL("submitted", submit(&r, 2));
    MUST(write(ends[1], "pipe", 4));
    MUST(write(p.server, "sock", 4));
    say_cqes(&r, 4, false);
    say_bytes("file", a, 4), say_bytes("socket", b, 4), say_bytes("pipe", c, 4);
}

// Wrong opcodes, descriptors, flags and addresses.
CASE(nonsense) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, 200, p.client, NULL, 0, 1);
    MUST(submit(&r, 1));
    say_cqe_result("opcode", &r);
    add(&r, IORING_OP_RECV, 999, buf, 1, 1);
    MUST(submit(&r, 1));
    say_cqe_result("descriptor", &r);
    add_poll(&r, p.client, POLLIN, 0x80, 1);
    MUST(submit(&r, 1));
    say_cqe_result("poll", &r);
    add(&r, IORING_OP_ACCEPT, p.client, NULL, 0, 1)->accept_flags = 0x7f;
    MUST(submit(&r, 1));
    say_cqe_result("accept", &r);
    add(&r, IORING_OP_READV, p.client, (void *)64, 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("vectors", &r);
    add(&r, IORING_OP_WRITEV, p.client, buf, 2000, 1);
    MUST(submit(&r, 1));
    say_cqe_result("too_many", &r);
    // An index outside the queue, then a valid one.
    r.array[*r.tail & r.sq_mask] = 77777;
    __atomic_store_n(r.tail, *r.tail + 1, __ATOMIC_RELEASE);
    r.waiting++;
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1);
    CALL("dropped", submit(&r, 0));
    CALL("next", enter(r.fd, 2, 1, IORING_ENTER_GETEVENTS));
    say_cqe_result("sent", &r);
    CALL("no_ring", enter(p.client, 1, 0, 0));
    CALL("files", syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, (void *)64, 1));
    CALL("setup", syscall(SYS_io_uring_setup, 4, (void *)64));
    CALL("none", syscall(SYS_io_uring_setup, 0, buf));
}

// Entries that were added while the ring was disabled.
CASE(enabled_later) {
    struct pair p = pair();
    struct ring r = ring_with(IORING_SETUP_R_DISABLED);
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    CALL("disabled", submit(&r, 0));
    CALL("enable", syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    CALL("submitted", enter(r.fd, 1, 0, 0));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("received", &r);
}

// A ring of a forked child; the parent's ring goes on.
CASE(after_fork) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        struct ring own = ring();
        struct pair q = pair();
        add(&own, IORING_OP_RECV, q.client, buf, 10, 1);
        submit(&own, 0);
        if (write(q.server, "x", 1) != 1) _exit(9);
        _exit(result(&own));
    }
    int status = 0;
    MUST(waitpid(child, &status, 0));
    say("child", "%d", WEXITSTATUS(status));
    MUST(write(p.server, "abc", 3));
    say_cqe_result("parent", &r);
}

// A ring by a copy of its descriptor.
CASE(copy_of_a_ring) {
    struct pair p = pair();
    struct ring r = ring();
    int copy = (int)MUST(dup(r.fd));
    add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
    MUST(submit(&r, 0));
    MUST(close(r.fd));
    MUST(write(p.server, "abc", 3));
    r.fd = copy;
    say_cqe_result("received", &r);
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1);
    MUST(submit(&r, 1));
    say_cqe_result("sent", &r);
}

// IOSQE_CQE_SKIP_SUCCESS: only failures complete.
CASE(quiet_success) {
    struct pair p = pair();
    struct ring r = ring();
    add(&r, IORING_OP_SEND, p.client, "abc", 3, 1)->flags = IOSQE_CQE_SKIP_SUCCESS;
    add(&r, IORING_OP_RECV, p.server, buf, 3, 2)->flags = IOSQE_CQE_SKIP_SUCCESS;
    MUST(submit(&r, 0));
    rest(30);
    say("quiet", "%u", ready(&r));
    say_bytes("bytes", buf, 3);
    add(&r, IORING_OP_RECV, p.server, (void *)64, 3, 3)->flags = IOSQE_CQE_SKIP_SUCCESS;
    MUST(write(p.client, "abc", 3));
    MUST(submit(&r, 0));
    say_cqes(&r, 1, false);
}

// Rings with each set-up flag.
CASE(kinds_of_rings) {
    struct pair p = pair();
    unsigned kinds[] = {IORING_SETUP_CLAMP, IORING_SETUP_SUBMIT_ALL, IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SQE128, IORING_SETUP_CQE32, NO_MMAP,
        NO_SQARRAY, NO_MMAP | NO_SQARRAY};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct ring r = ring_with(kinds[i]);
        // Only one submission: the first entry has the same address for entries of any size.
        add(&r, IORING_OP_RECV, p.client, buf, 10, 1);
        MUST(submit(&r, 0));
        MUST(write(p.server, "abc", 3));
        say_cqe_result("received", &r);
        MUST(close(r.fd));
    }
}

struct echo {
    struct ring *ring;
    int fd;
    long done;
};

static void *echoes(void *argument) {
    struct echo *e = argument;
    struct ring *r = e->ring;
    char byte;
    for (int i = 0; i < 200; i++) {
        add(r, IORING_OP_RECV, e->fd, &byte, 1, 1);
        if (submit(r, 1) < 0 || result(r) != 1) break;
        add(r, IORING_OP_SEND, e->fd, &byte, 1, 1);
        if (submit(r, 1) < 0 || result(r) != 1) break;
        e->done++;
    }
    return NULL;
}

// Two threads with a ring each.
CASE(two_threads) {
    struct pair p[2] = {pair(), pair()};
    struct ring r[2] = {ring(), ring()};
    struct echo e[2] = {{&r[0], p[0].server, 0}, {&r[1], p[1].server, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, echoes, &e[i]);
    int wrong = 0;
    for (int i = 0; i < 400; i++) {
        char byte = (char)i, answer = 0;
        MUST(write(p[i % 2].client, &byte, 1));
        MUST(read(p[i % 2].client, &answer, 1));
        wrong += byte != answer;
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    say("done", "%ld,%ld", e[0].done, e[1].done);
    say("wrong", "%d", wrong);
}

// Many operations wait at the same time.
CASE(many_waiting) {
    struct pair p[8];
    struct ring r = ring();
    for (int i = 0; i < 8; i++) {
        p[i] = pair();
        add(&r, IORING_OP_RECV, p[i].client, buf + i, 1, (unsigned long)i);
        add_poll(&r, p[i].server, POLLIN, 0, (unsigned long)i + 10);
    }
    CALL("submitted", submit(&r, 0));
    for (int i = 0; i < 8; i++) MUST(write(p[7 - i].server, "x", 1));
    for (int i = 0; i < 8; i += 2) MUST(write(p[i].client, "x", 1));
    say_cqes(&r, 12, false);
}
