//! ECN in the handshake (RFC 3168 §6.1.1), with the values of `net.ipv4.tcp_ecn`.

use super::world::*;
use crate::flow::{Ecn, FlowId};
use crate::slow::SlowConfig;
use crate::slow::congestion::Algorithm;
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::flags;

const ECE: u8 = flags::ECE;
const CWR: u8 = flags::CWR;

fn config(ecn: u8) -> SlowConfig {
    SlowConfig { ecn, ..SlowConfig::default() }
}

/// A server that gets this SYN. Returns the flags of its SYN-ACK, and the ECN mode of the installed flow.
fn passive(config: SlowConfig, syn_flags: u8) -> (u8, Ecn) {
    let mut bench = Bench::with(config);
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    bench.slow.listen(bench.now, SERVER, any, 80, false, 8, &mut bench.world).unwrap();
    bench.for_server(4000, Peer { flags: flags::SYN | syn_flags, ..syn(5000) });
    let answer = bench.frame();
    bench.for_server(4000, Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) });
    (answer.flags & (ECE | CWR), bench.world.setups[&FlowId(0)].ecn)
}

/// A client that gets this SYN-ACK after `lost` SYNs. Returns the flags of its last SYN, and the ECN mode of the
/// installed flow.
fn active(config: SlowConfig, lost: u64, answer_flags: u8) -> (u8, Ecn) {
    let mut bench = Bench::with(config);
    bench.connect();
    let mut ours = bench.frame();
    for _ in 0..lost {
        bench.pass_ms(1000);
        ours = bench.frame();
    }
    let answer = Peer { ack: ours.seq.wrapping_add(1), flags: flags::SYN | flags::ACK | answer_flags, ..syn(7000) };
    bench.for_client(ours.source_port, answer);
    (ours.flags & (ECE | CWR), bench.world.setups[&FlowId(0)].ecn)
}

#[test]
fn ecn_is_accepted_by_default_and_requested_if_set() {
    assert_eq!(passive(config(2), ECE | CWR), (ECE, Ecn::Classic));
    assert_eq!(passive(config(1), ECE | CWR), (ECE, Ecn::Classic));
    assert_eq!(passive(config(0), ECE | CWR), (0, Ecn::Off));
    assert_eq!(active(config(2), 0, 0), (0, Ecn::Off));
    assert_eq!(active(config(0), 0, ECE), (0, Ecn::Off), "never asked for");
    assert_eq!(active(config(1), 0, ECE), (ECE | CWR, Ecn::Classic));
    assert_eq!(SlowConfig::default().ecn, 2);
}

#[test]
fn only_the_right_flags_agree_to_ecn() {
    for syn_flags in [0, ECE, CWR] {
        assert_eq!(passive(config(1), syn_flags), (0, Ecn::Off), "{syn_flags}");
    }
    // A peer that reflects our flags does not support ECN.
    for answer_flags in [0, CWR, ECE | CWR] {
        assert_eq!(active(config(1), 0, answer_flags), (ECE | CWR, Ecn::Off), "{answer_flags}");
    }
}

#[test]
fn a_syn_that_is_sent_again_does_without_ecn() {
    assert_eq!(active(config(1), 1, ECE), (0, Ecn::Off));
}

#[test]
fn dctcp_always_uses_ecn() {
    let config = |congestion| SlowConfig { congestion, ..config(0) };
    let dctcp = Algorithm::parse("dctcp").unwrap();
    assert_eq!(active(config(dctcp), 0, ECE), (ECE | CWR, Ecn::Dctcp));
    assert_eq!(active(config(dctcp), 0, 0), (ECE | CWR, Ecn::Off));
    assert_eq!(passive(config(dctcp), ECE | CWR), (ECE, Ecn::Dctcp));
    assert_eq!(passive(config(Algorithm::Reno), ECE | CWR), (0, Ecn::Off));
}

/// The policy's algorithm for a peer decides as a listener's own would.
#[test]
fn a_child_whose_algorithm_is_dctcp_uses_ecn_and_others_use_it_as_configured() {
    use crate::slow::Admission;
    for (ecn, congestion, answer) in [
        (0, Algorithm::Dctcp, (ECE, Ecn::Dctcp)),
        (2, Algorithm::Dctcp, (ECE, Ecn::Dctcp)),
        (0, Algorithm::Reno, (0, Ecn::Off)),
        (2, Algorithm::Reno, (ECE, Ecn::Classic)),
    ] {
        let mut bench = Bench::with(config(ecn));
        bench.world.admission = Some(Admission::Yes(congestion.id()));
        bench.slow.listen(bench.now, SERVER, US, 80, false, 8, &mut bench.world).unwrap();
        bench.for_server(4000, Peer { flags: flags::SYN | ECE | CWR, ..syn(5000) });
        let sent = bench.frame();
        bench.for_server(4000, Peer { seq: 5001, ack: sent.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) });
        assert_eq!((sent.flags & (ECE | CWR), bench.world.setups[&FlowId(0)].ecn), answer, "{ecn} {congestion}");
    }
}
