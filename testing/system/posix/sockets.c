// Functions that cases share: sockets, waiting for states, threads, signals.
#include "conformance.h"

// SLEEPS: the looks in a row that find a thread asleep. A library sleeps shortly for other things than its caller's call.
// QUIET_MS: the kernel's first zero-window probe, 200 ms after the window has closed, still makes room in the sender's buffer.
enum { LONGEST_MS = 5000, SLEEPS = 5, QUIET_MS = 500, QUIET_LOOKS = 50 };

int tcp(void) { return (int)MUST(socket(AF_INET, SOCK_STREAM, 0)); }
int tcp6(void) { return (int)MUST(socket(AF_INET6, SOCK_STREAM, 0)); }

struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

struct sockaddr_in6 loopback6(int port) {
    return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port),
                                 .sin6_addr = IN6ADDR_LOOPBACK_INIT};
}

int bound(int port) {
    int fd = tcp();
    struct sockaddr_in address = loopback(port);
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

int listening(void) {
    int fd = bound(0);
    MUST(listen(fd, 16));
    return fd;
}

int listening6(void) {
    int fd = tcp6();
    struct sockaddr_in6 address = loopback6(0);
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    MUST(listen(fd, 16));
    return fd;
}

int port_of(int fd) {
    struct sockaddr_in6 address;
    socklen_t len = sizeof address;
    MUST(getsockname(fd, (struct sockaddr *)&address, &len));
    return ntohs(address.sin6_port); // The port is at the same place in both families.
}

int connect_to(int fd, int listener) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    MUST(getsockname(listener, (struct sockaddr *)&address, &len));
    return connect(fd, (struct sockaddr *)&address, len);
}

static struct pair pair_of(int listener, int client) {
    struct pair p = {listener, client, -1};
    MUST(connect_to(client, listener));
    p.server = (int)MUST(accept(listener, NULL, NULL));
    return p;
}

struct pair pair(void) { return pair_of(listening(), tcp()); }
struct pair pair6(void) { return pair_of(listening6(), tcp6()); }

int reset_by_peer(void) {
    struct pair p = pair();
    struct linger now = {1, 0};
    MUST(setsockopt(p.server, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(close(p.server));
    wait_events(p.client, POLLHUP);
    return p.client;
}

unsigned events_of(int fd) {
    struct pollfd p = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND, 0};
    MUST(poll(&p, 1, 0));
    return (unsigned short)p.revents;
}

unsigned wait_events(int fd, unsigned wanted) {
    unsigned events = 0;
    for (long end = now_ms() + LONGEST_MS; now_ms() < end; rest(1)) {
        events = events_of(fd);
        if ((events & wanted) == wanted) break;
    }
    return events;
}

bool wait_unread(int fd, int count) {
    for (long end = now_ms() + LONGEST_MS; now_ms() < end; rest(1)) {
        int unread = 0;
        MUST(ioctl(fd, FIONREAD, &unread));
        if (unread >= count) return true;
    }
    return false;
}

bool wait_sent(int fd) {
    for (long end = now_ms() + LONGEST_MS; now_ms() < end; rest(1)) {
        int queued = 0;
        MUST(ioctl(fd, SIOCOUTQ, &queued));
        if (queued == 0) return true;
    }
    return false;
}

void rest(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&time, &time) != 0) {}
}

long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int fill(int fd) {
    static char block[65536];
    memset(block, 'f', sizeof block);
    int total = 0, looks = 0;
    for (long quiet_since = now_ms(); now_ms() - quiet_since < QUIET_MS || looks < QUIET_LOOKS; looks++) {
        ssize_t n = send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) total += (int)n, looks = 0, quiet_since = now_ms();
        else rest(5);
    }
    return total;
}

long drain(int fd) {
    static char block[65536];
    long total = 0;
    for (;;) {
        ssize_t n = recv(fd, block, sizeof block, MSG_DONTWAIT);
        // A stack may have more on its way than it shows at once.
        struct pollfd more = {.fd = fd, .events = POLLIN};
        if (n < 0 && errno == EAGAIN && poll(&more, 1, 20) > 0) continue;
        if (n <= 0) return total;
        total += n;
    }
}

int nonblocking(int fd, bool on) {
    int flags = (int)MUST(fcntl(fd, F_GETFL));
    return fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

int get_int(int fd, int level, int name) {
    int value = 0;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) == 0 ? value : -errno;
}

int set_int(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value); }

static bool sleeps(pid_t pid, pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *state = strrchr(text, ')');
    return state != NULL && state[1] == ' ' && state[2] == 'S';
}

void wait_asleep(pid_t pid, pid_t tid) {
    int found = 0;
    for (long end = now_ms() + LONGEST_MS; found < SLEEPS && now_ms() < end; rest(3)) found = sleeps(pid, tid) ? found + 1 : 0;
}

// What is done `ms` later, or once `sleeper` sleeps: `signal` goes to `thread` if there is one, and then comes the work, if any.
struct task {
    int ms;
    pid_t sleeper;
    int signal;
    pthread_t thread;
    void (*work)(void *);
    void *argument;
};

static void *run_task(void *argument) {
    struct task task = *(struct task *)argument;
    free(argument);
    if (task.sleeper == 0) rest(task.ms);
    else wait_asleep(getpid(), task.sleeper);
    if (task.signal != 0) {
        pthread_kill(task.thread, task.signal);
        if (task.work != NULL) wait_asleep(getpid(), task.sleeper);
    }
    if (task.work != NULL) task.work(task.argument);
    return NULL;
}

static pthread_t start_task(struct task task) {
    struct task *copy = malloc(sizeof task);
    *copy = task;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_task, copy) != 0) must_failed(__LINE__, "pthread_create");
    return thread;
}

pthread_t later(int ms, void (*work)(void *), void *argument) {
    return start_task((struct task){.ms = ms, .work = work, .argument = argument});
}

pthread_t when_asleep(void (*work)(void *), void *argument) {
    return start_task((struct task){.sleeper = gettid(), .work = work, .argument = argument});
}

volatile sig_atomic_t signals_seen;
static void count_signal(int signal) {
    (void)signal;
    signals_seen++;
}

void handle(int signal, bool restart) {
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = restart ? SA_RESTART : 0};
    MUST(sigaction(signal, &action, NULL));
}

pthread_t signal_asleep(int signal) { return signal_then(signal, NULL, NULL); }

pthread_t signal_then(int signal, void (*work)(void *), void *argument) {
    return start_task((struct task){.sleeper = gettid(), .signal = signal, .thread = pthread_self(), .work = work, .argument = argument});
}
