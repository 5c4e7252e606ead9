//! Two configurations beside each other: which keys differ, and which of them a running service takes over.

use super::Config;

/// The keys that change while the service runs. Each other one is built into threads, rings or sockets at the start.
pub const CHANGEABLE: [&str; 5] = ["admit", "policy", "policy_default", "clients_per_user", "idle_exit"];

/// Calls a macro with all keys behind what it is given.
macro_rules! each_key {
    ($callback:ident, $($given:expr),*) => {
        $callback!($($given,)*
            stack netns stacks auto guest_tap guest_address guest_gateway guest_kernel guest_memory remote token
            trust_network standby socket interface vlan port firewall cores cpus admit policy policy_default clients_per_user
            sockets_per_client send_buffer receive_buffer send_buffer_max receive_buffer_max idle_memory max_connections spin delayed_ack time_wait
            congestion timestamps sack window_scaling ecn syn_cookies mss_clamp direct sandbox idle_exit
        )
    };
}

macro_rules! differing {
    ($one:expr, $other:expr, $($key:ident)*) => {
        [$((stringify!($key), $one.$key != $other.$key)),*]
    };
}

macro_rules! words {
    ($one:expr, $($key:ident)*) => {
        vec![$((stringify!($key).to_owned(), format!("{:?}", $one.$key))),*]
    };
}

impl Config {
    /// The keys whose values differ, in their order.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let keys = each_key!(differing, self, other);
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// All keys with their values, for a report of an error.
    pub fn in_words(&self) -> Vec<(String, String)> {
        each_key!(words, self)
    }

    /// This one with the changeable values of another, whose other values wait for a restart.
    #[must_use]
    pub fn with_changeable_of(&self, other: &Self) -> Self {
        Self {
            admit: other.admit.clone(),
            policy: other.policy.clone(),
            policy_default: other.policy_default,
            clients_per_user: other.clients_per_user,
            idle_exit: other.idle_exit,
            hash: other.hash.clone(),
            waiting: self.differing(other).into_iter().filter(|key| !CHANGEABLE.contains(key)).collect(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::KEYS;
    use super::*;
    use std::path::Path;

    #[test]
    fn every_key_is_compared_and_only_the_changeable_ones_are_taken() {
        let words = Config::default().in_words();
        let compared: Vec<_> = words.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(compared, KEYS, "in the order of the messages");
        let parse = |text: &str| Config::parse(Path::new("towpath.toml"), text).unwrap();
        let old = Config::default();
        let new = parse(
            "spin = \"1ms\"\nadmit = [\"all\"]\npolicy = [\"deny connect port 25\"]\npolicy_default = \"kernel\"\n\
             clients_per_user = 7\nidle_exit = \"1s\"\n",
        );
        assert_eq!(old.differing(&old), [""; 0]);
        let keys = ["admit", "policy", "policy_default", "clients_per_user", "spin", "idle_exit"];
        assert_eq!(old.differing(&new), keys);
        let taken = old.with_changeable_of(&new);
        assert_eq!(taken.differing(&new), ["spin"]);
        assert_eq!(old.differing(&taken).len(), CHANGEABLE.len());
        assert!(CHANGEABLE.iter().all(|key| KEYS.contains(key)));
    }
}
