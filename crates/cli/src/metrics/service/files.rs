//! The files that stacks have, so that a fleet can be compared and a roll-out watched.

use super::{Page, stack, with};
use towpath_service::api::Status;

/// Policy and configuration, where the service shows them.
pub fn add(page: &mut Page, stacks: &[(&str, &Status)]) {
    let policies = stacks.iter().filter_map(|(name, s)| Some((name, s.policy.hash.as_ref()?)));
    let policies = policies.map(|(name, hash)| (with(&stack(name), &[("hash", hash)]), 1.0));
    page.gauge("towpath_policy_info", "Hash of the policy in force.", policies);
    let generations = stacks.iter().filter_map(|(name, s)| Some((stack(name), s.policy.generation? as f64)));
    page.gauge("towpath_policy_generation", "Grows with each change of the policy.", generations);
    let shown = || stacks.iter().filter_map(|(name, s)| Some((name, s.configuration.as_ref()?)));
    let configured = || shown().filter_map(|(name, file)| Some((name, file, file.hash.as_ref()?)));
    let files = configured().map(|(name, _, hash)| (with(&stack(name), &[("hash", hash)]), 1.0));
    page.gauge("towpath_configuration_info", "Hash of the configuration's file, as it was read last.", files);
    let generations = configured().map(|(name, file, _)| (stack(name), file.generation as f64));
    page.gauge("towpath_configuration_generation", "Grows with each text of the file that is read.", generations);
    let waiting = configured().map(|(name, file, _)| (stack(name), file.restart.len() as f64));
    page.gauge("towpath_configuration_restart_keys", "Keys of the file whose values need a restart.", waiting);
}
