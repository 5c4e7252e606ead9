//! The policy's rules about peers, in the words of the filter for listening sockets.

use std::io;
use towpath_ports::listening::Listening;
use towpath_ports::peer_filter::{MAX_RULES, Outcome, Rule};
use towpath_runtime::{Block, MAX_PEER_RULES, PeerRule, PeerVerdict};

const _: () = assert!(MAX_PEER_RULES == MAX_RULES);

/// Sets the rules of the listening socket with this cookie.
pub fn judge(listening: &mut Listening, cookie: u64, rules: &[PeerRule]) -> io::Result<()> {
    let rules: Vec<Rule> = rules.iter().map(rule).collect();
    listening.peers().set(cookie, &rules)
}

fn rule(rule: &PeerRule) -> Rule {
    let block = |block: Option<Block>| block.map(|Block { addr, bits }| (addr, bits));
    let outcome = match rule.verdict {
        PeerVerdict::Refuse(number) => Outcome::Refuse(number),
        PeerVerdict::GoOn(next) => Outcome::GoOn(u32::try_from(next).unwrap_or(u32::MAX)),
    };
    Rule::new(block(rule.remote), block(rule.local), outcome)
}
