// A ring that is used by system calls, without liburing.
#pragma once
#include "conformance.h"
#include <linux/io_uring.h>
#include <linux/time_types.h>

enum { ENTRIES = 32 };

struct ring {
    int fd;
    unsigned *head, *tail, *array, *cq_head, *cq_tail, sq_mask, cq_mask, waiting;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static inline long enter(int fd, unsigned submit, unsigned complete, unsigned flags) {
    return syscall(SYS_io_uring_enter, fd, submit, complete, flags, NULL, 0);
}

// Some headers are older than these flags.
enum { NO_MMAP = 1 << 14, NO_SQARRAY = 1 << 16 };

static inline char *page(void) {
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

// The field `user_addr` at the end of the offsets of either queue, which has another name in older headers.
static inline char **user_addr(void *offsets) { return (char **)((char *)offsets + 32); }

static inline struct ring ring_with(unsigned flags) {
    struct io_uring_params p = {.flags = flags};
    char **sq_at = user_addr(&p.sq_off), **cq_at = user_addr(&p.cq_off);
    if (flags & NO_MMAP) *sq_at = page(), *cq_at = page();
    struct ring r = {.fd = (int)MUST(syscall(SYS_io_uring_setup, ENTRIES, &p))};
    size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *at = *cq_at;
    r.sqes = (void *)*sq_at;
    if (!(flags & NO_MMAP)) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
        r.sqes = mmap(NULL, p.sq_entries * sizeof *r.sqes, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQES);
    }
    MUST(at == MAP_FAILED || (void *)r.sqes == MAP_FAILED ? -1 : 0);
    r.head = (void *)(at + p.sq_off.head), r.tail = (void *)(at + p.sq_off.tail);
    static unsigned unused[ENTRIES];
    r.array = flags & NO_SQARRAY ? unused : (void *)(at + p.sq_off.array), r.sq_mask = p.sq_entries - 1;
    r.cq_head = (void *)(at + p.cq_off.head), r.cq_tail = (void *)(at + p.cq_off.tail);
    r.cqes = (void *)(at + p.cq_off.cqes), r.cq_mask = p.cq_entries - 1;
    return r;
}
static inline struct ring ring(void) { return ring_with(0); }

// Adds a submission.
static inline struct io_uring_sqe *add(struct ring *r, int op, int fd, const void *addr, unsigned len, unsigned long data) {
    unsigned tail = *r->tail, at = tail & r->sq_mask;
    struct io_uring_sqe *sqe = &r->sqes[at];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = (unsigned char)op, sqe->fd = fd, sqe->addr = (unsigned long)addr, sqe->len = len, sqe->user_data = data;
    r->array[at] = at;
    __atomic_store_n(r->tail, tail + 1, __ATOMIC_RELEASE);
    r->waiting++;
    return sqe;
}
static inline struct io_uring_sqe *add_poll(struct ring *r, int fd, unsigned events, unsigned flags, unsigned long data) {
    struct io_uring_sqe *sqe = add(r, IORING_OP_POLL_ADD, fd, NULL, flags, data);
    sqe->poll32_events = events;
    return sqe;
}

// Submits the entries that were added, and waits for `complete` completions.
static inline long submit(struct ring *r, unsigned complete) {
    unsigned waiting = r->waiting;
    r->waiting = 0;
    return enter(r->fd, waiting, complete, complete ? IORING_ENTER_GETEVENTS : 0);
}

static inline unsigned ready(struct ring *r) { return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) - *r->cq_head; }

static inline bool take(struct ring *r, struct io_uring_cqe *cqe) {
    if (ready(r) == 0) return false;
    *cqe = r->cqes[*r->cq_head & r->cq_mask];
    __atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
    return true;
}

static inline void say_cqe(const struct io_uring_cqe *cqe, bool events) {
    char key[40];
    snprintf(key, sizeof key, "%lu%s", (unsigned long)cqe->user_data, cqe->flags & IORING_CQE_F_MORE ? "+" : "");
    if (cqe->res < 0) say(key, "-%s", strerrorname_np(-cqe->res));
    else if (events) say_events(key, (unsigned)cqe->res);
    else say(key, "%d", cqe->res);
}

// Waits for `count` completions without a system call, and prints them in the order of their user_data.
static inline void say_cqes(struct ring *r, unsigned count, bool events) {
    struct io_uring_cqe all[ENTRIES];
    unsigned got = 0;
    for (long end = now_ms() + 5000; got < count && now_ms() < end;) {
        if (take(r, &all[got])) got++;
        else rest(1);
    }
    rest(20);
    while (got < ENTRIES && take(r, &all[got])) got++;
    if (got != count) say("completions", "%u", got);
    for (unsigned lowest = 0; lowest < got; lowest++) {
        for (unsigned i = lowest + 1; i < got; i++)
            if (all[i].user_data < all[lowest].user_data) {
                struct io_uring_cqe other = all[i];
                memmove(&all[lowest + 1], &all[lowest], (i - lowest) * sizeof *all);
                all[lowest] = other;
            }
        say_cqe(&all[lowest], events);
    }
}
// Waits for one completion and returns its result.
static inline int result(struct ring *r) {
    struct io_uring_cqe cqe = {.res = -ENODATA};
    if (ready(r) == 0) MUST(enter(r->fd, 0, 1, IORING_ENTER_GETEVENTS));
    take(r, &cqe);
    return cqe.res;
}
static inline void say_cqe_result(const char *key, struct ring *r) {
    int res = result(r);
    errno = res < 0 ? -res : 0;
    say_result(key, res < 0 ? -1 : res);
}
