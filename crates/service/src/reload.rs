//! `towpath reload` and SIGHUP: the configuration file is read again. A text that is wrong changes nothing.

use crate::activation;
use crate::admission::{Admission, UnknownName};
use crate::api::Reloaded;
use crate::config::{CHANGEABLE, Config, ConfigError};
use crate::live::LiveValues;
use crate::privileged;
use crate::state::ServiceState;
use std::io;
use std::sync::{Arc, PoisonError};

/// Why a name may be unknown that the host knows: the sandbox is older than the file that has it.
const NAMES: &str = "A user or group that is newer than the service is known by its number, or after a restart";

/// Reads the file again and takes over what can change. The error is for the operator, and nothing has changed then.
pub fn reload(state: &ServiceState) -> Result<Reloaded, String> {
    let done = try_reload(state);
    match &done {
        Ok(reloaded) => tracing::info!("configuration read again: {}", reloaded.line()),
        Err(why) => tracing::error!("the configuration is as it was: {why}"),
    }
    done
}

/// [`reload`] apart from the main loop, which waits for no name service.
pub fn reload_apart(state: &Arc<ServiceState>) {
    let state = state.clone();
    let _ = std::thread::Builder::new().name("reload".into()).spawn(move || drop(reload(&state)));
}

fn try_reload(state: &ServiceState) -> Result<Reloaded, String> {
    let source = &state.settings.source;
    // One at a time.
    let mut in_force = source.in_force.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(file) = in_force.file.clone() else {
        return Err("the service was started without --config, so there is no file to read; `towpath policy` changes \
                    its rules"
            .into());
    };
    let unread = |source| ConfigError::Read { file: file.clone(), source }.to_string();
    let text = privileged::configuration(&file).map_err(unread)?;
    let new = source.options.configuration_of(&text).map_err(|why| sentence(&why.to_string()))?;
    let new = activation::named(new);
    let admission = admission(&new, &text)?;
    let policy = &state.settings.policy;
    let is_of = |config: &Config| policy.is(&config.own_policy(), config.policy_default);
    let edited = !is_of(&in_force) && !is_of(&new);
    let (opens, live) = (admission.opens_to_others(), state.settings.live.values());
    let opened = live.admission.opens_to_others();
    if opens != opened {
        let failed = |why: io::Error| format!("admit: the sockets' permissions cannot be changed: {why}");
        privileged::open_sockets(&state.settings.socket, opens).map_err(failed)?;
    }
    if let Err(why) = policy.replace(new.own_policy(), new.policy_default) {
        if opens != opened {
            let _ = privileged::open_sockets(&state.settings.socket, opened);
        }
        return Err(new.error_in(&text, "policy", format!("{why}; a stack that is new needs a restart")).to_string());
    }
    let idle_exit = new.idle_exit.map(|time| time.to_std());
    let clients_per_user = new.clients_per_user;
    state.settings.live.set(LiveValues { admission: Arc::new(admission), clients_per_user, idle_exit });
    state.stack.policy_changed();
    state.wake();
    let (changed, restart) = in_force.differing(&new).into_iter().partition(|key| CHANGEABLE.contains(key));
    *in_force = in_force.with_changeable_of(&new);
    source.show(&in_force);
    if let Err(why) = privileged::configuration_taken() {
        tracing::warn!("a process that serves after this one begins with the configuration before: {why}");
    }
    let words = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
    let rules = policy.totals().rules;
    Ok(Reloaded { file, changed: words(changed), restart: words(restart), rules, edited })
}

/// Whom the configuration admits, as at the start.
fn admission(config: &Config, text: &str) -> Result<Admission, String> {
    let own = rustix::process::geteuid().as_raw();
    let unknown = |why: UnknownName| sentence(&config.error_in(text, "admit", why.reason()).to_string());
    let mut admission = Admission::new(own, &config.admit).map_err(unknown)?;
    if config.stack.is_guest() {
        admission.restrict_clients_to_one();
    }
    Ok(admission)
}

/// An error, with what to do where it is about a name.
fn sentence(why: &str) -> String {
    if why.contains("there is no user") || why.contains("there is no group") {
        return format!("{why}. {NAMES}");
    }
    why.to_owned()
}
