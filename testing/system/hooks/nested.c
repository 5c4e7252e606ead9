/* A function inside a function, whose address is taken: gcc puts code on the stack (PT_GNU_STACK is RWE). Calls it on the
 * first thread and, with glibc, on another one (musl executes no code on their stacks). Prints "done" if all is right. */
#include <pthread.h>
#include <stdio.h>

static int apply(int (*function)(int), int value) { return function(value); }

static void *on_stack(void *number) {
    int inner(int value) { return value + *(int *)number; }
    return (void *)(long)apply(inner, 40);
}

int main(void) {
    int two = 2;
    if (on_stack(&two) != (void *)42L) return 1;
#ifdef __GLIBC__
    void *answer;
    pthread_t one;
    if (pthread_create(&one, NULL, on_stack, &two) != 0 || pthread_join(one, &answer) != 0) return 2;
    if (answer != (void *)42L) return 3;
#endif
    puts("done");
    return 0;
}
