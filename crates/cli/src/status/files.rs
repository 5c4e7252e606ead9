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

/// The configuration, if it has a file and is shown.
pub fn configuration(out: &mut String, configuration: Option<&ConfigurationStatus>) {
    let Some(ConfigurationStatus { file: Some(file), generation, hash: Some(hash), restart }) = configuration else {
        return;
    };
    let restart =
        if restart.is_empty() { String::new() } else { format!("; a restart changes {}", restart.join(", ")) };
    let _ = writeln!(out, "configuration {}: generation {generation}, hash {}{restart}", file.display(), short(hash));
}

/// The policy, if there is anything to tell.
pub fn policy(out: &mut String, status: &Status) {
    let (policy, configuration) = (&status.policy, status.configuration.as_ref());
    let file = configuration.is_some_and(|configuration| configuration.file.is_some());
    if policy.rules == 0 && policy.denied + policy.limited == 0 && !file {
        return;
    }
    let (rules, denied, limited) = (counted(policy.rules, "rule"), policy.denied, policy.limited);
    let _ = write!(out, "policy: {rules}, {denied} attempts denied, {limited} over a limit");
    if let (Some(generation), Some(hash)) = (policy.generation, &policy.hash) {
        let _ = write!(out, "; generation {generation}, hash {}", short(hash));
    }
    out.push('\n');
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
            configuration(&mut out, status.configuration.as_ref());
            policy(&mut out, status);
            out
        };
        assert_eq!(page(&status), "", "a service of one's own has neither");
        let hash = Some("0123456789abcdef".repeat(4));
        let file = Some("/etc/towpath/towpathd.toml".into());
        let mut shown = ConfigurationStatus { file, generation: 7, hash, restart: Vec::new() };
        status.configuration = Some(shown.clone());
        (status.policy.generation, status.policy.hash) = (Some(3), Some("f".repeat(64)));
        let policy = "policy: 0 rules, 0 attempts denied, 0 over a limit; generation 3, hash ffffffffffff\n";
        let line = "configuration /etc/towpath/towpathd.toml: generation 7, hash 0123456789ab";
        assert_eq!(page(&status), format!("{line}\n{policy}"));
        shown.restart = vec!["cores".into(), "spin".into()];
        status.configuration = Some(shown);
        assert_eq!(page(&status), format!("{line}; a restart changes cores, spin\n{policy}"));
        (status.configuration, status.policy.generation, status.policy.hash) = (None, None, None);
        assert_eq!(page(&status), "", "a user who may not see them");
        status.policy.rules = 1;
        assert_eq!(page(&status), "policy: 1 rule, 0 attempts denied, 0 over a limit\n");
    }
}
