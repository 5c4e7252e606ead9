//! The files that stacks have, so that a fleet can be compared and a roll-out watched.

use super::{Page, stack, with};
use towpath_service::api::Status;

/// Policy and configuration.
pub fn add(page: &mut Page, stacks: &[(&str, &Status)]) {
    let policies = stacks.iter().map(|(name, s)| (with(&stack(name), &[("hash", &s.policy.hash)]), 1.0));
    page.gauge("towpath_policy_info", "Hash of the policy in force.", policies);
    let generations = stacks.iter().map(|(name, s)| (stack(name), s.policy.generation as f64));
    page.gauge("towpath_policy_generation", "Grows with each change of the policy.", generations);
    let configured =
        || stacks.iter().filter_map(|(name, s)| Some((name, &s.configuration, s.configuration.hash.as_ref()?)));
    let files = configured().map(|(name, _, hash)| (with(&stack(name), &[("hash", hash)]), 1.0));
    page.gauge("towpath_configuration_info", "Hash of the configuration's file, as it was read last.", files);
    let generations = configured().map(|(name, file, _)| (stack(name), file.generation as f64));
    page.gauge("towpath_configuration_generation", "Grows with each text of the file that is read.", generations);
    let waiting = configured().map(|(name, file, _)| (stack(name), file.restart.len() as f64));
    page.gauge("towpath_configuration_restart_keys", "Keys of the file whose values need a restart.", waiting);
}
