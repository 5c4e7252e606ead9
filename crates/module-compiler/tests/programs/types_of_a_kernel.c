/* Types of a kernel that was never there: what kernel_types.bpf.c was compiled with, and what it finds. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum colour { GREEN = 5, BLUE = 3000000000, RED = 7 };

struct inner {
    u16 before;
    u16 wanted;
};

typedef struct {
    u32 word;
    u32 more;
} pair_t;

struct moved {
    u32 first;
    union {
        u64 wide; /* 32 bits in the program's types */
        u8 other;
    };
    struct inner inner[3]; /* at 16 */
    u8 unused : 3;         /* at 28 */
    u8 bits : 4;
    signed char low;
    u16 plain;
    const volatile u16 *pointer; /* at 32 */
    u8 end[0];
};

struct moved moved;
enum colour colour;
pair_t pair;
