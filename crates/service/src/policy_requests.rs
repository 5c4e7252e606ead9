//! The answers to `towpath policy`.

use crate::answer_line::{error, good};
use crate::policy::{Listing, PolicyRequest};
use crate::state::ServiceState;

/// Carries out a request of an operator.
pub fn serve(state: &ServiceState, request: &PolicyRequest) -> String {
    let policy = &state.settings.policy;
    match request {
        PolicyRequest::Test { question } => return policy.test(question).map_or_else(error, |tested| good(&tested)),
        PolicyRequest::Diff(new) => {
            let (sockets, app_slots) = (state.stack.connections(), state.settings.geometry.app_slots);
            return policy.difference(new, &sockets, app_slots).map_or_else(error, |difference| good(&difference));
        }
        _ => {}
    }
    let changed = match policy.change(request) {
        Err(why) => return error(why),
        Ok(changed) => changed,
    };
    if changed {
        state.stack.policy_changed();
        let totals = policy.totals();
        tracing::info!(
            rules = totals.rules,
            generation = totals.generation,
            hash = totals.hash,
            "policy changed: {}",
            request.words()
        );
    }
    // The refusals of the kernel's filter are its hits, too.
    state.stack.count_refusals();
    let asked = (*request != PolicyRequest::List).then_some(changed);
    good(&Listing { changed: asked, ..policy.listing() })
}
