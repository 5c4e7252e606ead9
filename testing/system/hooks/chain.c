/* `chain WAY PROGRAM [ARGUMENT]...` executes the program by execv, execl, execlp, execle, execvp, fexecve, vfork or spawn,
 * and ends with its exit code. Before that it prints the name of its own file (/proc/self/exe). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **words) {
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    pid_t child = -1;
    int status = 0;
    if (count < 3 || length < 0) return 2;
    own[length] = 0;
    printf("%s %s\n", strrchr(own, '/') + 1, words[1]);
    fflush(stdout);
    if (strcmp(words[1], "execv") == 0) execv(words[2], words + 2);
    else if (strcmp(words[1], "execvp") == 0) execvp(words[2], words + 2);
    /* More arguments than fit into registers. echo.c needs only the first. */
    else if (strcmp(words[1], "execl") == 0) execl(words[2], words[2], words[3], "3", "4", "5", "6", "7", NULL);
    else if (strcmp(words[1], "execlp") == 0) execlp(words[2], words[2], words[3], NULL);
    else if (strcmp(words[1], "execle") == 0) execle(words[2], words[2], words[3], "3", "4", NULL, environ);
    else if (strcmp(words[1], "fexecve") == 0) fexecve(open(words[2], O_RDONLY | O_CLOEXEC), words + 2, environ);
    else if (strcmp(words[1], "vfork") == 0) {
        child = vfork();
        if (child == 0) {
            execv(words[2], words + 2);
            _exit(127);
        }
    } else if (posix_spawnp(&child, words[2], NULL, NULL, words + 2, environ) != 0) return 3;
    if (child < 0 || waitpid(child, &status, 0) != child) return 4;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
