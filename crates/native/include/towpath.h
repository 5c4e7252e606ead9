/* TCP over Towpath without sockets: docs/reference/native.md. Link with -ltowpath_native.
 *
 * Functions that return int or ssize_t return a negative errno for an error (-EAGAIN: not now). Nothing blocks but towpath_wait, and
 * the exchange with the service that begins a connection or a listener, or splices two. Handles may be passed on to other threads, but
 * two threads must not use one at the same time. Each thread waits on a struct towpath of its own. */
#ifndef TOWPATH_H
#define TOWPATH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct towpath;            /* a thread's way to the stack */
struct towpath_listener;
struct towpath_connection;

/* A piece of a ring. Three make up what there is: a ring has an end, and one that has grown lies in two parts. The last may be empty. */
struct towpath_span {
    void *base;
    size_t len;
};

/* Bits of towpath_event.readiness. */
#define TOWPATH_READABLE 1u /* bytes are there, or the end of the stream; on a listener a connection */
#define TOWPATH_WRITABLE 2u /* established, or room again where there was too little */
#define TOWPATH_CLOSED 4u   /* over: failed, reset, or closed in both directions; what came before can still be read */

struct towpath_event {
    uint64_t token;
    uint32_t readiness;
};

/* The stack whose service is at `path`; NULL: at TOWPATH_SOCKET. A process stays with the first one that it opens. */
int towpath_open(const char *path, struct towpath **out);
void towpath_close(struct towpath *);

/* Listens. TOWPATH_SHARED: one of several listeners on a port, among which connections are spread. */
#define TOWPATH_SHARED 1
int towpath_listen(const struct towpath *, const struct sockaddr *, socklen_t, int backlog, int flags,
                   struct towpath_listener **out);
int towpath_accept(struct towpath_listener *, struct towpath_connection **out);
void towpath_listener_local(const struct towpath_listener *, struct sockaddr_storage *);
void towpath_listener_close(struct towpath_listener *);

/* Begins a connection. An event tells when it is made or has failed. towpath_established returns 1 when it is made, 0 not yet, and
 * a negative errno (once) when it has failed. -ENETUNREACH: the stack does not lead there. */
int towpath_connect(const struct towpath *, const struct sockaddr *, socklen_t, struct towpath_connection **out);
int towpath_established(struct towpath_connection *);

/* What has come and has not been consumed, in place: how many bytes; 0 is the end of the peer's stream. The spans hold until bytes are
 * consumed or the connection is closed. With towpath_is_direct the peer's program can still change them: check copies, not the spans. */
ssize_t towpath_received(struct towpath_connection *, struct towpath_span spans[3]);
void towpath_consume(struct towpath_connection *, size_t);

/* Room for up to `most` bytes to be sent, in place: how many. If that is less than `most` (or -EAGAIN: none), TOWPATH_WRITABLE will tell
 * when a third of the ring is free. towpath_commit sends the first `count` bytes of it, once. */
ssize_t towpath_reserve(struct towpath_connection *, size_t most, struct towpath_span spans[3]);
int towpath_commit(struct towpath_connection *, size_t count);

/* The same with a copy, as recv and send have it. */
ssize_t towpath_receive(struct towpath_connection *, void *, size_t);
ssize_t towpath_send(struct towpath_connection *, const void *, size_t);

/* Splices two connections of this process: the stack passes on what comes on either to the other, and both may be closed. -EAGAIN:
 * received bytes are to be passed on, or a peer has not acknowledged all; the peers are held back for a moment, so call again.
 * -EOPNOTSUPP: the stack does not splice these. docs/guide/splicing.md */
int towpath_splice(const struct towpath_connection *, const struct towpath_connection *);

int towpath_shutdown(struct towpath_connection *);          /* ends this side's stream */
void towpath_nodelay(struct towpath_connection *, int on);  /* TCP_NODELAY */
int towpath_error(struct towpath_connection *);             /* why it has failed (negative errno), once; 0 */
int towpath_is_direct(const struct towpath_connection *);   /* the peer is a program of this host, on the same memory */
void towpath_addresses(const struct towpath_connection *, struct sockaddr_storage *local, struct sockaddr_storage *peer);
void towpath_connection_close(struct towpath_connection *); /* in order: what was committed is still sent */
void towpath_connection_reset(struct towpath_connection *); /* gives it up */

/* Events of a connection or listener are told to this stack, as `token`: each once, when something changes, and once now. Take all there
 * is, or remember that there is more. Closing it ends that. */
int towpath_watch(struct towpath *, const struct towpath_connection *, uint64_t token);
int towpath_unwatch(struct towpath *, const struct towpath_connection *);
int towpath_watch_listener(struct towpath *, const struct towpath_listener *, uint64_t token);
int towpath_unwatch_listener(struct towpath *, const struct towpath_listener *);

/* Fills `events`; returns how many. Waits at most `timeout_us` µs; 0: not at all, negative: no limit. -EINTR: a signal handler ran. */
int towpath_wait(struct towpath *, struct towpath_event *events, int count, long long timeout_us);

/* For event loops of other kinds: 1 = nothing has happened, and towpath_fd will be readable when something does. Then, or after 0, or after
 * a second, call towpath_wait with a time of 0. */
int towpath_arm(struct towpath *);
int towpath_fd(const struct towpath *);

/* mlockall() under libc's name, without the rings: most of their gigabytes of address space are never touched. */
int mlockall(int flags);

#ifdef __cplusplus
}
#endif
#endif
