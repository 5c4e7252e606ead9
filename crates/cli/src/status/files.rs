//! The files that a service has: their generations and hashes.

use std::fmt::Write;
use towpath_scaling::counted;
use towpath_service::api::{ConfigurationStatus, Status};

/// So many digits of a hash tell two files apart.
const DIGITS: usize = 12;

/// The first digits of a hash.
pub fn short(hash: &str) -> &str {
    hash.get(..DIGITS).unwrap_or(hash)
}

/// The configuration, if it has a file.
pub fn configuration(out: &mut String, configuration: &ConfigurationStatus) {
    let ConfigurationStatus { file: Some(file), generation, hash: Some(hash), restart } = configuration else { return };
    let restart =
        if restart.is_empty() { String::new() } else { format!("; a restart changes {}", restart.join(", ")) };
    let _ = writeln!(out, "configuration {}: generation {generation}, hash {}{restart}", file.display(), short(hash));
}

/// The policy, if there is anything to tell.
pub fn policy(out: &mut String, status: &Status) {
    let policy = &status.policy;
    if policy.rules == 0 && policy.denied + policy.limited == 0 && status.configuration.file.is_none() {
        return;
    }
    let (rules, denied, limited) = (counted(policy.rules, "rule"), policy.denied, policy.limited);
    let _ = write!(out, "policy: {rules}, {denied} attempts denied, {limited} over a limit");
    let _ = writeln!(out, "; generation {}, hash {}", policy.generation, short(&policy.hash));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_configuration_and_its_policy_are_told_by_generation_and_hash() {
        let mut status = samples::status();
        let page = |status: &Status| {
            let mut out = String::new();
            configuration(&mut out, &status.configuration);
            policy(&mut out, status);
            out
        };
        assert_eq!(page(&status), "", "a service of one's own has neither");
        let hash = Some("0123456789abcdef".repeat(4));
        let file = Some("/etc/towpath/towpathd.toml".into());
        status.configuration = ConfigurationStatus { file, generation: 7, hash, restart: Vec::new() };
        (status.policy.generation, status.policy.hash) = (3, "f".repeat(64));
        let policy = "policy: 0 rules, 0 attempts denied, 0 over a limit; generation 3, hash ffffffffffff\n";
        let line = "configuration /etc/towpath/towpathd.toml: generation 7, hash 0123456789ab";
        assert_eq!(page(&status), format!("{line}\n{policy}"));
        status.configuration.restart = vec!["cores".into(), "spin".into()];
        assert_eq!(page(&status), format!("{line}; a restart changes cores, spin\n{policy}"));
    }
}
