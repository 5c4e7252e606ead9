//! The structures of `libibverbs` that are used here, in its binary interface IBVERBS_1.1 (`<infiniband/verbs.h>`). It
//! has not changed since 2006 and only grows at the ends of structures. A test compares each structure with that
//! header.

use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_device`.
#[repr(C)]
pub struct Device([u8; 0]);
/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd([u8; 0]);
/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq([u8; 0]);

/// The beginning of `struct ibv_context`. The calls of the data path, which `libibverbs` does not export, follow it.
#[repr(C)]
pub struct Context {
    /// Its device.
    pub device: *mut Device,
    other: [*const c_void; 11],
    /// `ibv_poll_cq`: returns the number of completions, or a negative error.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// `ibv_req_notify_cq`: returns an error number.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    others: [*const c_void; 12],
    /// `ibv_post_send`: returns an error number.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// `ibv_post_recv`: returns an error number.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    context: *mut Context,
    others: [*mut c_void; 5],
    handle: u32,
    /// Its number.
    pub qp_num: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    context: *mut Context,
    /// Readable when there is an event.
    pub fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory.
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the part of its unions that an RDMA WRITE uses.
#[repr(C)]
pub struct SendWr {
    /// Copied into the completion.
    pub wr_id: u64,
    /// The next request.
    pub next: *mut SendWr,
    /// Parts of local memory.
    pub sg_list: *mut Sge,
    /// Number of parts.
    pub num_sge: c_int,
    /// Operation.
    pub opcode: c_uint,
    /// `IBV_SEND_SIGNALED`.
    pub send_flags: c_uint,
    /// Network byte order.
    pub imm_data: u32,
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Atomics, datagrams, memory windows.
    pub unused: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    /// Copied into the completion.
    pub wr_id: u64,
    /// The next request.
    pub next: *mut RecvWr,
    /// Parts of local memory.
    pub sg_list: *mut Sge,
    /// Number of parts.
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    /// Id of the work request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: c_uint,
    /// `enum ibv_wc_opcode`; valid only if the status is success.
    pub opcode: c_uint,
    vendor_err: u32,
    byte_len: u32,
    /// Network byte order.
    pub imm_data: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    /// Sends in flight.
    pub max_send_wr: u32,
    /// Receives posted.
    pub max_recv_wr: u32,
    /// Parts of a send.
    pub max_send_sge: u32,
    /// Parts of a receive.
    pub max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    /// Free for the caller.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut Cq,
    /// Completion queue of receives.
    pub recv_cq: *mut Cq,
    /// Shared receive queue.
    pub srq: *mut c_void,
    /// Sizes.
    pub cap: QpCap,
    /// `enum ibv_qp_type`.
    pub qp_type: c_uint,
    /// Whether every send has a completion.
    pub sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with `struct ibv_global_route` at its beginning.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    /// Address of the peer's port.
    pub dgid: [u8; 16],
    pub(super) flow_label: u32,
    /// Index of this port's address.
    pub sgid_index: u8,
    /// Time to live of the IP header.
    pub hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    /// Whether there is a global route. With RoCE there always is.
    pub is_global: u8,
    /// This side's port.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    /// `enum ibv_qp_state`.
    pub qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    /// `enum ibv_mtu`.
    pub path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    /// First packet number of the peer.
    pub rq_psn: u32,
    /// First packet number of this side.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// The peer's rights.
    pub qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    /// The path to the peer.
    pub ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    /// The default partition has 0.
    pub pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    /// Reads in flight to the peer.
    pub max_rd_atomic: u8,
    /// Reads in flight from the peer.
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits if there is no receive here, a code.
    pub min_rnr_timer: u8,
    /// This side's port.
    pub port_num: u8,
    /// 4.096 µs times 2 to this.
    pub timeout: u8,
    /// How often an unanswered packet is sent again.
    pub retry_cnt: u8,
    /// The same if the peer has no receive; 7 means without end.
    pub rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// The part of `struct ibv_port_attr` that the exported `ibv_query_port` fills, with spare room.
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    /// `enum ibv_port_state`.
    pub state: c_uint,
    max_mtu: c_uint,
    /// `enum ibv_mtu`.
    pub active_mtu: c_uint,
    others: [u64; 16],
}

/// `IBV_WR_RDMA_WRITE`.
pub const WR_RDMA_WRITE: c_uint = 0;
/// `IBV_WR_RDMA_WRITE_WITH_IMM`.
pub const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
/// `IBV_SEND_SIGNALED`.
pub const SEND_SIGNALED: c_uint = 1 << 1;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
pub const WC_RECV_RDMA_WITH_IMM: c_uint = (1 << 7) + 1;
/// `IBV_QPT_RC`.
pub const QPT_RC: c_uint = 2;
/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;

/// `enum ibv_qp_state`.
pub mod state {
    use super::c_uint;
    /// `IBV_QPS_INIT`: receives can be posted.
    pub const INIT: c_uint = 1;
    /// `IBV_QPS_RTR`: the peer can write.
    pub const RTR: c_uint = 2;
    /// `IBV_QPS_RTS`: this side can write too.
    pub const RTS: c_uint = 3;
    /// `IBV_QPS_ERR`: it has ended.
    pub const ERR: c_uint = 6;
}

/// `enum ibv_qp_attr_mask`: the attributes that each step sets.
pub mod mask {
    use super::c_int;
    const STATE: c_int = 1 << 0;
    const ACCESS_FLAGS: c_int = 1 << 3;
    const PKEY_INDEX: c_int = 1 << 4;
    const PORT: c_int = 1 << 5;
    const AV: c_int = 1 << 7;
    const PATH_MTU: c_int = 1 << 8;
    const TIMEOUT: c_int = 1 << 9;
    const RETRY_CNT: c_int = 1 << 10;
    const RNR_RETRY: c_int = 1 << 11;
    const RQ_PSN: c_int = 1 << 12;
    const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    const MIN_RNR_TIMER: c_int = 1 << 15;
    const SQ_PSN: c_int = 1 << 16;
    const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    const DEST_QPN: c_int = 1 << 20;

    /// Of a queue pair to `INIT`.
    pub const INIT: c_int = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    /// To `RTR`.
    pub const RTR: c_int = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    /// To `RTS`.
    pub const RTS: c_int = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    /// To `ERR`.
    pub const ERR: c_int = STATE;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    /// Names in C and their counterparts here.
    macro_rules! known {
        (
            $($type:ident = $name:literal $whole:literal { $($field:ident = $member:literal),* $(,)? })*
            $(; $constant:literal = $value:expr)* $(;)?
        ) => {{
            let mut known: Vec<(String, u64)> = Vec::new();
            $(
                if $whole {
                    known.push((format!("sizeof(struct {})", $name), size_of::<$type>() as u64));
                }
                $(known.push((format!("offsetof(struct {}, {})", $name, $member), offset_of!($type, $field) as u64));)*
            )*
            $(known.push(($constant.to_owned(), $value as u64));)*
            known
        }};
    }

    #[test]
    #[ignore = "needs a C compiler and libibverbs-dev: scripts/setup guest; make test-slow"]
    fn structures_are_those_of_the_header() {
        let known = known! {
            Context = "ibv_context" false {
                device = "device", poll_cq = "ops.poll_cq", req_notify_cq = "ops.req_notify_cq", post_send = "ops.post_send",
                post_recv = "ops.post_recv",
            }
            Mr = "ibv_mr" true { lkey = "lkey", rkey = "rkey" }
            Qp = "ibv_qp" false { handle = "handle", qp_num = "qp_num" }
            CompChannel = "ibv_comp_channel" true { fd = "fd" }
            Sge = "ibv_sge" true { addr = "addr", length = "length", lkey = "lkey" }
            SendWr = "ibv_send_wr" true {
                wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode", send_flags = "send_flags",
                imm_data = "imm_data", remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey",
            }
            RecvWr = "ibv_recv_wr" true { wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge" }
            Wc = "ibv_wc" true {
                wr_id = "wr_id", status = "status", opcode = "opcode", imm_data = "imm_data", qp_num = "qp_num",
            }
            QpInitAttr = "ibv_qp_init_attr" true {
                send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all",
            }
            AhAttr = "ibv_ah_attr" true {
                dgid = "grh.dgid", flow_label = "grh.flow_label", sgid_index = "grh.sgid_index", hop_limit = "grh.hop_limit",
                dlid = "dlid", is_global = "is_global", port_num = "port_num",
            }
            QpAttr = "ibv_qp_attr" true {
                qp_state = "qp_state", path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn", dest_qp_num = "dest_qp_num",
                qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr", pkey_index = "pkey_index",
                max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic", min_rnr_timer = "min_rnr_timer",
                port_num = "port_num", timeout = "timeout", retry_cnt = "retry_cnt", rnr_retry = "rnr_retry",
            }
            PortAttr = "ibv_port_attr" false { state = "state", active_mtu = "active_mtu" }
            ; "IBV_WR_RDMA_WRITE" = WR_RDMA_WRITE
            ; "IBV_WR_RDMA_WRITE_WITH_IMM" = WR_RDMA_WRITE_WITH_IMM
            ; "IBV_SEND_SIGNALED" = SEND_SIGNALED
            ; "IBV_WC_RECV_RDMA_WITH_IMM" = WC_RECV_RDMA_WITH_IMM
            ; "IBV_QPT_RC" = QPT_RC
            ; "IBV_PORT_ACTIVE" = PORT_ACTIVE
            ; "IBV_ACCESS_LOCAL_WRITE" = ACCESS_LOCAL_WRITE
            ; "IBV_ACCESS_REMOTE_WRITE" = ACCESS_REMOTE_WRITE
            ; "IBV_QPS_INIT" = state::INIT
            ; "IBV_QPS_RTR" = state::RTR
            ; "IBV_QPS_RTS" = state::RTS
            ; "IBV_QPS_ERR" = state::ERR
            ; "(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)" = mask::INIT
            ; "(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | \
               IBV_QP_MIN_RNR_TIMER)" = mask::RTR
            ; "(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)"
                = mask::RTS
            ; "IBV_QP_STATE" = mask::ERR
        };
        let header = "#include <infiniband/verbs.h>\n#include <stddef.h>\n";
        let checks = known
            .iter()
            .map(|(name, value)| format!("_Static_assert({name} == {value}, \"{name} is not {value}\");\n"))
            .collect::<String>();
        let port =
            format!("_Static_assert(sizeof(struct ibv_port_attr) <= {}, \"ibv_port_attr\");\n", size_of::<PortAttr>());
        let source = std::env::temp_dir().join(format!("towpath-verbs-{}.c", std::process::id()));
        std::fs::write(&source, [header, &checks, &port].concat()).unwrap();
        let ended = Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
        std::fs::remove_file(source).unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "(apt-get install gcc libibverbs-dev, or scripts/setup guest)\n{said}");
    }
}
