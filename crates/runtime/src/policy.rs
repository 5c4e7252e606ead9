//! The operator's policy, as a stack asks it.

use crate::client_setup::ClientId;
use crate::peer_rules::PeerRules;
use std::net::SocketAddr;

/// The policy's verdict on an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed, with this congestion control (the policy's number for it) whatever the application asks for. 0 = the
    /// application chooses.
    Allow(u8),
    /// A command fails with this errno (positive); a peer's SYN is answered with RST.
    Refuse(i32),
    /// A peer's SYN is not answered.
    Drop,
    /// The socket is left to the kernel. For a peer's SYN it means `Drop`.
    Kernel,
    /// The command is for the service's other stack of this number (`towpath_ring::command::give_to`). For a peer's SYN
    /// it means `Drop`.
    Stack(u8),
}

/// Limits that all clients with the same `id` share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tells limits apart; never used again for another.
    pub id: u64,
    /// A small number that no other limit has at this time.
    pub number: u16,
    /// Weight in the sharing of each port. Applications without a limit have 1.
    pub weight: u16,
    /// Payload bytes per second that they send together, 0 = no limit.
    pub rate: u64,
    /// Connections that they have together, 0 = no limit.
    pub connections: u32,
    /// Connections that they open and accept in a second, together, 0 = no limit.
    pub new_per_s: u32,
}

/// The limit that has refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// [`Limit::connections`].
    Connections,
    /// [`Limit::new_per_s`].
    NewPerSecond,
}

/// The operator's policy. Called by one thread of a stack only.
pub trait AdmissionPolicy: Send {
    /// May this client connect there?
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict;
    /// The stack of another network namespace at which this client may ask to be joined to a listener
    /// ([`towpath_ring::command::join_at`]). `None`: the connection goes its usual way.
    fn joins_to(&mut self, _client: ClientId, _listener: SocketAddr) -> Option<u8> {
        None
    }
    /// May it listen there? `dual`: on `::`, for IPv4, too.
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict;
    /// May this peer connect to a listener of it? Asked for each attempt of a peer.
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict;
    /// The stack takes nothing new: what listens is left to the kernel. It is asked when the policy has changed, and this
    /// answer is the last.
    fn drains(&mut self) -> bool {
        false
    }
    /// Which peers may the kernel accept for a listener of it? See [`AdmissionPolicy::peer_rules_version`].
    fn peer_rules(&mut self, _client: ClientId, _local: SocketAddr, _dual: bool) -> PeerRules {
        PeerRules::default()
    }
    /// A number that changes whenever an answer of [`AdmissionPolicy::peer_rules`] may have changed.
    fn peer_rules_version(&mut self) -> u64 {
        0
    }
    /// So many SYNs more have been refused, by the numbers in the rules ([`PeerVerdict::Refuse`]).
    ///
    /// [`PeerVerdict::Refuse`]: crate::peer_rules::PeerVerdict::Refuse
    fn peers_refused(&mut self, _refused: &[(u64, u64)]) {}
    /// The limit that it is under.
    fn limit(&mut self, client: ClientId) -> Option<Limit>;
    /// An attempt by it, or by a peer to reach it, has failed because of a limit.
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded);
}

/// No policy: everything is allowed.
pub struct AllowAll;

impl AdmissionPolicy for AllowAll {
    fn connect(&mut self, _: ClientId, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn listen(&mut self, _: ClientId, _: SocketAddr, _: bool) -> Verdict {
        Verdict::Allow(0)
    }
    fn accept(&mut self, _: ClientId, _: SocketAddr, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        None
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}
