//! Asks the kernel by `sock_diag(7)` for all TCP sockets of the network namespace that this thread is in.

use super::{KernelSocket, Memory};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::{Nla, TcpInfo};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use std::io;
use std::net;
use towpath_service::api::{SocketStatus, TcpStatus};

/// Bytes of answers that are received at a time. The kernel sends no longer parts of a list.
const PART: usize = 32 * 1024;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
/// The kernel's states by their numbers, as `ss` shows them.
const STATES: [&str; 13] = [
    "UNCONN",
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "UNCONN",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECV",
];
/// `TCP_CA_RECOVERY`.
const RECOVERY: u8 = 3;

/// All of both families.
pub fn all() -> io::Result<Vec<(SocketStatus, KernelSocket)>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut found = Vec::new();
    for (sequence, family) in [(1, AF_INET), (2, AF_INET6)] {
        socket.send(&question(sequence, family), 0)?;
        let mut more = true;
        while more {
            let mut part = Vec::with_capacity(PART);
            // The answer is there when `send` returns, and each part when the one before is read.
            socket.recv(&mut part, libc::MSG_DONTWAIT)?;
            more = read(&part, sequence, &mut found)?;
        }
    }
    Ok(found)
}

fn question(sequence: u32, family: u8) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (NLM_F_REQUEST | NLM_F_DUMP, sequence);
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO | ExtensionFlags::SKMEMINFO,
        states: StateFlags::all(),
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Reads a part of the list. True: more of it comes.
fn read(mut part: &[u8], sequence: u32, found: &mut Vec<(SocketStatus, KernelSocket)>) -> io::Result<bool> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("the answer of sock_diag: {why}"));
    while !part.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(part).map_err(|error| wrong(error.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        if length == 0 {
            return Err(wrong("a message without length".into()));
        }
        part = part.get(length..).unwrap_or_default();
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(false),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => found.push(socket(&response)),
            _ => {}
        }
    }
    Ok(true)
}

fn socket(response: &InetResponse) -> (SocketStatus, KernelSocket) {
    let InetResponse { header, nlas } = response;
    let id = &header.socket_id;
    let mut tcp = None;
    let mut memory = None;
    for nla in nlas {
        match nla {
            Nla::TcpInfo(info) if header.state != LISTEN => tcp = Some(details(info, header.send_queue)),
            Nla::MemInfo(info) => {
                memory = Some(Memory {
                    received: info.receive_queue,
                    received_most: info.receive_queue_max,
                    under_way: info.bottom_send_queues,
                    sent_most: info.send_queue_max,
                    reserved: info.cache,
                    queued: info.send_queue,
                    options: info.options,
                    backlog: info.backlog_queue_length,
                    drops: info.drops,
                });
            }
            _ => {}
        }
    }
    let status = SocketStatus {
        state: STATES.get(usize::from(header.state)).copied().unwrap_or("UNKNOWN").into(),
        recv_q: header.recv_queue,
        send_q: header.send_queue,
        local: net::SocketAddr::new(id.source_address.to_canonical(), id.source_port),
        peer: net::SocketAddr::new(id.destination_address.to_canonical(), id.destination_port),
        program: String::new(),
        pid: 0,
        uid: header.uid,
        client: None,
        slot: 0,
        flow_group: None,
        direct: false,
        tcp,
        halves: None,
    };
    let (inode, cookie) = (header.inode, u64::from_ne_bytes(id.cookie));
    (status, KernelSocket { inode, cookie, namespace: 0, processes: Vec::new(), memory })
}

fn details(info: &TcpInfo, send_queue: u32) -> TcpStatus {
    let option = |bit: u8| info.options & bit != 0;
    TcpStatus {
        srtt_us: info.rtt,
        rttvar_us: info.rttvar,
        mss: info.snd_mss.try_into().unwrap_or(u16::MAX),
        // The kernel counts segments.
        cwnd: info.snd_cwnd.saturating_mul(info.snd_mss),
        ssthresh: info.snd_ssthresh.saturating_mul(info.snd_mss),
        snd_wnd: info.snd_wnd,
        unacked: send_queue.saturating_sub(info.notsent_bytes),
        bytes_received: info.bytes_received,
        bytes_acked: info.bytes_acked,
        segs_in: info.segs_in.into(),
        segs_out: info.segs_out.into(),
        retrans: info.total_retrans.into(),
        backoff: info.backoff.into(),
        probes: info.probes.into(),
        timestamps: option(1),
        sack: option(1 << 1),
        wscale: option(1 << 2),
        ecn: option(1 << 3),
        recovery: info.ca_state >= RECOVERY,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_that_are_none_are_errors_and_no_endless_loop() {
        let read = |part: &[u8]| read(part, 1, &mut Vec::new());
        assert!(read(&[1, 2, 3]).is_err());
        assert!(read(&[0; 16]).is_err(), "a length of 0");
        let mut done = [0; 20];
        (done[0], done[4], done[8]) = (20, 3, 1);
        assert!(!read(&done).unwrap(), "NLMSG_DONE");
        done[8] = 9;
        assert!(read(&done).unwrap(), "of another question");
        let mut error = [0; 36];
        (error[0], error[4], error[8]) = (36, 2, 1);
        error[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(read(&error).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
