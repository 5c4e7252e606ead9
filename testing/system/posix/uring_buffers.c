// io_uring: receives into provided buffers, single and multishot.
#include "uring.h"
#define THEME "uring"

static char buf[1000];

// A group of four buffers of eight bytes each.
struct group {
    struct io_uring_buf_ring *ring;
    char bytes[4][8];
};

static void give(struct group *g, int id) {
    struct io_uring_buf *b = &g->ring->bufs[g->ring->tail & 3];
    b->addr = (unsigned long)g->bytes[id], b->len = 8, b->bid = (unsigned short)id;
    __atomic_store_n(&g->ring->tail, g->ring->tail + 1, __ATOMIC_RELEASE);
}

static struct group *group(struct ring *r, unsigned short number) {
    struct group *g = calloc(1, sizeof *g);
    g->ring = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)g->ring, .ring_entries = 4, .bgid = number};
    MUST(syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_PBUF_RING, &reg, 1));
    return g;
}

static struct io_uring_sqe *add_chosen(struct ring *r, int op, int fd, unsigned len, unsigned group, unsigned long data) {
    struct io_uring_sqe *sqe = add(r, op, fd, NULL, len, data);
    sqe->flags = IOSQE_BUFFER_SELECT, sqe->buf_group = (unsigned short)group;
    return sqe;
}

// Waits for a completion, and prints it with its buffer.
static void say_filled(const char *key, struct ring *r, struct group *g) {
    struct io_uring_cqe cqe = {.res = -ENODATA};
    for (long end = now_ms() + 5000; !take(r, &cqe) && now_ms() < end;) rest(1);
    char text[40] = "";
    if (cqe.flags & IORING_CQE_F_BUFFER)
        snprintf(text, sizeof text, "%u:%.*s", cqe.flags >> 16, cqe.res, g->bytes[cqe.flags >> 16]);
    say(key, "%d%s,%s", cqe.res, cqe.flags & IORING_CQE_F_MORE ? "+" : "", text);
}

// Receives into provided buffers: no buffer, at once, later, an unknown group, the end.
CASE(chosen_buffers) {
    struct pair p = pair();
    struct ring r = ring();
    struct group *g = group(&r, 7);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 7, 1);
    MUST(submit(&r, 1));
    say_filled("none", &r, g);
    for (int i = 0; i < 4; i++) give(g, i);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 7, 1);
    MUST(submit(&r, 1));
    say_filled("at_once", &r, g);
    add_chosen(&r, IORING_OP_RECV, p.client, 4, 7, 1);
    MUST(submit(&r, 0));
    rest(20);
    MUST(write(p.server, "defghi", 6));
    say_filled("later", &r, g);
    add_chosen(&r, IORING_OP_READ, p.client, 8, 7, 1);
    MUST(submit(&r, 1));
    say_filled("read", &r, g);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 8, 1);
    MUST(submit(&r, 1));
    say_filled("no_group", &r, g);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 7, 1);
    MUST(submit(&r, 0));
    MUST(close(p.server));
    say_filled("end", &r, g);
}

// A multishot receive fills one provided buffer after the other until none is left.
CASE(receive_multishot) {
    struct pair p = pair();
    struct ring r = ring();
    struct group *g = group(&r, 1);
    for (int i = 0; i < 4; i++) give(g, i);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 1, 1)->ioprio = IORING_RECV_MULTISHOT;
    MUST(submit(&r, 0));
    MUST(write(p.server, "abc", 3));
    say_filled("first", &r, g);
    MUST(write(p.server, "0123456789", 10));
    say_filled("second", &r, g);
    say_filled("third", &r, g);
    give(g, 2);
    MUST(write(p.server, "de", 2));
    say_filled("fourth", &r, g);
    MUST(write(p.server, "fg", 2));
    say_filled("again", &r, g);
    rest(20);
    say("quiet", "%u", ready(&r));
    MUST(write(p.server, "hi", 2));
    say_filled("none_left", &r, g);
    say("more", "%u", ready(&r));
    give(g, 0);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 1, 2)->ioprio = IORING_RECV_MULTISHOT;
    MUST(submit(&r, 0));
    say_filled("rest", &r, g);
    give(g, 1);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 1, 2)->ioprio = IORING_RECV_MULTISHOT;
    MUST(submit(&r, 0));
    MUST(shutdown(p.server, SHUT_WR));
    struct io_uring_cqe cqe = {0};
    for (long end = now_ms() + 5000; now_ms() < end; rest(1))
        if (take(&r, &cqe) && !(cqe.flags & IORING_CQE_F_MORE)) break;
    say("end", "%d,%u", cqe.res, cqe.flags & IORING_CQE_F_BUFFER);
}

// A receive into buffers that were provided by IORING_OP_PROVIDE_BUFFERS.
CASE(buffers_one_by_one) {
    struct pair p = pair();
    struct ring r = ring();
    static char bytes[16];
    struct io_uring_sqe *sqe = add(&r, IORING_OP_PROVIDE_BUFFERS, 2, bytes, 8, 1);
    sqe->buf_group = 3;
    MUST(submit(&r, 1));
    say_cqes(&r, 1, false);
    MUST(write(p.server, "abc", 3));
    wait_events(p.client, POLLIN);
    add_chosen(&r, IORING_OP_RECV, p.client, 8, 3, 2);
    MUST(submit(&r, 1));
    say_cqes(&r, 1, false);
}

// A multishot receive that is cancelled takes no more bytes.
CASE(multishot_canceled) {
    struct pair p = pair();
    struct ring r = ring();
    struct group *g = group(&r, 1);
    for (int i = 0; i < 4; i++) give(g, i);
    add_chosen(&r, IORING_OP_RECV, p.client, 0, 1, 1)->ioprio = IORING_RECV_MULTISHOT;
    MUST(submit(&r, 0));
    MUST(write(p.server, "abc", 3));
    say_filled("first", &r, g);
    add(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 2);
    MUST(submit(&r, 2));
    say_cqes(&r, 2, false);
    MUST(write(p.server, "x", 1));
    wait_events(p.client, POLLIN);
    CALL("left", recv(p.client, buf, 10, 0));
}
