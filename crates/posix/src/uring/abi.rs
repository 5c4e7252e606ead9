//! The part of the kernel's interface that is used (`linux/io_uring.h`).

/// A submission queue entry. With IORING_SETUP_SQE128 an entry has 64 more bytes behind this one.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    /// Offset, or a second address.
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    /// `rw_flags`, `msg_flags`, `accept_flags`, `cancel_flags`, `poll32_events`, `nop_flags`, ...
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    /// `file_index`, `splice_fd_in`, or the flags of the completion that a MSG_RING posts.
    pub file_index: i32,
    pub addr3: u64,
    pub pad: u64,
}

const _: () = assert!(size_of::<Sqe>() == 64);

/// A completion queue entry.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
}

/// `struct io_sqring_offsets`. `struct io_cqring_offsets` has the same size.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Offsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    /// Submission queue: `flags`. Completion queue: `overflow`.
    pub fifth: u32,
    /// Submission queue: `dropped`. Completion queue: `cqes`.
    pub sixth: u32,
    /// Submission queue: `array`.
    pub seventh: u32,
    pub reserved: u32,
    pub user_addr: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Params {
    pub sq_entries: u32,
    pub cq_entries: u32,
    pub flags: u32,
    pub sq_thread_cpu: u32,
    pub sq_thread_idle: u32,
    pub features: u32,
    pub wq_fd: u32,
    pub reserved: [u32; 3],
    pub sq_off: Offsets,
    pub cq_off: Offsets,
}

const _: () = assert!(size_of::<Params>() == 120);

/// `IORING_SETUP_*`.
pub mod setup {
    pub const IOPOLL: u32 = 1;
    pub const SQPOLL: u32 = 1 << 1;
    pub const SQ_AFF: u32 = 1 << 2;
    pub const R_DISABLED: u32 = 1 << 6;
    pub const SQE128: u32 = 1 << 10;
    pub const NO_MMAP: u32 = 1 << 14;
    pub const REGISTERED_FD_ONLY: u32 = 1 << 15;
    pub const NO_SQARRAY: u32 = 1 << 16;
    /// The first flag that this file does not know.
    pub const UNKNOWN: u32 = 1 << 19;
}

/// `IORING_OFF_*`.
pub const OFF_SQ_RING: u64 = 0;
pub const OFF_CQ_RING: u64 = 0x800_0000;
pub const OFF_SQES: u64 = 0x1000_0000;
pub const OFF_PBUF_RING: u64 = 0x8000_0000;

/// `IOSQE_*`.
pub mod flag {
    pub const FIXED_FILE: u8 = 1;
    pub const IO_DRAIN: u8 = 1 << 1;
    pub const IO_LINK: u8 = 1 << 2;
    pub const IO_HARDLINK: u8 = 1 << 3;
    pub const ASYNC: u8 = 1 << 4;
    pub const BUFFER_SELECT: u8 = 1 << 5;
    pub const CQE_SKIP_SUCCESS: u8 = 1 << 6;
}

/// `IORING_OP_*`.
pub mod op {
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const POLL_ADD: u8 = 6;
    pub const POLL_REMOVE: u8 = 7;
    pub const SYNC_FILE_RANGE: u8 = 8;
    pub const SENDMSG: u8 = 9;
    pub const RECVMSG: u8 = 10;
    pub const ACCEPT: u8 = 13;
    pub const ASYNC_CANCEL: u8 = 14;
    pub const LINK_TIMEOUT: u8 = 15;
    pub const CONNECT: u8 = 16;
    pub const FALLOCATE: u8 = 17;
    pub const CLOSE: u8 = 19;
    pub const FILES_UPDATE: u8 = 20;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const FADVISE: u8 = 24;
    pub const SEND: u8 = 26;
    pub const RECV: u8 = 27;
    pub const EPOLL_CTL: u8 = 29;
    pub const SPLICE: u8 = 30;
    pub const PROVIDE_BUFFERS: u8 = 31;
    pub const TEE: u8 = 33;
    pub const SHUTDOWN: u8 = 34;
    pub const MSG_RING: u8 = 40;
    pub const SOCKET: u8 = 45;
    pub const URING_CMD: u8 = 46;
    pub const SEND_ZC: u8 = 47;
    pub const SENDMSG_ZC: u8 = 48;
    pub const READ_MULTISHOT: u8 = 49;
    pub const FTRUNCATE: u8 = 55;
    pub const BIND: u8 = 56;
    pub const LISTEN: u8 = 57;
    pub const EPOLL_WAIT: u8 = 59;
    pub const WRITEV_FIXED: u8 = 61;
    /// An opcode that no kernel has.
    pub const NONE: u8 = 255;
}

/// `IORING_NOP_INJECT_RESULT` (Linux 6.9).
pub const NOP_INJECT_RESULT: u32 = 1;
/// `IORING_MSG_RING_FLAGS_PASS` (Linux 6.3).
pub const MSG_RING_FLAGS_PASS: u32 = 1 << 1;
/// `IORING_CQE_F_BUFFER`, and the position of the buffer's number in the flags.
pub const CQE_F_BUFFER: u32 = 1;
pub const CQE_BUFFER_SHIFT: u32 = 16;
/// `IOU_PBUF_RING_*`.
pub const PBUF_RING_MMAP: u16 = 1;
pub const PBUF_RING_INC: u16 = 1 << 1;
/// `IORING_CQE_F_NOTIF`: the program may use the memory of a SEND_ZC again.
pub const CQE_F_NOTIF: u32 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`, in the result of a completion with `CQE_F_NOTIF`.
pub const NOTIF_COPIED: i32 = i32::MIN;
/// `IORING_CQE_F_MORE`.
pub const CQE_F_MORE: u32 = 1 << 1;

/// `IORING_TIMEOUT_ABS`.
pub const TIMEOUT_ABS: u32 = 1;

/// `IORING_POLL_*`, in `len`.
pub mod poll {
    pub const ADD_MULTI: u32 = 1;
    pub const UPDATE_EVENTS: u32 = 1 << 1;
    pub const UPDATE_USER_DATA: u32 = 1 << 2;
    pub const ADD_LEVEL: u32 = 1 << 3;
}

/// `IORING_ASYNC_CANCEL_*`.
pub mod cancel {
    pub const ALL: u32 = 1;
    pub const FD: u32 = 1 << 1;
    pub const ANY: u32 = 1 << 2;
    pub const FD_FIXED: u32 = 1 << 3;
    pub const USERDATA: u32 = 1 << 4;
    pub const OP: u32 = 1 << 5;
}

/// `IORING_RECVSEND_POLL_FIRST` and `IORING_ACCEPT_POLL_FIRST`, in `ioprio`.
pub const RECVSEND_POLL_FIRST: u16 = 1;
/// `IORING_RECVSEND_FIXED_BUF` and `IORING_SEND_ZC_REPORT_USAGE`.
pub const RECVSEND_FIXED_BUF: u16 = 1 << 2;
pub const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_RECV_MULTISHOT`.
pub const RECV_MULTISHOT: u16 = 1 << 1;
/// Flags of `accept`, in `ioprio`.
pub mod accept {
    pub const MULTISHOT: u16 = 1;
    pub const DONTWAIT: u16 = 1 << 1;
    pub const POLL_FIRST: u16 = 1 << 2;
}

/// `IORING_REGISTER_*`.
pub mod register {
    pub const FILES: u32 = 2;
    pub const FILES_UPDATE: u32 = 6;
    pub const RESTRICTIONS: u32 = 11;
    pub const ENABLE_RINGS: u32 = 12;
    pub const FILES2: u32 = 13;
    pub const FILES_UPDATE2: u32 = 14;
    pub const RING_FDS: u32 = 20;
    pub const PBUF_RING: u32 = 22;
    pub const UNREGISTER_PBUF_RING: u32 = 23;
    pub const SYNC_CANCEL: u32 = 24;
    pub const PBUF_STATUS: u32 = 26;
    pub const RESIZE_RINGS: u32 = 33;
}
