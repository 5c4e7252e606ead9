/* `pidfd_spawn` and `pidfd_spawnp` of glibc 2.39, for any libc (-DLIBRARY): they say which program they are to start.
 * Without it: a program that calls both for its first argument. */
#include <spawn.h>
#include <stdio.h>
#include <string.h>

int pidfd_spawn(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                char *const[]);
int pidfd_spawnp(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                 char *const[]);

#ifdef LIBRARY
int pidfd_spawn(int *child, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    (void)actions, (void)attributes, (void)environment;
    *child = 7;
    printf("path %s, %s\n", strrchr(path, '/') + 1, words[0]);
    return 0;
}

int pidfd_spawnp(int *child, const char *name, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    (void)actions, (void)attributes, (void)environment;
    *child = 8;
    printf("name %s, %s\n", strrchr(name, '/') + 1, words[0]);
    return 0;
}
#else
extern char **environ;

int main(int count, char **words) {
    int child = 0;
    if (count < 2 || pidfd_spawn(&child, words[1], NULL, NULL, words + 1, environ) || child != 7) return 1;
    return pidfd_spawnp(&child, words[1], NULL, NULL, words + 1, environ) || child != 8;
}
#endif
