// The runner: each case in a forked child with a time limit, a few at a time. Each prints one line, in the order of names.
#include "conformance.h"
#include <stdarg.h>

enum { CASES_MAX = 2000, LINE_MAX_BYTES = 16384, AT_ONCE = 4, SECONDS = 30 };

static struct test_case cases[CASES_MAX];
static int count;

void add_case(struct test_case c) {
    if (count == CASES_MAX) abort();
    cases[count++] = c;
}

// --- In the child: the line.

static void put(const char *text, size_t len) {
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, text, len);
        if (n <= 0) _exit(3);
        text += n, len -= (size_t)n;
    }
}

void say(const char *key, const char *format, ...) {
    char text[2048];
    int n = snprintf(text, sizeof text, " %s=", key);
    va_list args;
    va_start(args, format);
    n += vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    put(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void say_result(const char *key, long result) {
    int error = errno;
    if (result >= 0) return say(key, "%ld", result);
    const char *name = strerrorname_np(error);
    say(key, "%s", error == 0 ? "-1" : name ? name : "?");
}

void say_bytes(const char *key, const void *bytes, long n) {
    const unsigned char *b = bytes;
    char text[600] = "";
    size_t at = 0;
    for (long i = 0; i < n && at < 500;) {
        long run = 1;
        while (i + run < n && b[i + run] == b[i]) run++;
        char c = b[i] > 32 && b[i] < 127 ? (char)b[i] : '.';
        if (run > 4) at += (size_t)sprintf(text + at, "%c*%ld", c, run), i += run;
        else text[at++] = c, text[at] = 0, i++;
    }
    say(key, "'%s'", n < 0 ? "" : text);
}

void say_events(const char *key, unsigned events) {
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"},
        {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"}, {POLLWRBAND, "WRBAND"},
        {POLLRDHUP, "RDHUP"}};
    char text[200] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (events & names[i].bit) {
            if (*text) strcat(text, "|");
            strcat(text, names[i].name);
        }
    say(key, "%s", *text ? text : "none");
}

void must_failed(int line, const char *what) {
    char text[200];
    snprintf(text, sizeof text, " SETUP-FAILED line %d: %s: %s", line, what, strerrorname_np(errno));
    put(text, strlen(text));
    exit(3);
}

// --- In the parent: the children.

struct child {
    pid_t pid;
    int out;
    int index;
    long ends;
};
static char *lines[CASES_MAX];

static struct child start(int index) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) exit(2);
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) exit(2);
    if (pid == 0) {
        setpgid(0, 0);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        cases[index].run();
        exit(0);
    }
    setpgid(pid, pid);
    close(ends[1]);
    lines[index] = calloc(1, LINE_MAX_BYTES);
    return (struct child){pid, ends[0], index, now_ms() + SECONDS * 1000};
}

static void finish(struct child *child, bool late) {
    char *line = lines[child->index];
    int status = 0;
    if (late) {
        kill(-child->pid, SIGKILL);
        strcat(line, " TIMEOUT");
    }
    waitpid(child->pid, &status, 0);
    // What a case leaves behind would hold our standard output open.
    kill(-child->pid, SIGKILL);
    close(child->out);
    if (!late && WIFSIGNALED(status)) strcat(strcat(line, " killed=SIG"), sigabbrev_np(WTERMSIG(status)));
    else if (!late && WEXITSTATUS(status) != 0) strcat(line, " exit=failed");
    child->pid = 0;
}

// Reads what a child prints. False: it has ended.
static bool listen_to(struct child *child) {
    char *line = lines[child->index];
    size_t have = strlen(line);
    ssize_t n = read(child->out, line + have, LINE_MAX_BYTES - 100 - have);
    return n > 0;
}

// Does the name match one of the filters? NULL ends them; without filters every name matches.
static bool wanted(const char *name, char **filters) {
    if (*filters == NULL) return true;
    for (; *filters; filters++)
        if (strstr(name, *filters) != NULL) return true;
    return false;
}

static void run_all(char **filters) {
    struct child running[AT_ONCE] = {0};
    int next = 0, active = 0, printed = 0;
    for (;;) {
        for (int i = 0; i < AT_ONCE; i++) {
            while (running[i].pid == 0 && next < count) {
                char name[200];
                snprintf(name, sizeof name, "%s.%s", cases[next].theme, cases[next].name);
                if (wanted(name, filters)) running[i] = start(next), active++;
                next++;
            }
        }
        for (; printed < next && (lines[printed] == NULL || lines[printed][0] != 0); printed++) {
            bool busy = false;
            for (int i = 0; i < AT_ONCE; i++) busy |= running[i].pid != 0 && running[i].index == printed;
            if (busy) break;
            if (lines[printed] == NULL) continue;
            printf("%s.%s:%s\n", cases[printed].theme, cases[printed].name, lines[printed]);
        }
        if (active == 0) return;
        struct pollfd fds[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) fds[i] = (struct pollfd){running[i].pid ? running[i].out : -1, POLLIN, 0};
        poll(fds, AT_ONCE, 100);
        for (int i = 0; i < AT_ONCE; i++) {
            if (running[i].pid == 0) continue;
            bool late = now_ms() >= running[i].ends;
            if (late || (fds[i].revents != 0 && !listen_to(&running[i]))) {
                finish(&running[i], late);
                if (lines[running[i].index][0] == 0) strcat(lines[running[i].index], " nothing");
                active--;
            }
        }
    }
}

static int by_name(const void *a, const void *b) {
    const struct test_case *x = a, *y = b;
    int themes = strcmp(x->theme, y->theme);
    return themes ? themes : strcmp(x->name, y->name);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_DFL);
    qsort(cases, (size_t)count, sizeof *cases, by_name);
    run_all(argv + (argc > 0));
    return 0;
}

int epoll_of(int fd, unsigned events) {
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {events, {.u64 = 77}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    return ep;
}

// Waits once and prints the event of the one descriptor.
int wait_one(const char *key, int ep, int ms) {
    struct epoll_event e[4];
    memset(e, 0, sizeof e);
    int n = (int)CALL(key, epoll_wait(ep, e, 4, ms));
    if (n > 0) say_events("events", e[0].events & ~(unsigned)(EPOLLET | EPOLLONESHOT));
    if (n > 0 && e[0].data.u64 != 77) say("data", "%lu", (unsigned long)e[0].data.u64);
    return n;
}

int control(int ep, int op, int fd, unsigned events) {
    struct epoll_event e = {events, {.u64 = 77}};
    return epoll_ctl(ep, op, fd, &e);
}
